"""Exploration: how large a share is usual, and what the next log is worth by it."""

import numpy as np
import pytest

from redenvelope import FitSettings
from redenvelope.fitting.holdout import DecidedRows
from redenvelope.fitting.price_grid import effective_share
from redenvelope.fitting.settings import EXPLORE, usual_share
from redenvelope.log.limits import TINY_PROPENSITY
from tests.plan.rule_world import plan_with, rows_at, small_log
from tests.quick_programs import quick_programs


@pytest.mark.parametrize("actions", [2, 6, 19, 20, 51, 300, 999])
def test_the_usual_share_leaves_no_tiny_propensity(actions: int) -> None:
    least = np.float32(usual_share(actions)) / np.float32(actions)
    assert least >= TINY_PROPENSITY
    assert usual_share(actions) == EXPLORE or actions > 19


@pytest.mark.parametrize("kind", ["model", "learned"])
def test_every_eligible_action_has_at_least_its_share_of_chance(kind: str) -> None:
    with quick_programs():
        decisions, _ = plan_with((), explore=0.2, kind=kind).allocate(rows_at(0, 200, 3))
        hard, _ = plan_with((), explore=0.0, kind=kind).allocate(rows_at(0, 200, 3))
    assert decisions["propensity"].min() >= 0.2 / 4 * 0.999
    assert hard["propensity"].max() > decisions["propensity"].max()


def test_effective_users_are_those_that_weights_leave() -> None:
    # Two of four actions are eligible in the second half of the rows; one in ten decisions is left to chance.
    log, rng = small_log(), np.random.default_rng(0)
    eligible = np.ones((len(log), 4), dtype=bool)
    eligible[len(log) // 2 :, 2:] = False
    best = rng.integers(0, 2, len(log))
    even = eligible / eligible.sum(axis=1, keepdims=True)
    probabilities = 0.9 * np.eye(4)[best] + 0.1 * even
    decided = DecidedRows(log, probabilities, np.zeros(len(log)))
    found = effective_share(decided, eligible)
    # What drawing such a log very often gives: Kish's effective share at the worst step.
    shares = []
    for step in np.unique(log.step):
        rows = np.flatnonzero(log.step == step)
        drawn = rows[rng.integers(0, len(rows), 400_000)]
        cumulative = probabilities[drawn].cumsum(axis=1)
        action = (rng.random((len(drawn), 1)) > cumulative).sum(axis=1)
        weights = even[drawn, action] / probabilities[drawn, action]
        shares.append(weights.sum() ** 2 / (weights**2).sum() / len(weights))
    assert found == pytest.approx(min(shares), rel=0.02)


def test_shares_outside_of_0_and_1_are_refused() -> None:
    with pytest.raises(ValueError, match="explore is a share"):
        FitSettings(explore=1.5)
