"""The walk along the ladder: its promise by Monte Carlo, and what it does where rungs end, jump or are doubted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope import UsageError
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.influence import NeighbourSums
from redenvelope.plan.fixed_sequence_test import climb, descend
from redenvelope.plan.ladder import Ladder, Place, new_ladder

COSTS = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
REWARDS = np.sqrt(COSTS)
DOUBT = Reason("thin_overlap", Weight.REFUSAL, "too few")


def sums_of(samples: np.ndarray) -> NeighbourSums:
    """Of what users add, [outcomes, users, rungs], written out."""
    means = samples.mean(axis=1)
    here = samples - means[:, None]
    left, right = here[..., :-1], here[..., 1:]
    products = np.stack([(left * right).mean(1), (left**2 * right).mean(1), (left * right**2).mean(1)])
    return NeighbourSums(samples.shape[1], means, (here**2).mean(1), (here**3).mean(1), products)


def ladder_of(samples: np.ndarray, doubted: tuple[int, ...] = ()) -> Ladder:
    rungs = samples.shape[2]
    prices = np.append(np.inf, np.linspace(1.0, 0.0, rungs - 1))[:, None]
    reasons = [(DOUBT,) if rung in doubted else () for rung in range(rungs)]
    return new_ladder(prices, sums_of(samples), reasons, [{}] * rungs, "test")


def drawn(generator: np.random.Generator, users: int = 400, spread: float = 3.0) -> np.ndarray:
    """Users with a taste of their own, the same at all prices, and noise of each: [outcomes, users, rungs]."""
    taste = generator.normal(0, spread, (2, users, 1))
    noise = generator.normal(0, spread, (2, users, len(COSTS)))
    return np.stack([REWARDS, COSTS])[:, None] + taste + noise


def exactly(spread: float = 0.0) -> Ladder:
    """Nothing uncertain, or the same number of standard errors on every rung."""
    deviations = np.array([-1.0, 1.0, -1.0, 1.0])[None, :, None] * spread
    return ladder_of(np.stack([REWARDS, COSTS])[:, None] + np.broadcast_to(deviations, (2, 4, len(COSTS))))


def true_cost(place: Place) -> float:
    return float(COSTS[place.rung] + (place.share and place.share * (COSTS[place.rung + 1] - COSTS[place.rung])))


@pytest.mark.parametrize("budget", [3.0, 3.5])
def test_the_promise_holds_at_its_level_and_nothing_is_left_on_the_table(budget: float) -> None:
    generator = np.random.default_rng(1)
    stops = [climb(ladder_of(drawn(generator)), [budget], 0.95) for _ in range(1_500)]
    assert all(stop.holds for stop in stops)
    costs = np.array([true_cost(stop.place) for stop in stops])
    over = np.mean(costs > budget)
    # Of 1,500 walks 5 % go too far if the level is used up: 3.6 standard errors of 0.56 % to either side.
    assert 0.03 < over < 0.07
    # The estimate of a cost has a standard error of 0.21, of which 1.64 lie below the budget.
    assert np.mean(costs) == pytest.approx(budget - 1.645 * 3 * np.sqrt(2 / 400), abs=0.08)


def test_a_walk_does_not_go_on_after_a_bound_has_failed() -> None:
    samples = drawn(np.random.default_rng(2), users=4_000, spread=0.1)
    samples[1, :, 1] += 10  # a price that is dear by mistake
    stop = climb(ladder_of(samples), [4.5], 0.95)
    assert stop.place.rung == 0


def test_mixtures_fill_the_jumps_to_the_budget_exactly() -> None:
    stop = climb(exactly(), [3.5], 0.95)
    assert stop.place == Place(2, 0.5)
    pricing = exactly().pricing(stop.place)
    assert pricing.shares == (0.5, 0.5)
    assert pricing.prices[0] < pricing.prices[1], "the cheaper price, which is the dearer plan, comes first"
    assert climb(exactly(), [3.001], 0.95).place == Place(2), "too little to be worth two prices"


def test_the_bound_of_a_mixture_is_that_of_the_mixed_users() -> None:
    samples = np.random.default_rng(3).gamma(0.3, 2.0, (2, 700, 6)) * COSTS
    ladder, share = ladder_of(samples), 0.3
    mixed = 0.7 * samples[:, :, 2] + 0.3 * samples[:, :, 3]
    whole = ladder_of(mixed[:, :, None])
    for own, expected in zip(ladder.figures(Place(2, share), 0.9), whole.figures(Place(0), 0.9), strict=True):
        np.testing.assert_allclose(
            [own.estimate, own.lower, own.upper, own.standard_error],
            [expected.estimate, expected.lower, expected.upper, expected.standard_error],
        )


def test_a_budget_that_does_not_bind_and_one_that_nothing_meets() -> None:
    slack = climb(exactly(), [100.0], 0.95)
    assert (slack.place, slack.status, slack.holds) == (Place(5), "budget_slack", True)
    dear = climb(exactly(), [0.5], 0.95)
    assert (dear.place, dear.status, dear.holds) == (Place(0), "budget_infeasible", False)
    unsure = climb(exactly(spread=30.0), [4.5], 0.95)
    assert (unsure.place, unsure.status, unsure.holds) == (Place(3), "converged", False)


def test_doubted_rungs_are_stepped_over_and_never_stood_on() -> None:
    samples = drawn(np.random.default_rng(4), users=4_000, spread=0.01)
    assert climb(ladder_of(samples, doubted=(0, 1)), [4.5], 0.95).place.rung == 3
    # The next rung is doubted, so there is nothing to mix with.
    assert climb(ladder_of(samples, doubted=(4,)), [4.5], 0.95).place == Place(3)
    assert not climb(ladder_of(samples, doubted=tuple(range(6))), [4.5], 0.95).holds


def test_a_target_is_reached_from_above_at_least_cost() -> None:
    stop = descend(exactly(), float((REWARDS[2] + REWARDS[3]) / 2), 0.95)
    assert stop.place == Place(2, 0.5)
    generator = np.random.default_rng(5)
    stops = [descend(ladder_of(drawn(generator, spread=0.5)), 1.9, 0.95) for _ in range(800)]
    assert all(stop.holds for stop in stops)
    reached = [np.interp(true_cost(stop.place), COSTS, REWARDS) for stop in stops]
    # 5 % of 800 with 3.6 standard errors of 0.77 %: mixtures earn the straight line, so the truth is interpolated.
    assert 0.022 < np.mean(np.array(reached) < 1.9) < 0.078
    assert not descend(exactly(), 50.0, 0.95).holds


def test_every_budget_must_hold() -> None:
    one = drawn(np.random.default_rng(6), users=4_000, spread=0.01)
    both = np.concatenate([one, 2 * one[1:]])
    sums = sums_of(both)
    ladder = new_ladder(np.zeros((6, 2)), sums, [()] * 6, [{}] * 6, "test")
    assert climb(ladder, [100.0, 7.0], 0.95).place.rung == 2
    assert climb(ladder, [2.5, 100.0], 0.95).place.rung == 1
    with pytest.raises(UsageError, match="the plan has 2 costs"):
        climb(ladder, [3.0], 0.95)


def test_a_ladder_of_one_rung() -> None:
    alone = replace(exactly(), rungs=exactly().rungs[-1:])
    assert climb(alone, [7.0], 0.95).holds
    assert not climb(alone, [5.0], 0.95).holds


def test_shadow_prices_are_finite() -> None:
    """At the cheapest plan, more budget buys at least what the next price says."""
    assert exactly().duals(Place(0)) == exactly().duals(Place(0, 0.5)) == exactly().duals(Place(1)) == (1.0,)
    assert exactly().duals(Place(5)) == (0.0,)
    alone = replace(exactly(), rungs=(replace(exactly().rungs[0], products=()),))
    assert alone.duals(Place(0)) == (0.0,), "there is nothing that more budget could buy"
