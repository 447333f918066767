"""A plan that is well signed and wrong inside is refused in a sentence, or works: finite numbers, no hang."""

from collections import Counter
from pathlib import Path

import pytest

from redenvelope.plan.plan import Plan
from redenvelope.simulate.finite import FiniteCampaign
from tests.two_step_plan import campaign, log, plan

from .trials import Good, plan_trial, used

__all__ = ["campaign", "log", "plan"]


@pytest.fixture
def good(plan: Plan, campaign: FiniteCampaign, tmp_path: Path) -> Good:
    frame = campaign.log(200, seed=5)
    frame.write_parquet(tmp_path / "log.parquet")
    used(plan, frame, draw=False)  # compiled here, so that no trial waits for it
    return Good(plan.save(tmp_path / "good", {"report.html": b"<p>a report</p>"}), tmp_path / "log.parquet")


def test_mutated_plans_are_refused_or_work(good: Good, tmp_path: Path) -> None:
    ended = Counter(plan_trial(number, tmp_path, good) for number in range(150))
    # Most parts matter, and not all: an adversary whose changes go unnoticed would be none, nor one who never gets in.
    assert ended["refused"] > 75
    assert ended["used"] > 15
