"""The real command in a process of its own: killed under load, ended in good order, and refusing in words."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from redenvelope import Plan, UsageError, open_ledger
from redenvelope.ledger.archive import back_up
from redenvelope.ledger.ledger import create_ledger, verify
from redenvelope.ledger.records import Fund
from redenvelope.serve import active_plan
from redenvelope.serve.admission import Tokens, new_token
from redenvelope.serve.funds import charge_table_of
from redenvelope.serve.server import bound, run
from redenvelope.serve.settings import ServeSettings
from tests.ledger.asking import rows
from tests.program import run_here
from tests.serve.coupons import Coupons
from tests.serve.running import running

TOTAL = 20_000
COMMAND = [str(Path(sys.executable).parent / "redenvelope"), "serve"]


class Process:
    """`redenvelope serve` on a free port."""

    def __init__(self, folder: Path, url: str, *more: str) -> None:
        options = ["--ledger", url, "--budget-total", str(TOTAL // 100), "--audience", "1000", "--port", "0", *more]
        self.process = subprocess.Popen(
            [*COMMAND, str(folder), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "serving at http://127.0.0.1:" in line, (line, self.process.communicate())
        self.port = int(line.split("127.0.0.1:")[1].split()[0])

    @property
    def serving(self) -> int:
        """The id of the process that serves, which may be a child of the command."""
        found = self.process.pid
        while children := Path(f"/proc/{found}/task/{found}/children").read_text().split():
            found = int(children[0])
        return found

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode


def client(
    port: int, turn: int, number: int, told: dict[str, Any], lock: threading.Lock, stop: threading.Event
) -> None:
    """Decides and settles until the server is gone; remembers what it was told, and nothing else."""
    people = Coupons().users(200, seed=2).to_dicts()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        for count in range(100_000):
            if stop.is_set():
                return
            row, request = people[count % 200], f"{turn}-{number}-{count}"
            features = {"taste": row["taste"], "city": row["city"]}
            try:
                _decide_and_settle(connection, request, features, bool(count % 2), told, lock)
            except (OSError, http.client.HTTPException):
                return


def _decide_and_settle(
    connection: http.client.HTTPConnection,
    request: str,
    features: dict[str, Any],
    settles: bool,
    told: dict[str, Any],
    lock: threading.Lock,
) -> None:
    status, one = _post(connection, "/v1/decisions", {"request_id": request, "user": request, "features": features})
    if status != 200:
        return
    with lock:
        told["decided"][request] = one
    amount = one["hold"]["amount"]
    if amount and settles:
        with lock:
            told["settling"][one["decision_id"]] = amount
        if (
            _post(connection, "/v1/outcomes", {"decision_id": one["decision_id"], "reward": 1.0, "amount": amount})[0]
            == 200
        ):
            with lock:
                told["settled"][one["decision_id"]] = amount


def _post(connection: http.client.HTTPConnection, path: str, content: dict[str, Any]) -> tuple[int, Any]:
    connection.request("POST", path, json.dumps(content), {"content-type": "application/json"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def under_load(port: int, turn: int, told: dict[str, Any]) -> tuple[list[threading.Thread], threading.Event]:
    lock, stop = threading.Lock(), threading.Event()
    threads = [
        threading.Thread(target=client, args=(port, turn, number, told, lock, stop), daemon=True) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    return threads, stop


def check(url: str, told: dict[str, Any]) -> None:
    """What clients were told is in the books, once; and no unit too many."""
    ledger = open_ledger(url)
    found = {row[0]: row for row in rows(ledger, "SELECT request, public_id, action, propensity FROM decisions")}
    lost = [
        request for request, one in told["decided"].items() if found.get(request, ("", ""))[1] != one["decision_id"]
    ]
    assert lost == []
    for request, one in told["decided"].items():
        assert (found[request][2], found[request][3]) == (one["action"], one["propensity"])
    charged = "SELECT public_id, spent FROM charges JOIN decisions ON decisions.decision = charges.decision"
    spent = dict(rows(ledger, charged))
    assert [one for one, amount in told["settled"].items() if spent[one] != amount] == []
    assert all(amount in (0, told["settling"].get(one, 0)) for one, amount in spent.items())
    assert sum(spent.values()) <= TOTAL
    assert verify(ledger).is_sound
    ledger.close()


@pytest.mark.parametrize("turns", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_killed_and_started_again(folder: Path, url: str, turns: int) -> None:
    told: dict[str, Any] = {"decided": {}, "settling": {}, "settled": {}}
    chance = random.Random(3)
    for turn in range(turns):
        served = Process(folder, url)
        threads, _ = under_load(served.port, turn, told)
        time.sleep(chance.uniform(0.3, 0.8))
        served.process.kill()  # its child dies with it
        served.process.communicate()
        for thread in threads:
            thread.join(20)
    assert len(told["decided"]) > 10 * turns
    check(url, told)


def test_it_ends_in_good_order(folder: Path, tmp_path: Path) -> None:
    told: dict[str, Any] = {"decided": {}, "settling": {}, "settled": {}}
    url = f"sqlite:///{tmp_path}/l.db"
    served = Process(folder, url)
    threads, stop = under_load(served.port, 0, told)
    time.sleep(0.4)
    served.process.send_signal(signal.SIGHUP)
    time.sleep(0.4)
    assert served.end(signal.SIGTERM) == 0
    stop.set()
    for thread in threads:
        thread.join(20)
    assert told["decided"]
    check(url, told)


class _Starting:
    """A service that gets signals while it starts, and others while it loads a plan."""

    settings, is_stuck = ServeSettings(), False
    metrics = SimpleNamespace(refused=lambda code: None)
    reloads: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.swapped = 0

    async def start(self) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.2)
        assert not self.swapped

    async def swap(self, name: str | None) -> None:
        self.swapped += 1
        if self.swapped == 1:
            for _ in range(20):
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.sleep(0.005)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    async def stop(self) -> None: ...


def test_signals_while_it_starts_or_loads_a_plan_load_it_once_more() -> None:
    async def nothing(scope: Any, receive: Any, send: Any) -> None: ...

    service = _Starting()
    run(nothing, service, bound("127.0.0.1", 0), lambda: None)  # type: ignore[arg-type]
    assert service.swapped == 2


def test_a_signal_reads_the_tokens_again(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    (old, first), (new, second) = (new_token(name, ["read"]) for name in ("old", "new"))
    file.write_text(first)
    served = Process(folder, f"sqlite:///{tmp_path}/l.db", "--tokens", str(file))

    def status(secret: str) -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)) as connection:
            connection.request("GET", "/v1/campaign", headers={"authorization": f"Bearer {secret}"})
            return connection.getresponse().status

    assert (status(old), status(new)) == (200, 401)
    file.write_text(second)
    os.kill(served.serving, signal.SIGHUP)
    for _ in range(100):
        if status(new) == 200:
            break
        time.sleep(0.1)
    assert (status(old), status(new)) == (401, 200)
    assert served.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "--tokens"),
        (["--budget-total", "1.234"], "with at most 2 decimals"),
        (["--amounts", "nothing=0"], "--amounts"),
        (["--mode", "generous"], "strict or overbook"),
        (["--hold-hours", "1e9"], "--hold-hours 1e+09: give at most 87,600 hours"),
        (["--hold-hours", "inf"], "--hold-hours inf"),
        (["--hold-hours", "nan"], "--hold-hours"),
        (["--audience", "1" + "0" * 400], "the audience is at most"),
        (["--minor-units", "1" + "0" * 40], "at most 1,000,000 minor units"),
        (["--budget-total", "1e999999999"], "--budget-total"),
        (["--budget-total", "1e300"], "below 90,071,992,547,409"),
        (["--budget-total", "9" * 5_000], "below 90,071,992,547,409"),
        (["--budget-total", "nan"], "--budget-total"),
        (["--budget-total", "sNaN"], "--budget-total"),
        (["--budget-total", "-1"], "--budget-total"),
        (["--user-cap", "1e17"], "--user-cap"),
        (["--amounts", "nothing=0,1 €=1,3 €=1e400"], "--amounts"),
        (["--amounts", "nothing=0,1 €=1,3 €=nan"], "--amounts"),
        (["--host", "a" * 300], "--tokens"),
        (["--wrong-features", "ignore"], "refuse"),
        (["--log-format", "xml"], "--log-format xml"),
        (["--webhook", "http://[::1"], "https://HOST/PATH"),
        (["--ledger", "mysql://x"], "is not the URL of a ledger"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, tmp_path: Path, options: list[str], said: str) -> None:
    given = {"--ledger": f"sqlite:///{tmp_path}/l.db", "--budget-total": "10", "--port": "0"} | dict([options])
    done = run_here("serve", folder, *(word for pair in given.items() for word in pair))
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_options_without_a_total_are_not_ignored(folder: Path, url: str, tmp_path: Path) -> None:
    create_ledger(url).close()
    ledger = open_ledger(url)
    ledger.apply([Fund("budget", 1_000, 0, 500, "cost")])
    ledger.close()
    done = run_here("serve", folder, "--ledger", url, "--user-cap", "4", "--port", "0")
    assert (done.returncode, "the cap per user is '5' in the ledger and '4' here" in done.stderr) == (2, True)
    back_up(url, tmp_path / "backup.db")
    done = run_here("serve", folder, "--ledger", f"sqlite:///{tmp_path}/backup.db", "--port", "0")
    assert (done.returncode, "is a back-up" in done.stderr) == (2, True)


def test_a_plan_is_served_with_the_cap_that_it_is_certified_for(
    plan: Plan, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    capped = replace(plan, certificate=replace(plan.certificate, most_per_user=2.5))
    euros = replace(plan, record=replace(plan.record, money=replace(plan.record.money, currency="EUR")))
    dollars = replace(plan, record=replace(plan.record, money=replace(plan.record.money, currency="USD")))
    plans = {"plan": euros, "capped": capped, "dollars": dollars}
    monkeypatch.setattr(active_plan.Plan, "load", lambda folder: plans[folder.name])
    with running(Path("plan"), url, user_cap=300) as served:
        for name, said in (("capped", "at most 2.5 per user"), ("dollars", "amounts in 'EUR', and the plan in 'USD'")):
            status, found = served.ask("POST", "/v1/plan", {"plan": name})
            assert (status, said in found["message"]) == (409, True)
        fund = Fund("budget", 100_000, 0, 250, "cost")
        served.service.ledger.apply([fund])
        assert served.ask("POST", "/v1/plan", {"plan": "capped"})[0] == 200
    with pytest.raises(UsageError, match=r"at most 2\.5 per user"), running(Path("capped"), url, user_cap=300):
        pass


def test_offers_that_no_ledger_can_count_are_refused(plan: Plan) -> None:
    given = {"": {"nothing": 0.0, "1 €": 1.0, "3 €": 9e11}}
    with pytest.raises(UsageError, match="more than a ledger counts"):
        charge_table_of(plan, ["budget"], given, ServeSettings(minor_units=10**6))


def test_a_token_is_made_and_shown_once(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    given = [COMMAND[0], "token", "shop", "--roles", "decide,settle", "--file", str(file)]
    made = subprocess.run(given, capture_output=True, text=True, check=True, env={**os.environ})
    secret = made.stdout.strip()
    assert secret not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    caller = Tokens.read(file).caller(f"Bearer {secret}")
    assert caller is not None
    assert caller.may("decide")
    assert not caller.may("read")
    file.write_text(file.read_text().rstrip())  # as an editor may leave it
    subprocess.run(given, capture_output=True, check=True, env={**os.environ})
    assert len(Tokens.read(file).callers) == 2
