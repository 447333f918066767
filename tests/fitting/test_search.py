import numpy as np
import pytest

from redenvelope.dual.newton import Newton
from redenvelope.fitting.search import MonotonePrice, OffPolicyCurve, SearchResult, search_price

DUALS = np.array([0.0, 1.0, 2.0, 4.0, np.inf])


def curve(costs: list[float], error: float = 0.1, users: int = 1000) -> OffPolicyCurve:
    errors = np.full(len(costs), error)
    return OffPolicyCurve(DUALS, np.array(costs), errors, np.array(costs) + 1, errors, users)


def search(points: OffPolicyCurve, budget: float, users: int | None) -> SearchResult:
    """Search a curve that is straight between its points."""
    line = MonotonePrice(points.duals, points.costs, points.rewards)

    def estimate(duals: np.ndarray) -> OffPolicyCurve:
        rewards, costs = line(duals)
        errors = np.full(len(duals), points.cost_errors[0])
        return OffPolicyCurve(duals, costs, errors, rewards, errors, points.users)

    return search_price(points, estimate, budget, Newton(), 0.95, users)


def test_the_price_goes_through_its_points_and_falls_between() -> None:
    price = MonotonePrice(DUALS, np.array([5.0, 4.0, 3.0, 2.0, 0.0]), np.array([9.0, 8.0, 7.0, 6.0, 5.0]))
    np.testing.assert_allclose(price(DUALS)[1], [5, 4, 3, 2, 0])
    rewards, costs = price(np.array([0.5, 1.5, 100.0]))
    assert 4 < costs[0] < 5
    assert 3 < costs[1] < 4
    assert 0 < costs[2] < 2
    assert (np.diff(rewards) < 0).all()


def test_noise_that_makes_the_cost_rise_is_pooled() -> None:
    noisy = curve([5.0, 3.0, 3.4, 1.0, 0.0])
    np.testing.assert_allclose(noisy.monotone_costs, [5.0, 3.2, 3.2, 1.0, 0.0])
    assert noisy.mended == pytest.approx(0.2)
    assert curve([5.0, 4.0, 3.0, 1.0, 0.0]).mended == 0


def test_the_budget_is_met_without_a_margin() -> None:
    result = search(curve([5.0, 4.0, 3.0, 1.0, 0.0]), 3.5, None)
    assert result.solution.cost == pytest.approx(3.5, rel=1e-5)
    assert 1 < result.solution.dual < 2


def test_the_margin_is_what_the_certificate_needs() -> None:
    # Equal folds: 1.645 standard errors for the bound, 1.2816 · √2 for the noise of both folds.
    result = search(curve([5.0, 4.0, 3.0, 1.0, 0.0]), 3.5, 1000)
    assert result.target == pytest.approx(3.5 - 0.1 * (1.6449 + 1.2816 * np.sqrt(2)), abs=1e-4)
    fewer = search(curve([5.0, 4.0, 3.0, 1.0, 0.0]), 3.5, 250)
    assert fewer.target < result.target


def test_a_passing_chance_of_nine_in_ten_is_kept() -> None:
    # Both folds estimate the true cost with an error of 0.1; the plan sits where the search fold put it.
    generator = np.random.default_rng(0)
    truth, passed = np.array([5.0, 4.0, 3.0, 1.0, 0.0]), []
    for _ in range(400):
        search_noise, certify_noise = generator.normal(0, 0.1, size=2)
        found = search(curve(list(truth + search_noise)), 3.5, 1000)
        cost = MonotonePrice(DUALS, truth, truth)(np.array([found.solution.dual]))[1, 0]
        passed.append(cost + certify_noise + 1.6449 * 0.1 <= 3.5)
    # A binomial of 400 with 0.9 lies within 0.85 and 0.95 but for one case in a thousand.
    assert 0.85 <= np.mean(passed) <= 0.95


def test_slack_and_infeasible_are_outcomes() -> None:
    assert search(curve([5.0, 4.0, 3.0, 1.0, 0.5]), 9.0, None).solution.status == "budget_slack"
    poor = search(curve([5.0, 4.0, 3.0, 1.0, 0.5]), 0.2, None).solution
    assert poor.status == "budget_infeasible"
    assert poor.least_budget == pytest.approx(0.5)


def test_a_jump_is_found_and_mixed() -> None:
    """At a price of 1.3 the plan falls from 4 to 1, as hard plans do; no price spends 3."""
    jump = 1.3

    def estimate(duals: np.ndarray) -> OffPolicyCurve:
        costs, errors = np.where(duals < jump, 4.0, 1.0), np.full(len(duals), 0.01)
        return OffPolicyCurve(duals, costs, errors, costs, errors, 1000)

    result = search_price(estimate(DUALS), estimate, 3.0, Newton(), 0.95, None)
    mixture = result.solution.mixture
    assert mixture is not None
    assert mixture.low_dual < jump <= mixture.high_dual
    # 63 further duals twice narrow the gap from 1 to 1/4096.
    assert mixture.high_dual - mixture.low_dual <= 1 / 4096 + 1e-9
    assert mixture.low_share == pytest.approx(2 / 3)
    assert result.target == pytest.approx(3.0)
