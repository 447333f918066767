"""A plan that is well signed and wrong inside is refused in a sentence, or works: finite numbers, no hang."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
import polars as pl
import pytest

from redenvelope.errors import RedenvelopeError
from redenvelope.plan.plan import Plan
from redenvelope.plan.questions import answer
from redenvelope.plan.reprice import reprice
from redenvelope.report.page import render_report
from redenvelope.simulate.finite import FiniteCampaign
from tests.adversary.plans import mutated
from tests.two_step_plan import BUDGET, campaign, log, plan

__all__ = ["campaign", "log", "plan"]

SECONDS = 10


class TooLongError(BaseException):
    pass


@contextmanager
def in_time() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def use(opened: Plan, users: pl.DataFrame, draw: bool) -> None:
    """Everything that is done with a plan; numbers must be numbers."""
    decisions, _ = opened.allocate(users)
    for name in ("propensity", "expected_reward", "expected_cost"):
        assert np.isfinite(decisions[name].to_numpy()).all()
    for row in answer(opened, None, None)["at"]:
        assert np.isfinite(list(row.values())).all()
    reprice(opened, budget=BUDGET)
    if draw:
        render_report(opened)


def attack(plan: Plan, folder: Path, users: pl.DataFrame, count: int, seed: int) -> dict[str, int]:
    """Try so many mutations; returns how they ended."""
    generator = np.random.default_rng(seed)
    good = plan.save(folder / "good", {"report.html": b"<p>a report</p>"})
    ended = {"refused": 0, "used": 0}
    for number in range(count):
        bad = folder / "bad"
        shutil.copytree(good, bad)
        what = mutated(bad, generator)
        try:
            with in_time():
                use(Plan.load(bad), users, draw=number % 10 == 0)
            ended["used"] += 1
        except RedenvelopeError as error:
            assert str(error).strip(), what
            ended["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"mutation {number}, {what}: {type(error).__name__}: {error}") from error
        finally:
            shutil.rmtree(bad)
    return ended


@pytest.fixture
def users(campaign: FiniteCampaign) -> pl.DataFrame:
    return campaign.log(20, seed=1).select("user", "step", "state")


def test_mutated_plans_are_refused_or_work(plan: Plan, users: pl.DataFrame, tmp_path: Path) -> None:
    ended = attack(plan, tmp_path, users, count=150, seed=0)
    # Most parts matter: an adversary whose changes go unnoticed would be none.
    assert ended["refused"] > 75


@pytest.mark.slow
def test_many_mutated_plans(plan: Plan, users: pl.DataFrame, tmp_path: Path) -> None:
    assert sum(attack(plan, tmp_path, users, count=20_000, seed=1).values()) == 20_000
