"""The best untargeted mixture at the plan's own cost, beside the plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from redenvelope import FiniteCampaign, Log, Plan, log_from_frame
from redenvelope.evaluation.confidence import Estimate
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.fitting.encoded import EncodedLog, encode
from redenvelope.fitting.record import FixedActions, given_actions
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.log import ActionCatalogue
from redenvelope.plan.record import Untargeted
from tests.two_step_plan import true_value

USERS, STEPS = 4_000, 2
REWARDS, COSTS = np.array([0.0, 0.5, 0.6]), np.array([0.0, 1.0, 3.0])
LABELS = ("none", "push", "coupon")


def logged(seed: int = 0) -> tuple[Log, np.ndarray]:
    """Rewards and costs depend on the action alone, with noise; half of the rows may not get a push, and a quarter no
    coupon. The second value says what each row may get, [rows, actions]."""
    rng = np.random.default_rng(seed)
    rows = USERS * STEPS
    allowed = np.stack([np.ones(rows, bool), rng.random(rows) < 0.5, rng.random(rows) < 0.75], axis=1)
    action = np.array([rng.choice(np.flatnonzero(row)) for row in allowed])
    frame = pl.DataFrame(
        {
            "user": np.repeat(np.arange(USERS), STEPS),
            "step": np.tile(np.arange(STEPS), USERS),
            "action": np.array(LABELS, dtype=object)[action].tolist(),
            "propensity": 1 / allowed.sum(axis=1),
            "reward": REWARDS[action] + rng.normal(0, 0.3, rows),
            "cost": COSTS[action] + rng.uniform(0, 0.1, rows),
            "visits": rng.integers(0, 9, rows),
            "eligible": [[LABELS[place] for place in np.flatnonzero(row)] for row in allowed],
        }
    )
    return log_from_frame(frame), allowed


@pytest.fixture(scope="module")
def fold() -> tuple[EncodedLog, np.ndarray]:
    log, allowed = logged()
    return encode(log, Encoder.fit(log), STEPS), allowed


def fixed(outcomes: np.ndarray) -> FixedActions:
    """With a model that predicts nothing: the estimates are then by weights alone."""
    valuer = SimpleNamespace(outcomes=lambda states: np.zeros((2, len(states), len(LABELS))))
    policy: Any = SimpleNamespace(
        valuer=valuer, constraint=None, catalogue=ActionCatalogue(LABELS, numeric=False), members=(None,)
    )
    policy.outcomes = lambda states, keys: valuer.outcomes(states)
    return FixedActions(policy, np.zeros((1, 2, 1 + STEPS, len(LABELS))), outcomes[None])


def truth(allowed: np.ndarray) -> np.ndarray:
    """Reward and cost per user of each action given to everybody, [outcomes, actions]: where it is not eligible,
    nothing is given."""
    may = allowed.mean(axis=0)
    return STEPS * np.stack([REWARDS * may, COSTS * may + 0.05])


def test_a_fixed_action_is_given_where_it_is_eligible(fold: tuple[EncodedLog, np.ndarray]) -> None:
    encoded, allowed = fold
    given = given_actions(encoded, None, np.arange(3))
    assert (given[allowed] == np.broadcast_to(np.arange(3), allowed.shape)[allowed]).all()
    assert (given[~allowed] == 0).all()


def test_fixed_actions_are_estimated_over_the_whole_campaign(fold: tuple[EncodedLog, np.ndarray]) -> None:
    encoded, allowed = fold
    found = fixed(np.empty(0)).evaluated(encoded, np.arange(3), Marginalised(seed=0))
    # Six estimates within 4 of their standard errors: chance alone exceeds that once in 2,600 times.
    assert (np.abs(found.value - truth(allowed)) <= 4 * found.standard_error + 1e-9).all()


FACTOR = 1.2
"""On the errors of both, for what the estimator learned."""


def beside(
    fold: tuple[EncodedLog, np.ndarray], shares: tuple[float, ...], cost: float, bonus: float = 0.0
) -> tuple[Untargeted, np.ndarray]:
    """What a plan adds that is itself a mixture of fixed actions, and earns `bonus` more, where its cost is said to be
    so much."""
    encoded, allowed = fold
    estimator, policies = Marginalised(seed=0), fixed(truth(allowed))
    added = policies.evaluated(encoded, np.arange(3), estimator).influence() @ np.array(shares)
    means = added.mean(axis=1, keepdims=True)
    added = means + FACTOR * (added - means)
    added[0] += bonus
    check: Any = SimpleNamespace(log=encoded.log, evaluation=SimpleNamespace(estimator=estimator), shown=None)
    figure = SimpleNamespace(cost=Estimate(cost, cost, cost, 0.0, "marginalised"))
    certificate: Any = SimpleNamespace(budgets=(figure,), confidence=0.95)
    return policies.beside(added, check, encoded, certificate, np.full(2, FACTOR))


def test_the_mixture_lies_on_the_hull_at_the_cost_of_the_plan(fold: tuple[EncodedLog, np.ndarray]) -> None:
    (_, costs), cost = truth(fold[1]), 0.8
    found, _ = beside(fold, (1.0, 0.0, 0.0), cost)
    # A push earns 0.5 for 1, a coupon 0.1 more for 2 more: up to the cost of a push, only pushes are worth giving.
    assert found.actions == ("none", "push")
    assert np.dot(found.shares, costs[:2]) == pytest.approx(cost)
    dearer, _ = beside(fold, (1.0, 0.0, 0.0), 2.0)
    assert dearer.actions == ("push", "coupon")


def test_a_plan_that_targets_nothing_adds_nothing(fold: tuple[EncodedLog, np.ndarray]) -> None:
    """Also where the mixture's cost is not the plan's: what the difference in cost buys is not what targeting adds."""
    _, costs = truth(fold[1])
    for share in (0.3, 0.5, 0.7):
        found, mixture = beside(fold, (1 - share, share, 0.0), 0.5 * costs[1] + 0.5 * costs[0])
        assert found.lower <= 0 <= found.upper
        assert abs(found.adds) < 0.02  # 0.2 · 0.5 would be due to cost alone
        assert mixture.shape == (2, USERS)
        assert "the log cannot show that targeting helps" in found.sentence(0.95)


def test_what_a_plan_adds_is_paired_by_user(fold: tuple[EncodedLog, np.ndarray]) -> None:
    _, costs = truth(fold[1])
    found, _ = beside(fold, (0.5, 0.5, 0.0), 0.5 * costs[1] + 0.5 * costs[0], bonus=0.1)
    # The same users on both sides: what is left is the bonus, and the rounding of the shares.
    assert found.adds == pytest.approx(0.1, abs=1e-3)
    assert found.upper - found.lower < 1e-3
    assert found.sentence(0.95).startswith("The plan earns 0.1 more reward per user")


def test_a_plan_cheaper_than_any_fixed_action_is_compared_as_it_is(fold: tuple[EncodedLog, np.ndarray]) -> None:
    found, _ = beside(fold, (1.0, 0.0, 0.0), 0.01)
    assert found.actions == ("none",)
    assert found.adds == pytest.approx(0.0, abs=1e-9)
    assert "giving 'none' to everybody" in found.sentence(0.95)


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.1, 0.3), "at the same cost."),
        ((-0.1, 0.5), "the log cannot show that targeting helps"),
        ((-0.4, -0.1), "targeting and exploration cost more than they bring"),
    ],
)
def test_the_sentence_says_what_the_interval_shows(interval: tuple[float, float], words: str) -> None:
    found = Untargeted(("a", "b", "c"), (0.5, 0.31, 0.19), sum(interval) / 2, *interval)
    assert words in found.sentence(0.95)
    assert "giving 'c' to a random 19% of users, 'b' to 31% and 'a' to the others" in found.sentence(0.95)


def test_a_fit_compares_its_plan_with_the_best_untargeted_mixture(plan: Plan, campaign: FiniteCampaign) -> None:
    """Against exact values: the mixture's own, and what the plan adds to it."""

    def exactly(action: int) -> np.ndarray:
        def decide(frame: pl.DataFrame) -> np.ndarray:
            return np.eye(4)[np.full(len(frame), action)]

        found = campaign.value(decide)
        return np.array([found.reward, found.cost])

    found = plan.record.untargeted
    assert found is not None
    row = next(row for row in plan.record.comparison if row.policy == "untargeted")
    places = [plan.catalogue.labels.index(label) for label in found.actions]
    reward, cost = sum(share * exactly(place) for share, place in zip(found.shares, places, strict=True))
    assert abs(row.reward - reward) < 4 * row.reward_error
    assert abs(row.cost - cost) < 4 * row.cost_error
    assert abs(row.cost - plan.certificate.cost.estimate) < 4 * row.cost_error
    own, (first, second) = true_value(campaign, plan), (exactly(place) for place in places)
    price = (second[0] - first[0]) / (second[1] - first[1])
    adds = own.reward - reward - price * (own.cost - cost)
    assert abs(found.adds - adds) < 4 * (found.upper - found.lower) / (2 * 1.96)
