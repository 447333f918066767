"""Readiness: what keeps decisions from being recorded is found in time, and strangers learn nothing from it."""

from __future__ import annotations

import json
import logging
import resource
import signal
import sqlite3
import threading
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psycopg
import pytest

from redenvelope.ledger.archive import back_up, restore
from redenvelope.ledger.ledger import Ledger
from tests.ledger.postgres_server import PostgresServer
from tests.serve.running import Running, running
from tests.serve.test_process import Process

NOT_READY = {
    "code": "not_ready",
    "message": "the service cannot record decisions",
    "remedy": "retry later, or see its log",
}


def ready(port: int) -> tuple[int, Any, float]:
    """Status, content and seconds."""
    began = time.monotonic()
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), time.monotonic() - began


def again(port: int, status: int) -> tuple[int, Any, float]:
    """Ask until a status is given, for at most 15 seconds."""
    ends = time.monotonic() + 15
    while (found := ready(port))[0] != status and time.monotonic() < ends:
        time.sleep(0.2)
    return found


def test_a_locked_database_is_not_ready(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(folder, f"sqlite:///{tmp_path}/l.db") as served:
        assert ready(served.port)[0] == 200
        time.sleep(1.1)
        with closing(sqlite3.connect(tmp_path / "l.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for most in (3.0, 1.0):  # once that is known, nobody waits for it again
                status, said, seconds = ready(served.port)
                assert (status, said) == (503, NOT_READY)
                assert seconds < most
            assert served.ask("GET", "/healthz")[0] == 200
            other.execute("ROLLBACK")
        assert again(served.port, 200)[0] == 200
    said_once = [record for record in caplog.records if "cannot be written" in record.getMessage()]
    assert len(said_once) == 1
    assert said_once[0].levelno == logging.ERROR


def test_a_full_disk_is_not_ready(folder: Path, tmp_path: Path) -> None:
    process = Process(folder, f"sqlite:///{tmp_path}/l.db")
    assert ready(process.port)[0] == 200
    before = resource.prlimit(process.serving, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    status, said, seconds = again(process.port, 503)
    assert (status, said) == (503, NOT_READY)
    assert seconds < 3
    resource.prlimit(process.serving, resource.RLIMIT_FSIZE, before)
    assert again(process.port, 200)[0] == 200
    process.process.send_signal(signal.SIGTERM)
    _, logged = process.process.communicate(timeout=60)
    assert process.process.returncode == 0
    assert "not ready, the ledger cannot be written" in logged


def test_a_locked_table_is_not_ready(folder: Path, postgres: PostgresServer) -> None:
    url = postgres.database()
    with running(folder, url) as served:
        assert ready(served.port)[0] == 200
        time.sleep(1.1)
        with closing(psycopg.connect(url)) as other:
            other.execute("SELECT * FROM counters FOR UPDATE")
            status, said, seconds = ready(served.port)
            assert (status, said) == (503, NOT_READY)
            assert seconds < 3
            other.rollback()
        assert again(served.port, 200)[0] == 200


def test_a_ledger_that_was_restored_is_not_ready(folder: Path, url: str, tmp_path: Path) -> None:
    """The service that has it open decides nothing any more."""
    with running(folder, url) as served:
        back_up(url, tmp_path / "backup.db")
        assert again(served.port, 200)[0] == 200
        restore(tmp_path / "backup.db", url, replace=True)
        assert served.decide("r", "u")[0] == 503
        assert again(served.port, 503)[1] == NOT_READY


def test_readers_of_the_log_delay_nothing(folder: Path, url: str) -> None:
    """The probe gives up after a second: each 200 was a durable write within it, while eight clients read."""
    with running(folder, url) as served:
        row = {"taste": 0.5, "city": "Lyon" * 100}
        for turn in range(4):
            asked = [
                {"request_id": f"{turn}-{user}", "user": f"{turn}-{user}", "features": row} for user in range(1_000)
            ]
            assert served.ask("POST", "/v1/decisions/batch", {"decisions": asked})[0] == 200
        done, read = threading.Event(), list[int]()

        def follow() -> None:
            while not done.is_set():
                status, lines, _ = served.answer("GET", "/v1/log?limit=10000")
                read.append(lines.count(b"\n") if status == 200 else 0)

        readers = [threading.Thread(target=follow) for _ in range(8)]
        for one in readers:
            one.start()
        found = []
        for _ in range(4):
            found.append(ready(served.port)[0])
            time.sleep(1.1)  # so that the next one writes again
        done.set()
        for one in readers:
            one.join()
    assert found == [200] * 4
    assert read
    assert set(read) == {4_000}


def test_long_reads_delay_nothing(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(Ledger, "decided", lambda self, after, most: goes_on.wait(20) and [])

    with running(folder, url) as served:
        readers = [threading.Thread(target=served.ask, args=("GET", "/v1/log")) for _ in range(8)]
        for one in readers:
            one.start()
        time.sleep(0.2)
        status, _, seconds = ready(served.port)
        goes_on.set()
        for one in readers:
            one.join()
    assert status == 200
    assert seconds < 3


def test_an_answer_of_the_log_is_bounded(folder: Path, tmp_path: Path) -> None:
    with running(folder, f"sqlite:///{tmp_path}/l.db") as served:
        long = {"taste": 0.5, "city": "x" * 1_000}
        for turn in range(6):
            asked = [
                {"request_id": f"{turn}-{user}", "user": f"{turn}-{user}", "features": long} for user in range(1_000)
            ]
            assert served.ask("POST", "/v1/decisions/batch", {"decisions": asked})[0] == 200
        numbers, after = list[int](), 0
        while lines := served.answer("GET", f"/v1/log?after={after}&limit=10000")[1].splitlines():
            assert len(lines) < 5_000
            numbers += [json.loads(line)["number"] for line in lines]
            after = numbers[-1]
    assert len(numbers) == 6_000 and numbers == sorted(set(numbers))


def test_asking_often_costs_one_write(folder: Path, tmp_path: Path) -> None:
    with running(folder, f"sqlite:///{tmp_path}/l.db") as served:
        assert ready(served.port)[0] == 200
        before, began = _pages(served), time.monotonic()
        for _ in range(50):
            assert ready(served.port)[0] == 200
        assert _pages(served) - before <= 1 + (time.monotonic() - began)


def _pages(served: Running) -> int:
    """Pages of the ledger that were written, by the length of its log."""
    (_, pages, _) = served.service.ledger.database._reader().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(pages)
