"""Exploration: how large a share is usual, and what the next log is worth by it."""

from dataclasses import replace

import numpy as np
import pytest

from redenvelope import FitSettings, Log, Plan
from redenvelope.fitting.encoded import EncodedLog, encode
from redenvelope.fitting.holdout import DecidedRows
from redenvelope.fitting.price_grid import effective_share, exploration_loss_at, exploration_share
from redenvelope.fitting.settings import EXPLORE
from redenvelope.plan.fixed_sequence_test import Question
from tests.plan.rule_world import plan_with, rows_at, small_log
from tests.quick_programs import quick_programs


def pilot(plan: Plan, log: Log) -> EncodedLog:
    return encode(log, plan.policy.encoder, plan.policy.specification.steps).pilot_users(500, 0)


def share_of(plan: Plan, log: Log, budget: float | None, target: float | None = None) -> float:
    return exploration_share(plan.policy, pilot(plan, log), log, Question.of(budget, target, 0.95))


def test_the_usual_share_is_cheap(plan: Plan, log: Log) -> None:
    """What even choice takes of the budget, and loses of the gain, by the model's own figures of single decisions."""
    users = pilot(plan, log)
    rewards, costs = 2 * plan.policy.valuer.outcomes(users.states)
    even, cheapest = costs.mean(), costs.min(axis=1).mean()
    # The one-step frontier: mixtures of the best choices at all prices.
    prices = np.append(np.geomspace(1e-3, 1e3, 2_000), 1e9)
    best = [(rewards - price * costs).argmax(axis=1)[:, None] for price in prices]
    curve = np.array([[np.take_along_axis(each, own, 1).mean() for own in best] for each in (costs, rewards)])
    shares = []
    for budget in (1.005 * cheapest, 1.1 * cheapest, 1.5 * cheapest):
        share = share_of(plan, log, budget)
        assert 0 < share <= EXPLORE
        assert share * (even - cheapest) <= 0.03 * budget
        gain = np.interp(budget, *curve[:, ::-1]) - curve[1, -1]
        price = prices[np.flatnonzero(curve[0] <= budget)[0]]
        lost = (rewards - price * costs).max(axis=1).mean() - (rewards - price * costs).mean()
        assert share * lost <= 0.03 * gain * 1.05  # prices of this grid are not those of the search
        shares.append(share)
    assert shares[0] < shares[1] <= shares[2] == EXPLORE
    assert share_of(plan, log, None, float(rewards.mean())) <= EXPLORE


@pytest.mark.parametrize("kind", ["model", "learned"])
def test_every_eligible_action_has_at_least_its_share_of_chance(kind: str) -> None:
    with quick_programs():
        decisions, _ = plan_with((), explore=0.2, kind=kind).allocate(rows_at(0, 200, 3))
        hard, _ = plan_with((), explore=0.0, kind=kind).allocate(rows_at(0, 200, 3))
    assert decisions["propensity"].min() >= 0.2 / 4 * 0.999
    assert hard["propensity"].max() > decisions["propensity"].max()


def test_what_learned_plans_lose_by_exploring_counts_every_step() -> None:
    """Random values: every step loses what choosing evenly there loses, whatever follows."""
    policy, log = plan_with((), explore=0.2, kind="learned").policy, small_log()
    users = encode(log, policy.encoder, policy.specification.steps)
    found = exploration_loss_at(policy, users, (0.3,))
    # By hand, row by row: the values of the policy's own choice, less those of the mixture with even choice.
    decided = replace(policy, specification=replace(policy.specification, explore=0.0)).valuer.values(
        users.states, users.steps_left, policy.pricing.table
    )
    worth = decided.to_go[0, :, 0] - 0.3 * decided.to_go[1, :, 0]
    lost = 0.2 * ((decided.probabilities[:, 0] * worth).sum(axis=1) - worth.mean(axis=1))
    assert found == pytest.approx(lost.sum() / len(log.users), rel=1e-3)
    assert found > 2 * lost[log.starts[:-1]].mean(), "the first of four steps is not all"


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
