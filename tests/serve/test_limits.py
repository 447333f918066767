"""Clients that send without end, wait without end, or read nothing: each is cut off, and memory stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from redenvelope import UsageError
from redenvelope.serve.server import LimitedConnection, require_limits_hold
from redenvelope.serve.settings import Limits, ServeSettings
from tests.serve.running import Running, running
from tests.serve.test_process import Process

LIMITS = Limits(
    head_bytes=4_096,
    headers=20,
    connections=30,
    pipelined=4,
    body_bytes=4_096,
    bodies_bytes=3_000,
    body_seconds=1.0,
    write_seconds=0.5,
)
HEAD = b"POST /v1/decisions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/l.db"
    with running(folder, url, settings=ServeSettings(limits=LIMITS)) as found:
        yield found


def connect(port: int, receive_bytes: int | None = None) -> socket.socket:
    opened = socket.socket()
    if receive_bytes is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    opened.settimeout(10)
    opened.connect(("127.0.0.1", port))
    return opened


def everything(wire: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := wire.recv(65_536):
            found += part
    return found


def refusal(answer: bytes) -> tuple[int, Any]:
    """Status and code of the one answer on a connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head, answer
    return int(head.split()[1]), json.loads(body)["code"]


def megabytes(process: int) -> float:
    """Memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1_024


@pytest.mark.parametrize("line", [b"a" * 65_536, b"x: " + b"y" * 100 + b"\r\n", b"a:\r\n"])
def test_endless_headers_are_cut_off(folder: Path, tmp_path: Path, line: bytes) -> None:
    process = Process(folder, f"sqlite:///{tmp_path}/l.db")
    before = megabytes(process.serving)
    block, sent = line * (65_536 // len(line)), list[int]()
    began = time.monotonic()
    for _ in range(4):
        with connect(process.port) as wire:
            wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
            sent.append(0)
            with contextlib.suppress(ConnectionError):
                while sent[-1] < 500:
                    wire.sendall(block)
                    sent[-1] += 1
    assert max(sent) < 250, "the server took megabytes of headers"
    assert time.monotonic() - began < 8
    assert megabytes(process.serving) - before < 50
    assert process.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    "head",
    [
        b"x: " + b"y" * 5_000 + b"\r\n\r\n",
        b"x: " + b"y" * 5_000,
        b"".join(b"x%d: y\r\n" % number for number in range(30)),
    ],
)
def test_large_headers_are_refused_in_words(served: Running, head: bytes) -> None:
    with connect(served.port) as wire:
        wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + head)
        assert refusal(everything(wire)) == (431, "headers_too_large")
    with connect(served.port) as wire:
        wire.sendall(b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 3_000 + b"\r\nConnection: close\r\n\r\n")
        assert everything(wire).startswith(b"HTTP/1.1 200")


def test_rubbish_is_refused_in_words(served: Running) -> None:
    with connect(served.port) as wire:
        wire.sendall(b"\x00\x01rubbish\r\n\r\n")
        assert refusal(everything(wire)) == (400, "invalid_http")


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: lo", HEAD + b"Content-Length: 9\r\n\r\n{"])
def test_connections_without_a_request_keep_nobody_out(served: Running, sent: bytes) -> None:
    """The one that has waited longest for a request makes room, also after a first answer."""
    opened = [connect(served.port) for _ in range(LIMITS.connections)]
    try:
        for one in opened:  # answered, so that they are known to be open
            one.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(1_000).startswith(b"HTTP/1.1 200")
            one.sendall(sent)
        for _ in range(3 * LIMITS.connections):
            assert served.ask("GET", "/healthz")[0] == 200
        assert served.service.metrics.refusals()["overloaded"] >= 1
        assert b"200" not in everything(opened[0])
    finally:
        for one in opened:
            one.close()


def test_a_connection_too_many_is_refused(folder: Path, tmp_path: Path) -> None:
    """Where every other one waits for an answer."""
    limits = replace(LIMITS, connections=3, body_bytes=1_000, write_seconds=10.0)
    with running(folder, f"sqlite:///{tmp_path}/l.db", settings=ServeSettings(limits=limits)) as served:
        body = json.dumps({"request_id": "r", "user": "u", "features": {"taste": 0.9, "city": "Lyon"}}).encode()
        with served.service.ledger.database.transaction():  # nobody is answered before it ends
            opened = [connect(served.port) for _ in range(limits.connections)]
            for one in opened:
                one.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(0.3)
            with connect(served.port) as wire:
                assert refusal(everything(wire)) == (503, "overloaded")
        for one in opened:
            assert one.recv(1_000).startswith(b"HTTP/1.1 200")
            one.close()


def test_requests_sent_ahead_are_bounded(served: Running) -> None:
    with connect(served.port) as wire:
        wire.sendall(b"GET /v1/campaign HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
        answers = everything(wire).count(b"HTTP/1.1 ")
    assert answers <= LIMITS.pipelined + 1
    assert served.service.metrics.refusals()["pipelined"] == 1


@pytest.mark.parametrize(
    "limits",
    [Limits(pipelined=10_000, write_seconds=0.5), Limits(pipelined=10_000, unsent_bytes=100)],
    ids=["too long", "too much"],
)
def test_who_reads_nothing_is_cut_off(folder: Path, tmp_path: Path, limits: Limits) -> None:
    with running(folder, f"sqlite:///{tmp_path}/l.db", settings=ServeSettings(limits=limits)) as served:
        with connect(served.port, receive_bytes=4_096) as wire, pytest.raises(ConnectionError):
            for _ in range(3_000):
                wire.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
                time.sleep(0.003)
        assert served.service.metrics.refusals() == {"slow_reader": 1}


def test_a_body_that_drips_keeps_nothing_open(served: Running) -> None:
    """It is answered in time, and then closed: whoever goes on to send is not listened to."""
    with connect(served.port) as wire:
        wire.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            while time.monotonic() - began < 9:
                wire.sendall(b"1\r\n \r\n")
                time.sleep(0.05)


def test_bodies_of_all_requests_together_are_bounded(served: Running) -> None:
    content = json.dumps({"request_id": "r", "user": "u", "features": {"taste": 0.5, "city": "Lyon"}}).encode()
    large = content + b" " * (2_000 - len(content))
    with connect(served.port) as slow:
        slow.sendall(HEAD + b"Content-Length: 2000\r\n\r\n" + large[:-1])
        time.sleep(0.1)
        status, said = served.ask("POST", "/v1/decisions", raw=large)
        assert (status, said["code"]) == (503, "overloaded")
        slow.sendall(large[-1:])
        assert slow.recv(1_000).startswith(b"HTTP/1.1 200")
    assert served.ask("POST", "/v1/decisions", raw=large)[0] == 200


@pytest.mark.parametrize(
    "part",
    [b"1;" + b"x" * 65_536, b"0\r\nx: " + b"y" * 65_536, b"0\r\n" + b"x: y\r\n" * 10_000, b"1\r\n \r\n" * 10_000],
    ids=["extension", "trailer", "trailers", "chunks"],
)
def test_a_body_without_end_is_cut_off(folder: Path, tmp_path: Path, part: bytes) -> None:
    """Whatever the parser passes over or keeps between chunks and after them counts."""
    limits = Limits(batch_bytes=100_000, body_seconds=60.0)
    with running(folder, f"sqlite:///{tmp_path}/l.db", settings=ServeSettings(limits=limits)) as served:
        with connect(served.port) as wire:
            wire.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + part)
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 500:
                    wire.sendall(part.removeprefix(b"0\r\n") if part.startswith(b"0") else part[:1] * 65_536)
                    sent += 1
        assert sent < 250, "the server took megabytes"
        assert served.ask("GET", "/healthz")[0] == 200


def test_a_release_that_keeps_no_limits_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if uvicorn no longer called what the limits are hung on, or had renamed what they read."""
    for name, changed in (
        ("on_header", lambda self, name, value: None),
        ("on_headers_complete", HttpToolsProtocol.on_headers_complete),
        ("connection_lost", HttpToolsProtocol.connection_lost),
        ("_refuse", lambda self, error: self.no_such_part),
    ):
        with monkeypatch.context() as broken:
            broken.setattr(LimitedConnection, name, changed)
            with pytest.raises(UsageError, match="does not keep the limits on connections"):
                asyncio.run(require_limits_hold())
    asyncio.run(require_limits_hold())
    monkeypatch.setattr(LimitedConnection, "on_header", HttpToolsProtocol.on_header)
    with pytest.raises(UsageError, match="uvicorn"), running(folder, f"sqlite:///{tmp_path}/l.db"):
        pass
