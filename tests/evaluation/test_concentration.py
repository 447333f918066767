"""Concentration: where one user decides a bound it is refused; tame campaigns are not, and a cap makes bounds hold."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.evaluation.confidence import Concentration, Spread, decided_by_few
from redenvelope.evaluation.diagnostics import Reason, Weight


def few(added: np.ndarray) -> Reason | None:
    return decided_by_few(float(added.max()), Spread.of(added))


def with_whales(generator: np.random.Generator, users: int, share: float, times: float) -> np.ndarray:
    return generator.exponential(size=users) * np.where(generator.random(users) < share, times, 1.0)


def test_one_of_many_equal_users_moves_a_mean_by_one_over_their_root() -> None:
    """Of n users of whom k cost 1 and the others nothing, one moves the mean by √((1 − k/n)/k) standard errors: 0.71 of
    two, 0.58 of three."""
    costs = np.zeros(10_000)
    costs[:3] = 1.0
    assert few(costs) is None
    costs[2] = 0.0
    reason = decided_by_few(1.0, Spread.of(costs), "cost", "cluster")
    assert reason is not None and (reason.rule, reason.weight) == ("concentrated", Weight.REFUSAL)
    assert reason.message.startswith("one cluster alone moves the estimated cost by 0.7 standard errors")
    assert "--most-per-user" in reason.message
    assert few(np.zeros(10)) is None


def test_what_changes_nothing_that_matters_is_no_reason() -> None:
    """All users cost 1, and one costs 9 more: 0.08 % of the total of 10,000, although it is all of the spread."""
    costs = np.ones(10_000)
    costs[0] += 9
    assert few(costs) is None
    costs[0] += 9
    assert few(costs) is not None


@pytest.mark.parametrize("share", [0.0005, 0.001, 0.002])
@pytest.mark.parametrize("times", [20, 50, 90])
def test_whales_are_refused_or_covered(share: float, times: float) -> None:
    """Of 200 logs of 8,000 users, four in ten of whom check, at most 5 % may be certified below the truth: 10, and up
    to 19 by chance (three standard errors). Without the rule, 0.05 % × 90 alone has about 50."""
    generator, over = np.random.default_rng(5), 0
    for _ in range(200):
        costs = with_whales(generator, 8_000, share, times)
        spread = Spread.of(costs[:3_200])
        largest = np.maximum(costs[:3_200].max(), Concentration.of(costs).influence(spread.mean, np.array(1.0)))
        refused = decided_by_few(float(largest), spread) is not None
        over += not refused and spread.upper(0.95) < 1 + share * (times - 1)
    assert over <= 19


@pytest.mark.parametrize("users", [800, 3_200])
def test_tame_costs_are_not_refused(users: int) -> None:
    generator = np.random.default_rng(users)
    tame = [generator.normal(5, 1, users), *(generator.exponential(size=users) for _ in range(20))]
    assert all(few(costs) is None for costs in tame)
    # Log-normal amounts with σ = 0.8 are refused now and then where few users check: in at most one of ten samples.
    refused = [few(generator.lognormal(0, 0.8, users)) is not None for _ in range(100)]
    assert np.mean(refused) <= 0.1


def test_users_of_other_folds_count_as_the_plan_would_follow_them() -> None:
    costs = Concentration.of(np.array([1.0] * 99 + [101.0]))
    assert (costs.users, costs.total, costs.largest) == (100, 200.0, 99.0)
    # Spending half of what was logged, with weights of 4 where it follows; spending more is following all of it.
    found = costs.influence(np.array([1.0, 3.0, -0.5]), np.array([4.0, 1.0, 1.0]))
    assert found.tolist() == [199.0, 102.0, -0.5]
    # What an action always costs is no excess.
    assert Concentration.of([0.0, 45.0, 0.0, 45.0], [0.0, 45.0, 0.0, 45.0]).largest == 0.0


def test_batches_merge_to_all_users() -> None:
    costs = with_whales(np.random.default_rng(3), 4_500, 0.01, 50.0)
    usual = 1.5
    parts = [Concentration.of(own, np.full(len(own), usual)) for own in (costs[:700], costs[700:])]
    assert parts[0].merge(parts[1]) == Concentration(4_500, pytest.approx(costs.sum()), costs.max() - usual)


def test_bounds_of_capped_costs_hold_for_any_tail() -> None:
    """One user of 500 costs the cap of 40, all others nothing: in 200 users most samples have none of them, so that any
    normal bound is 0, and the truth is 0.08."""
    generator, normal, bounded = np.random.default_rng(1), 0, 0
    for _ in range(400):
        spread = Spread.of(40.0 * (generator.random(200) < 0.002))
        normal += spread.upper(0.95) < 0.08
        bounded += spread.bounded_upper(0.95, 40.0) < 0.08
    assert normal > 200
    assert bounded == 0
    # By hand (Maurer and Pontil 2009, theorem 4): n = 4, mean 1, variance 2/3, numbers from 0 to 2, ln 40 = 3.689.
    four = Spread.of(np.array([0.0, 1.0, 1.0, 2.0]))
    expected = 1 + np.sqrt(2 * (2 / 3) * np.log(40) / 4) + 7 * 2 * np.log(40) / 9
    assert float(four.bounded_upper(0.95, 2.0)) == pytest.approx(expected)
