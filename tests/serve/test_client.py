"""The Python client against the live service: idempotent whatever breaks, bounded in time, clear about refusals."""

from __future__ import annotations

import asyncio
import http.server
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from redenvelope.client import (
    AsyncClient,
    Client,
    ClientError,
    Decision,
    Outcome,
    RefusedError,
    Request,
    Settled,
    UnreachableError,
)
from redenvelope.errors import RedenvelopeError, UsageError
from redenvelope.ledger.ledger import open_ledger, verify
from redenvelope.serve.admission import Tokens, new_token
from tests.documents import blocks
from tests.serve.running import running
from tests.serve.test_process import Process

FEATURES = {"taste": 0.9, "city": "Lyon"}


def test_it_imports_without_what_plans() -> None:
    script = "import sys; import redenvelope.client; print(sorted({'jax', 'polars', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_campaign_by_the_client(folder: Path, tmp_path: Path) -> None:
    with running(folder, f"sqlite:///{tmp_path}/l.db") as service, Client(f"http://127.0.0.1:{service.port}") as client:
        client.wait_until_ready()
        one = client.decide("u1", FEATURES, request_id="r1")
        assert client.decide("u1", FEATURES, request_id="r1") == one
        assert (one.user, one.step, one.request_id, one.holdout) == ("u1", 0, "r1", False)
        done = client.settle(one.decision_id, 1.0, one.hold.amount)
        assert client.settle(one.decision_id, 1.0, one.hold.amount) == done
        assert done.amount == one.hold.amount
        only = client.decide("u2", FEATURES, step=0, eligible=["nothing"])
        assert (only.action, only.propensity) == ("nothing", 1.0)
        many = client.decide_many([Request("u3", FEATURES), Request("u4", {"reward": 1}), Request(5, FEATURES)])
        assert [type(each) for each in many] == [Decision, RefusedError, Decision]
        assert isinstance(many[1], RefusedError) and many[1].code == "unknown_feature"
        decided = [each.decision_id for each in many if isinstance(each, Decision)]
        settled = client.settle_many([Outcome(each, 0.5) for each in (*decided, "d9_00000000_00000000")])
        assert [type(each) for each in settled] == [Settled, Settled, RefusedError]
        rows = list(client.log())
        decided_rows = [row for row in rows if row["change"] == "decide"]
        assert [row["request_id"] for row in decided_rows][:2] == ["r1", only.request_id]
        fixed = client.correct(one.decision_id, 0.5, reason="counted twice")
        assert (fixed.reward, fixed.amount, fixed.status) == (0.5, 0, "released")
        (row,) = client.log(after=rows[-1]["number"])
        assert (row["change"], row["decision_id"], row["reason"]) == ("correct", one.decision_id, "counted twice")
        rows.append(row)
        assert list(client.log(after=rows[-1]["number"])) == []
        assert client.campaign()["budgets"]


def test_the_guide_does_what_it_says(folder: Path, tmp_path: Path) -> None:
    (block,) = (block for block in blocks("docs/guides/clients.md") if block.kind == "python")
    with running(folder, f"sqlite:///{tmp_path}/l.db") as service:
        exec(block.content.replace(":8080", f":{service.port}"), {})
        status, rows = service.ask("GET", "/v1/log")
    assert status == 200 and rows.count('"settled"') + rows.count('"released"') == 3


def test_refusals_are_the_services_own_words(folder: Path, tmp_path: Path) -> None:
    secret, line = new_token("shop", ["decide", "settle"])
    (tmp_path / "tokens").write_text(f"{line}\n")
    with running(folder, f"sqlite:///{tmp_path}/l.db", tokens=Tokens.read(tmp_path / "tokens")) as service:
        address = f"http://127.0.0.1:{service.port}"
        with Client(address, token=secret) as client:
            client.decide("u1", FEATURES, request_id="r1")
            with pytest.raises(RefusedError, match="use a new request_id") as refused:
                client.decide("u2", FEATURES, request_id="r1")
            assert (refused.value.status, refused.value.code) == (409, "request_differs")
            with pytest.raises(RefusedError) as unknown:
                client.settle("d9_00000000_00000000", 1.0)
            assert unknown.value.code == "other_ledger" and isinstance(unknown.value, RedenvelopeError)
            with pytest.raises(RefusedError) as forbidden:
                client.campaign()
            assert forbidden.value.status == 403
        with Client(address, token="wrong") as stranger, pytest.raises(ClientError) as turned_away:
            stranger.decide("u1", FEATURES)
        assert isinstance(turned_away.value, RefusedError) and turned_away.value.status == 401


@contextmanager
def answering(*answers: tuple[int, dict[str, str], bytes] | None) -> Iterator[tuple[str, list[bytes]]]:
    """A service that gives these answers one after the other, the last for ever; None hangs up without one."""
    seen: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            seen.append(self.rfile.read(int(self.headers["content-length"])))
            self._give()

        def do_GET(self) -> None:
            seen.append(self.path.encode())
            self._give()

        def _give(self) -> None:
            answer = answers[min(len(seen), len(answers)) - 1]
            if answer is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


HOLD = {"amount": 0, "amounts": {}, "expires_at": "2030-01-01T00:00:00Z"}
DECIDED = {
    "decision_id": "d1",
    "request_id": "r",
    "user": "u",
    "step": 0,
    "action": "a",
    "propensity": 1.0,
    "hold": HOLD,
    "prices": [None],
    "plan": "p",
    "something_new": 7,
}
GOOD = (200, {}, json.dumps(DECIDED).encode())
BUSY = (503, {}, json.dumps({"code": "overloaded", "message": "busy", "remedy": "retry"}).encode())


@pytest.mark.parametrize(
    "first", [BUSY, None, (502, {}, b"<html>bad gateway</html>"), (429, {"retry-after": "0"}, b"")]
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_passes_is_sent_again_as_it_was(first: tuple[int, dict[str, str], bytes] | None, kind: type) -> None:
    with answering(first, first, GOOD) as (address, seen):
        if kind is Client:
            with Client(address) as client:
                decision = client.decide("u", FEATURES)
        else:

            async def ask() -> Decision:
                async with AsyncClient(address) as client:
                    return await client.decide("u", FEATURES)

            decision = asyncio.run(ask())
    assert decision.decision_id == "d1" and len(seen) == 3
    assert len(set(seen)) == 1 and json.loads(seen[0])["request_id"]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((409, {}, json.dumps({"code": "nothing_left", "message": "m", "remedy": "r"}).encode()), "nothing_left"),
        ((404, {}, b"<html>"), "unexpected_answer"),
        ((302, {"location": "http://127.0.0.1:9/"}, b""), "unexpected_answer"),
        ((200, {}, b'{"hello": 1}'), "unexpected_answer"),
        ((200, {}, b"\xff\xfe"), "unexpected_answer"),
        ((500, {}, json.dumps({"code": "internal", "message": "m", "remedy": "r"}).encode()), "internal"),
    ],
)
def test_what_does_not_pass_is_raised_at_once(answer: tuple[int, dict[str, str], bytes], code: str) -> None:
    with answering(answer) as (address, seen), Client(address) as client:
        with pytest.raises(RefusedError) as refused:
            client.decide("u", FEATURES)
        assert refused.value.code == code and len(seen) == 1


def test_in_a_batch_only_what_passes_is_tried_again_and_nothing_is_lost_at_the_deadline() -> None:
    busy = {"code": "overloaded", "message": "busy", "remedy": "retry"}
    over = {"code": "campaign_over", "message": "over", "remedy": "stop"}
    half, whole = ({"answers": [DECIDED, last, over]} for last in (busy, DECIDED))
    answers = [(200, {}, json.dumps(each).encode()) for each in (half, whole)]
    requests = [Request("u", FEATURES), Request("v", FEATURES), Request("w", FEATURES)]
    with answering(*answers) as (address, seen), Client(address) as client:
        found = client.decide_many(requests)
        assert [type(each) for each in found] == [Decision, Decision, RefusedError] and len(set(seen)) == 1
    with answering(answers[0]) as (address, seen), Client(address, deadline=0.5, timeout=0.5) as client:
        found = client.decide_many(requests)
        assert [type(each) for each in found] == [Decision, RefusedError, RefusedError] and len(seen) > 1


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_service_that_is_silent_or_gone_ends_at_the_deadline(kind: type) -> None:
    """Nobody listens, somebody listens and never answers, or sends its answer drop by drop for ever."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = gone.getsockname()[1]
    silent = socket.create_server(("127.0.0.1", 0))
    dripping = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip() -> None:
        while not stop.is_set():
            try:
                taken, _ = dripping.accept()
            except OSError:
                return
            with taken, suppress(OSError):  # the client may hang up
                taken.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
                for _ in range(1_000):
                    if stop.wait(0.05):
                        return
                    taken.sendall(b"x")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()

    def asked(port: int) -> None:
        address = f"http://127.0.0.1:{port}"
        if kind is Client:
            with Client(address, deadline=1.0, timeout=0.3) as client:
                client.decide("u", FEATURES, request_id="mine")
            return

        async def ask() -> None:
            async with AsyncClient(address, deadline=1.0, timeout=0.3) as client:
                await client.decide("u", FEATURES, request_id="mine")

        asyncio.run(ask())

    try:
        for port in (nobody, silent.getsockname()[1], dripping.getsockname()[1]):
            began = time.monotonic()
            with pytest.raises(UnreachableError, match="request_id 'mine'") as lost:
                asked(port)
            assert lost.value.request_ids == ("mine",)
            assert time.monotonic() - began < 30  # far from the thousand drops, on any machine
    finally:
        stop.set()
        silent.close()
        dripping.shutdown(socket.SHUT_RDWR)
        dripping.close()
        thread.join()


def test_the_service_is_killed_and_restarted_in_between(folder: Path, tmp_path: Path) -> None:
    """A user is decided for once and settled once, although the process dies while clients ask."""
    url = f"sqlite:///{tmp_path}/l.db"
    first = Process(folder, url)
    port = first.port
    decided: dict[str, Decision] = {}
    failed: list[Exception] = []

    def ask(number: int) -> None:
        with Client(f"http://127.0.0.1:{port}", deadline=120, timeout=5) as client:
            for count in range(12):
                try:
                    one = client.decide(f"{number}-{count}", FEATURES)
                    client.settle(one.decision_id, 1.0, one.hold.amount)
                    decided[one.request_id] = one
                except Exception as error:
                    failed.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(decided) < 8:  # bounded by the deadline of the calls
        assert any(thread.is_alive() for thread in threads)
        time.sleep(0.01)
    first.end(signal.SIGKILL)
    second = Process(folder, url, "--port", str(port))
    for thread in threads:
        thread.join()
    again = Client(f"http://127.0.0.1:{port}")
    with again:
        for request, one in list(decided.items())[:5]:
            assert again.decide(one.user, FEATURES, request_id=request) == one
        rows = [row for row in again.log() if row["change"] == "decide"]
    assert second.end(signal.SIGTERM) == 0
    assert failed == []
    assert len(decided) == 48 and sorted(row["request_id"] for row in rows) == sorted(decided)
    assert not verify(open_ledger(url)).differences


def test_async_calls_run_together(folder: Path, tmp_path: Path) -> None:
    async def ask(port: int) -> list[Decision]:
        async with AsyncClient(f"http://127.0.0.1:{port}") as client:
            await client.wait_until_ready()
            found = await asyncio.gather(*(client.decide(f"u{number}", FEATURES) for number in range(20)))
            settled = await client.settle_many([Outcome(one.decision_id, 1.0, one.hold.amount) for one in found])
            assert all(isinstance(one, Settled) for one in settled)
            assert [row["change"] async for row in client.log()].count("decide") == 20
            assert (await client.campaign())["budgets"]
            again = await client.decide_many(
                [Request(one.user, FEATURES, step=0, request_id=one.request_id) for one in found]
            )
            assert all(isinstance(one, RefusedError) and one.code == "request_differs" for one in again)
            return found

    with running(folder, f"sqlite:///{tmp_path}/l.db") as service:
        found = asyncio.run(ask(service.port))
    assert len({one.decision_id for one in found}) == 20


@pytest.mark.parametrize(("given", "said"), [({"url": "127.0.0.1:80"}, "http://"), ({"timeout": 0}, "timeout")])
def test_an_address_or_a_limit_that_makes_no_sense(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Client(**{"url": "http://127.0.0.1:80", **given})  # type: ignore[arg-type]


def test_the_token_is_not_shown() -> None:
    client = Client("http://127.0.0.1:80", token="very-secret")
    assert "very-secret" not in repr(client) + str(vars(client))
    client.close()
