"""The price that is read off a curve of estimates: it lands where it should, with its margin, and across jumps."""

import numpy as np
import pytest

from redenvelope.dual.curve import MonotoneCurve
from redenvelope.fitting.search import Searched, curve_table, land, safety_margin
from redenvelope.fitting.settings import SearchSettings

PRICES = np.array([0.0, 1.0, 2.0, 4.0, np.inf])
SETTINGS = SearchSettings()
EQUAL_FOLDS = safety_margin(0.95, 1000, 1000, 0.9)


def curve(costs: list[float], error: float = 0.1) -> MonotoneCurve:
    values = np.array([np.array(costs) + 1, costs])
    return MonotoneCurve(PRICES, values, np.full_like(values, error))


def search(points: MonotoneCurve, budget: float, margin: float) -> Searched:
    """Search a curve that is straight between its points."""

    def estimate(prices: np.ndarray) -> MonotoneCurve:
        values = points(prices[:, None])
        return MonotoneCurve(prices, values, np.full_like(values, points.errors[0, 0]))

    return land(points, estimate, budget, margin, SETTINGS, 1000)


def test_the_budget_is_met_without_a_margin() -> None:
    result = search(curve([5.0, 4.0, 3.0, 1.0, 0.0]), 3.5, 0.0)
    assert result.target == pytest.approx(3.5, rel=1e-12)
    assert 1 < result.landing.price < 2
    assert result.pricing.prices == ((result.landing.price,),)


def test_the_margin_is_what_the_certificate_needs() -> None:
    # Equal folds: 1.645 standard errors for the bound, 1.2816 · √2 for the noise of both folds.
    assert pytest.approx(1.64485 + 1.28155 * np.sqrt(2), abs=1e-4) == EQUAL_FOLDS
    result = search(curve([5.0, 4.0, 3.0, 1.0, 0.0]), 3.5, EQUAL_FOLDS)
    assert result.target == pytest.approx(3.5 - 0.1 * EQUAL_FOLDS, abs=1e-9)
    fewer = search(curve([5.0, 4.0, 3.0, 1.0, 0.0]), 3.5, safety_margin(0.95, 1000, 250, 0.9))
    assert fewer.target < result.target


def test_a_passing_chance_of_nine_in_ten_is_kept() -> None:
    # Both folds estimate the true cost with an error of 0.1; the plan sits where the search fold put it.
    generator = np.random.default_rng(0)
    truth, passed = np.array([5.0, 4.0, 3.0, 1.0, 0.0]), []
    for _ in range(400):
        search_noise, certify_noise = generator.normal(0, 0.1, size=2)
        found = search(curve(list(truth + search_noise)), 3.5, EQUAL_FOLDS)
        cost = curve(list(truth)).cost_at(found.landing.price)
        passed.append(cost + certify_noise + 1.6449 * 0.1 <= 3.5)
    # A binomial of 400 with 0.9 lies within 0.85 and 0.95 but for one case in a thousand.
    assert 0.85 <= np.mean(passed) <= 0.95


def test_slack_and_infeasible_are_outcomes() -> None:
    rich = search(curve([5.0, 4.0, 3.0, 1.0, 0.5]), 9.0, 0.0)
    assert (rich.landing.status, rich.landing.price) == ("budget_slack", 0.0)
    assert "more than the best plan can use" in rich.message
    poor = search(curve([5.0, 4.0, 3.0, 1.0, 0.5]), 0.2, 0.0)
    assert poor.landing.status == "budget_infeasible"
    assert "the cheapest one costs 0.5" in poor.message


@pytest.mark.parametrize("margin", [0.0, 1.0])
def test_a_jump_is_found_and_mixed(margin: float) -> None:
    """At a price of 1.3 the plan falls from 4 to 1, as hard plans do; no price spends 3."""
    jump, error = 1.3, 0.01

    def estimate(prices: np.ndarray) -> MonotoneCurve:
        costs = np.where(prices < jump, 4.0, 1.0)
        return MonotoneCurve(prices, np.stack([costs, costs]), np.full((2, len(prices)), error))

    result = land(estimate(PRICES), estimate, 3.0, margin, SETTINGS, 1000)
    (low, high), (share, rest) = result.landing.prices, result.landing.shares
    assert low < jump <= high
    # Eight further prices twice narrow the gap from 1 to 1/81.
    assert high - low <= 1 / 81 + 1e-9
    assert share == pytest.approx((3.0 - margin * error - 1.0) / 3.0)
    assert share + rest == pytest.approx(1.0)
    # What the mixture really costs: the budget, less the margin.
    assert share * 4.0 + rest * 1.0 == pytest.approx(3.0 - margin * error)
    assert result.target == pytest.approx(3.0 - margin * error)


def test_the_table_has_bounds_around_what_was_estimated() -> None:
    noisy = curve([5.0, 3.0, 3.4, 1.0, 0.0])
    table = curve_table(noisy, 0.95)
    np.testing.assert_allclose(table["cost"], [5.0, 3.2, 3.2, 1.0, 0.0])
    np.testing.assert_allclose(table["cost_upper"] - table["cost_lower"], 2 * 1.959964 * 0.1, rtol=1e-6)
    np.testing.assert_allclose((table["cost_upper"] + table["cost_lower"]) / 2, noisy.outcomes[1])


def test_the_record_shows_the_prices_around_the_one_found() -> None:
    record = search(curve([5.0, 4.0, 3.0, 1.0, 0.0]), 3.5, EQUAL_FOLDS).record()
    assert record.status == "converged"
    costs = [point.cost for point in record.points]
    assert costs == sorted(costs, reverse=True)
    assert min(costs) <= 3.5 <= max(costs)
