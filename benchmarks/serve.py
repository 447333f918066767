"""Decisions a second over HTTP, durable: the whole service, and beside it a bare handler with the same hold.

Service, ledger (SQLite, every commit synced) and clients share one machine and talk over loopback. Each client follows
users through all of their steps, with the features of a simulated campaign. The bare handler reads the same requests
and holds the same money in the same ledger with the same group commits, but plans nothing: the ratio is what planning
costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

DECISIONS_A_SECOND, P99_MILLISECONDS, SHARE_OF_BARE, LIGHT_P50_MILLISECONDS = 1_500, 20.0, 0.8, 8.0
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


async def client(port: int, bodies: list[dict[str, Any]], name: str, until: float, taken: list[float]) -> int:
    """One connection that asks again as soon as it is answered; returns the answers that were not decisions."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await _asking(reader, writer, bodies, name, until, taken)
    finally:
        writer.close()


async def _asking(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    bodies: list[dict[str, Any]],
    name: str,
    until: float,
    taken: list[float],
) -> int:
    refused, count = 0, 0
    while time.perf_counter() < until:
        row = bodies[count % len(bodies)]
        user = f"{name}-{count // row['steps']}"
        body = json.dumps({"request_id": f"{name}-{count}", "user": user, "features": row["features"]}).encode()
        head = "POST /v1/decisions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}"
        before = time.perf_counter()
        writer.write(f"{head}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        taken.append(time.perf_counter() - before)
        refused += not answer.startswith(b"HTTP/1.1 200")
        count += 1
    return refused


def clients(port: int, bodies: list[dict[str, Any]], name: str, connections: int, seconds: float, found: Any) -> None:
    """A process of clients; tells how long each answer took."""
    taken: list[float] = []

    async def all_of_them() -> int:
        until = time.perf_counter() + seconds
        return sum(
            await asyncio.gather(*(client(port, bodies, f"{name}-{n}", until, taken) for n in range(connections)))
        )

    refused = asyncio.run(all_of_them())
    found.put((taken, refused))


def load(port: int, bodies: list[dict[str, Any]], name: str, connections: int, seconds: float) -> dict[str, float]:
    """Decisions a second and milliseconds of each, from one process of clients."""
    found: Any = multiprocessing.Queue()
    process = multiprocessing.Process(target=clients, args=(port, bodies, name, connections, seconds, found))
    began = time.perf_counter()
    process.start()
    taken, refused = found.get()
    process.join()
    elapsed = min(time.perf_counter() - began, seconds + 1)
    milliseconds = 1e3 * np.array(taken)
    return {
        "a second": len(taken) / elapsed,
        "p50": float(np.median(milliseconds)),
        "p99": float(np.quantile(milliseconds, 0.99)),
        "refused": refused,
        "decisions": len(taken),
    }


def started(command: list[str]) -> tuple[subprocess.Popen[str], int]:
    """A process that serves, and its port."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **_ONE_THREAD})
    assert process.stdout is not None
    line = process.stdout.readline()
    port = int(line.split("127.0.0.1:")[1].split()[0].split("/")[0])
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz"):
                return process, port
        except OSError:
            time.sleep(0.2)


def serving_process(process: int) -> int:
    """The command may serve in a child."""
    while children := Path(f"/proc/{process}/task/{process}/children").read_text().split():
        process = int(children[0])
    return process


def processor_seconds(process: int) -> float:
    """Of all threads of a process, so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bare(folder: str) -> None:
    """A handler that holds and does nothing else."""
    import msgspec
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from redenvelope.ledger.ledger import Writer, open_ledger
    from redenvelope.ledger.records import Charge, Choice, Fund, Hold
    from redenvelope.serve.messages import DecisionRequest
    from redenvelope.serve.server import bound, run
    from redenvelope.serve.settings import ServeSettings

    ledger = open_ledger(f"sqlite:///{folder}/bare.db")
    ledger.apply([Fund("budget", 10**12, 0)])
    writer = Writer(ledger)
    choice = Choice("2", 1.0, "{}", (Charge("budget", 200, 200, 100_000),))
    steps: dict[str, int] = {}

    async def decide(request: Request) -> Response:
        asked = msgspec.json.decode(await request.body(), type=DecisionRequest)
        user = str(asked.user)
        step = steps[user] = steps.get(user, -1) + 1
        features = msgspec.json.encode(asked.features).decode()
        now = time.time_ns() // 1_000_000
        hold = Hold(asked.request_id, "", user, step, lambda left: choice, "[0.1]", "plan", features, now, now + 10**6)
        (held,) = await asyncio.wrap_future(writer.submit([hold]))
        return Response(msgspec.json.encode({"decision_id": held.decision, "action": held.action}))

    async def ready(request: Request) -> Response:
        return Response(b"{}")

    class Nothing:
        settings, is_stuck = ServeSettings(), False
        metrics = SimpleNamespace(refused=lambda code: None)

        async def start(self) -> None: ...

        async def stop(self) -> None: ...

    routes = [Route("/v1/decisions", decide, methods=["POST"]), Route("/readyz", ready)]
    opened = bound("127.0.0.1", 0)
    where = f"serving at http://127.0.0.1:{opened.getsockname()[1]}/"
    run(Starlette(routes=routes), Nothing(), opened, lambda: print(where, flush=True))  # type: ignore[arg-type]


def make_plan(folder: Path, users: int) -> None:
    """A plan of six actions, three steps ahead and 20 features."""
    sys.path.insert(0, str(Path(__file__).parent))
    from decide import make_plan as make

    make(folder, users, 1)


def requests_of(folder: Path) -> list[dict[str, Any]]:
    import polars as pl

    frame = pl.read_parquet(folder / "users.parquet")
    rows = frame.to_dicts()
    steps = frame["step"].n_unique()
    named = ("user", "step")
    return [{"steps": steps, "features": {key: row[key] for key in row if key not in named}} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help="a folder with plan-1 and users.parquet, made before")
    parser.add_argument("--users", type=int, default=6_000, help="of the log that the plan is made from")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        bare(arguments.bare)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.plan or Path(name)
        if arguments.plan is None:
            make_plan(folder, arguments.users)
        bodies = requests_of(folder)
        command = [str(Path(sys.executable).parent / "redenvelope"), "serve", str(folder / "plan-1"), "--port", "0"]
        command += ["--ledger", f"sqlite:///{name}/served.db", "--budget-total", "1000000000", "--audience", "10000000"]
        found = {}
        for kind, words in (("service", command), ("bare handler", [sys.executable, __file__, "--bare", name])):
            process, port = started(words)
            load(port, bodies, "warm", 8, 2.0)
            found[kind, "light"] = load(port, bodies, "light", 1, min(4.0, arguments.seconds))
            own = serving_process(process.pid)
            before = processor_seconds(own)
            row = found[kind, "load"] = load(port, bodies, "load", arguments.connections, arguments.seconds)
            row["processor"] = 1e3 * (processor_seconds(own) - before) / row["decisions"]
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    show(found, arguments.connections)


def show(found: dict[tuple[str, str], dict[str, float]], connections: int) -> None:
    print(f"{'':<14}{'clients':>9}{'a second':>11}{'p50 ms':>9}{'p99 ms':>9}{'refused':>9}")
    for (kind, name), row in found.items():
        count = 1 if name == "light" else connections
        print(f"{kind:<14}{count:>9}{row['a second']:>11.0f}{row['p50']:>9.2f}{row['p99']:>9.2f}{row['refused']:>9.0f}")
    loaded, alone = found["service", "load"], found["service", "light"]
    share = loaded["a second"] / found["bare handler", "load"]["a second"]
    work = [found[kind, "load"]["processor"] for kind in ("service", "bare handler")]
    print(f"processor time per decision: {work[0]:.3f} ms, bare handler {work[1]:.3f} ms")
    checks = [
        (f"{loaded['a second']:.0f} decisions a second", loaded["a second"] >= DECISIONS_A_SECOND),
        (f"p99 {loaded['p99']:.1f} ms", loaded["p99"] <= P99_MILLISECONDS),
        (f"{share:.2f} of the bare handler", share >= SHARE_OF_BARE),
        (f"one at a time: p50 {alone['p50']:.2f} ms", alone["p50"] <= LIGHT_P50_MILLISECONDS),
    ]
    for said, good in checks:
        print(f"{said}: {'met' if good else 'MISSED'}")


if __name__ == "__main__":
    main()
