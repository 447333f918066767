"""Memory of the service under hostile clients, and whether it still answers others meanwhile.

Each attack runs for some seconds with many connections from this machine, against one service with a ledger in SQLite
that holds decisions with long features. The bar is the peak of the service's memory (VmHWM), which the system counts.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from serve import make_plan, requests_of, serving_process, started

MOST_MEGABYTES = 600.0
HEAD = b"POST /v1/decisions/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n"
BLOCK = 65_536
_USERS = itertools.count()


def endless(first: bytes, then: bytes) -> Callable[[], Iterator[bytes]]:
    """Bytes without end, as fast as they are taken."""

    def parts() -> Iterator[bytes]:
        yield first
        while True:
            yield then

    return parts


def slow(first: bytes, then: bytes, seconds: float = 0.2) -> Callable[[], Iterator[bytes]]:
    """A few bytes, then now and then some more."""

    def parts() -> Iterator[bytes]:
        yield first
        while True:
            time.sleep(seconds)
            yield then

    return parts


def batches(features: dict[str, Any], decisions: int) -> Callable[[], Iterator[bytes]]:
    """Batches for users who were never there before."""
    asked = [{"request_id": f"#######-{n}", "user": f"#######-{n}", "features": features} for n in range(decisions)]
    body = json.dumps({"decisions": asked}).encode()
    sent = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body

    def parts() -> Iterator[bytes]:
        for number in _USERS:
            yield sent.replace(b"#######", b"%07d" % number)

    return parts


def attacks(features: dict[str, Any]) -> dict[str, tuple[int, Callable[[], Iterator[bytes]]]]:
    """By name: how many connections, and what each sends; none of them reads."""
    unknown = {f"unknown feature {number} {'x' * 400}": 0 for number in range(1_900)}
    return {
        "large batches, answers not read": (16, batches(features | {"city": "x" * 1_000}, 1_000)),
        "idle connections": (1_900, slow(b"", b"")),
        "slow headers": (500, slow(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"x: y\r\n")),
        "one endless header": (32, endless(b"GET /healthz HTTP/1.1\r\nx: ", b"y" * BLOCK)),
        "endless headers": (32, endless(b"GET /healthz HTTP/1.1\r\n", b"x: y\r\n" * (BLOCK // 6))),
        "an endless address": (32, endless(b"GET /", b"y" * BLOCK)),
        "slow bodies": (500, slow(HEAD + b"Content-Length: 4000000\r\n\r\n" + b" " * BLOCK, b" ")),
        "large bodies that stop short": (200, slow(HEAD + b"Content-Length: 4000000\r\n\r\n" + b" " * 3_900_000, b"")),
        "trickling chunks": (300, slow(CHUNKED, b"1\r\n \r\n", 0.02)),
        "endless extensions of a chunk": (32, endless(CHUNKED + b"1;", b"x" * BLOCK)),
        "endless trailers": (32, endless(CHUNKED + b"0\r\nx: ", b"y" * BLOCK)),
        "many unfinished trailers": (
            1_000,
            slow(CHUNKED + b"400\r\n%b\r\n0\r\nx: " % (b" " * 1_024) + b"y" * 250_000, b""),
        ),
        "requests sent ahead": (64, endless(b"", GET % b"/v1/campaign" * 400)),
        "readers who do not read the log": (64, slow(GET % b"/v1/log?limit=10000" * 8, b"")),
        "unknown features": (16, batches(unknown, 4)),
    }


def attacking(port: int, send: Callable[[], Iterator[bytes]], until: float) -> None:
    """One connection after the other until the time is over."""
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as wire:
            wire.settimeout(0.5)
            for part in send():
                if time.monotonic() > until:
                    return
                with contextlib.suppress(TimeoutError):
                    wire.sendall(part)
        time.sleep(0.05)


def attacked(port: int, connections: int, send: Callable[[], Iterator[bytes]], seconds: float) -> tuple[int, float]:
    """How many of those who ask for /healthz meanwhile are answered within 5 s, per cent, and the longest wait."""
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=attacking, args=(port, send, until), daemon=True) for _ in range(connections)]
    for one in threads:
        one.start()
    asked, answered, longest = 0, 0, 0.0
    while not asked or time.monotonic() < until:  # to begin so many connections may take as long
        began, asked = time.monotonic(), asked + 1
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):
            answered += 1
        longest = max(longest, time.monotonic() - began)
        time.sleep(0.2)
    for one in threads:
        one.join(10)
    return round(100 * answered / max(asked, 1)), longest


def megabytes(process: int, kind: str) -> float:
    return int(Path(f"/proc/{process}/status").read_text().split(f"{kind}:")[1].split()[0]) / 1_024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help="a folder with plan-1 and users.parquet, made before")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each attack")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.plan or Path(name)
        if arguments.plan is None:
            make_plan(folder, 3_000)
        features = requests_of(folder)[0]["features"]
        command = ["redenvelope", "serve", str(folder / "plan-1"), "--port", "0", "--budget-total", "1000000"]
        process, port = started([*command, "--ledger", f"sqlite:///{name}/hostile.db", "--audience", "1000000"])
        own = serving_process(process.pid)
        try:
            print(f"{'at the start':<34}{megabytes(own, 'VmRSS'):>8.0f} MB")
            for kind, (connections, send) in attacks(features).items():
                share, longest = attacked(port, connections, send, arguments.seconds)
                now, peak = megabytes(own, "VmRSS"), megabytes(own, "VmHWM")
                print(
                    f"{kind:<34}{now:>8.0f} MB, peak {peak:.0f} MB; others answered {share} %, at most {longest:.1f} s"
                )
            peak = megabytes(own, "VmHWM")
        finally:
            os.kill(own, signal.SIGTERM)
            ended = process.wait(90)
    print(f"peak {peak:.0f} MB of {MOST_MEGABYTES:.0f}: {'met' if peak <= MOST_MEGABYTES else 'MISSED'}")
    print(f"exit code {ended}: {'met' if ended == 0 else 'MISSED'}")


if __name__ == "__main__":
    main()
