"""What goes wrong for one goes wrong for that one alone, and whatever goes wrong, the service ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from redenvelope import Ledger, ModelError, Plan, UsageError
from redenvelope.log.log import ActionCatalogue
from redenvelope.serve import active_plan as use
from redenvelope.serve import service
from redenvelope.serve.active_plan import ActionDistribution, DecisionQuery, LoadedPlan
from redenvelope.serve.messages import decision_answer
from redenvelope.serve.settings import Limits, ServeSettings
from tests.serve.running import Running, running

ROW = {"taste": 0.9, "city": "Lyon"}
NUMBERS = ActionCatalogue(("0", "1", "3"), numeric=True)


def batch(served: Running, *users: str) -> list[Any]:
    """Answers to requests that are called as their users."""
    asked = [{"request_id": user, "user": user, "features": ROW} for user in users]
    status, found = served.ask("POST", "/v1/decisions/batch", {"decisions": asked})
    assert status == 200
    answers: list[Any] = found["answers"]
    return answers


@pytest.mark.parametrize("first", ["text", "numbers"])
def test_a_request_is_answered_as_before_whatever_labels_the_next_plan_has(
    plan: Plan, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    plans = {"text": plan, "numbers": replace(plan, policy=replace(plan.policy, catalogue=NUMBERS))}
    then = next(name for name in plans if name != first)
    monkeypatch.setattr(use.Plan, "load", lambda folder: plans[folder.name])
    with running(tmp_path / first, url) as served:
        before = batch(served, *"abcdef")
        assert served.ask("POST", "/v1/plan", {"plan": then})[0] == 200
        after = batch(served, *"abcdefgh")
    kinds = {"text": str, "numbers": int}
    assert after[:6] == before
    assert {type(one["action"]) for one in before} == {kinds[first]}
    assert {type(one["action"]) for one in after[6:]} == {kinds[then]}


def test_an_answer_that_cannot_be_written_fails_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(record: Any, *more: Any) -> Any:
        if record.user == "bad":
            raise ValueError("a date that no calendar knows")
        return decision_answer(record, *more)

    monkeypatch.setattr(service, "decision_answer", written)
    with running(folder, f"sqlite:///{tmp_path}/l.db") as served:
        for _ in range(2):  # the second time, nobody is on their way any more
            good, bad, other = batch(served, "good", "bad", "other")
            assert (good["user"], bad["code"], other["user"]) == ("good", "internal", "other")
        assert not served.service._in_flight


def test_who_does_not_fit_the_plan_fails_alone(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    propose = LoadedPlan.propose

    def picky(self: LoadedPlan, asked: Sequence[DecisionQuery], *more: Any) -> list[ActionDistribution]:
        if any(one.user == "bad" for one in asked):
            raise ModelError("the history holds an action that the plan does not know")
        return propose(self, asked, *more)

    monkeypatch.setattr(LoadedPlan, "propose", picky)
    with running(folder, f"sqlite:///{tmp_path}/l.db") as served:
        good, bad, blank, other = batch(served, "good", "bad", "  ", "other")
    assert (good["user"], bad["code"], other["user"]) == ("good", "invalid_request", "other")
    assert (blank["code"], blank["message"]) == ("invalid_request", "the user is empty")


def test_a_ledger_that_does_not_answer_does_not_keep_it_from_ending(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, goes_on = ServeSettings(limits=Limits(answer_seconds=0.5)), threading.Event()
    apply = Ledger.apply

    def hang(self: Ledger, commands: Any) -> Any:
        goes_on.wait(60)
        return apply(self, commands)

    with running(folder, f"sqlite:///{tmp_path}/l.db", settings=settings) as served:
        monkeypatch.setattr(Ledger, "apply", hang)
        assert served.decide("a", "u")[1]["code"] == "timeout"
        began = time.monotonic()
    # Half a second for those who wait and half a second for the ledger; the rest is for a busy machine.
    assert time.monotonic() - began < 20
    assert served.service.is_stuck
    goes_on.set()


def test_a_thread_that_hangs_does_not_keep_the_process_from_ending(folder: Path, tmp_path: Path) -> None:
    script = f"""
        import asyncio, logging, os, signal, time
        from pathlib import Path
        from redenvelope.ledger.ledger import open_ledger
        from redenvelope.ledger.records import Fund
        from redenvelope.serve.app import new_app
        from redenvelope.serve.server import bound, run
        from redenvelope.serve.service import Service
        from redenvelope.serve.settings import Limits, ServeSettings

        logging.basicConfig()
        settings = ServeSettings(limits=Limits(answer_seconds=0.5))
        ledger = open_ledger("sqlite:///{tmp_path}/l.db")
        service = Service(Path({str(folder)!r}), ledger, [Fund("budget", 1_000, 0)], settings)

        def hang_and_end():
            asyncio.ensure_future(service.read(lambda: time.sleep(600)))
            os.kill(os.getpid(), signal.SIGTERM)

        with bound("127.0.0.1", 0) as opened:
            run(new_app(service, None), service, opened, hang_and_end)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "the ledger did not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_offer_stands_for_ten_years_at_most() -> None:
    hour = 3_600_000
    assert ServeSettings(hold_milliseconds=87_600 * hour)
    with pytest.raises(UsageError, match="87,600 hours"):
        ServeSettings(hold_milliseconds=87_600 * hour + 1)
