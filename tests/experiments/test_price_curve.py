"""The curve of a budget: made to fall, read between its points, and turned round exactly."""

from __future__ import annotations

import numpy as np
import pytest
from experiments.curve import Landing, MonotoneCurve
from hypothesis import given, settings
from hypothesis import strategies as st

from redenvelope import ProblemError, UsageError, solve_dual
from redenvelope.dual.oracle import PriceFunction
from redenvelope.dual.solution import DualStatus
from redenvelope.dual.solvers import Secant

PRICES = np.array([0.0, 1.0, 2.0, 4.0, np.inf])


def curve(
    costs: list[float], rewards: list[float] | None = None, prices: np.ndarray = PRICES, error: float = 0.1
) -> MonotoneCurve:
    outcomes = np.array([costs if rewards is None else rewards, costs], dtype=float)
    return MonotoneCurve(prices[: len(costs)], outcomes, np.full(outcomes.shape, error))


def mixed(points: MonotoneCurve, landing: Landing) -> tuple[float, float]:
    """Reward and cost of a landing, from its prices and shares alone."""
    reward = sum(share * points.reward_at(price) for price, share in zip(landing.prices, landing.shares, strict=True))
    cost = sum(share * points.cost_at(price) for price, share in zip(landing.prices, landing.shares, strict=True))
    return reward, cost


@st.composite
def step_curves(draw: st.DrawFn) -> MonotoneCurve:
    """Falling steps of all sizes, flat parts among them, at prices from close together to far apart."""
    prices = sorted(draw(st.sets(st.floats(1e-6, 1e6), min_size=1, max_size=8)))
    ends = [*([0.0] if draw(st.booleans()) else []), *prices, *([np.inf] if draw(st.booleans()) else [])]
    sizes = st.one_of(st.just(0.0), st.floats(1e-6, 1e-2), st.floats(0.1, 5.0))
    steps = draw(st.lists(sizes, min_size=len(ends), max_size=len(ends)))
    costs = draw(st.floats(1e-3, 10.0)) + np.cumsum(steps)[::-1]
    return MonotoneCurve(np.array(ends), np.stack([np.sqrt(costs), costs]), np.full((2, len(ends)), 0.1))


@settings(deadline=None, max_examples=400)
@given(step_curves(), st.floats(0, 1), st.sampled_from([0.0, 0.02, 1.0, np.inf]))
def test_the_price_for_a_budget_spends_it_and_never_more(points: MonotoneCurve, share: float, jump: float) -> None:
    least, most = points.monotone[1, [-1, 0]]
    budget = float(np.clip(least + share * (most - least), least, most))
    landing = points.price_for(budget, jump)
    assert landing.status is DualStatus.CONVERGED
    assert sum(landing.shares) == 1
    assert (landing.reward, landing.cost) == mixed(points, landing)
    assert landing.cost <= budget
    # A handful of roundings of numbers that are all positive.
    assert landing.cost == pytest.approx(budget, rel=1e-12)


@settings(deadline=None, max_examples=200)
@given(step_curves(), st.floats(0, 1))
def test_the_price_for_a_reward_earns_it_and_never_less(points: MonotoneCurve, share: float) -> None:
    least, most = points.monotone[0, [-1, 0]]
    wanted = float(np.clip(least + share * (most - least), least, most))
    landing = points.price_for_reward(wanted)
    assert landing.status is not DualStatus.BUDGET_INFEASIBLE
    assert mixed(points, landing)[0] == landing.reward >= wanted
    assert landing.reward == pytest.approx(wanted, rel=1e-12)


def test_a_jump_is_mixed_and_a_slope_is_read() -> None:
    points = curve([10.0, 6.0, 5.95, 1.0], [9.0, 8.0, 7.0, 3.0])
    jump = points.price_for(3.475)
    assert (jump.prices, jump.shares) == ((2.0, 4.0), (0.5, 0.5))
    assert (jump.cost, jump.reward) == (3.475, 5.0)
    slope = points.price_for(5.975)
    # Half-way on the scale λ / (λ + 2), whose places of 1 and 2 are 1/3 and 1/2: 5/12 of it is 10/7.
    assert slope.shares == (1.0,)
    assert slope.price == pytest.approx(10 / 7, rel=1e-12)
    assert points.price_for(5.975, jump=0.0).prices == (1.0, 2.0)


def test_between_close_neighbours_one_price_is_enough() -> None:
    points = MonotoneCurve(np.linspace(0.0, 5.0, 201), np.tile(np.linspace(4.0, 2.0, 201), (2, 1)), np.ones((2, 201)))
    budgets = np.random.default_rng(0).uniform(2.0, 4.0, size=300)
    landings = [points.price_for(float(budget)) for budget in budgets]
    assert all(
        len(landing.prices) == 1 and landing.cost <= budget for landing, budget in zip(landings, budgets, strict=True)
    )
    np.testing.assert_allclose([landing.cost for landing in landings], budgets, rtol=1e-12)


def test_neighbours_without_a_number_between_them_are_mixed() -> None:
    points = curve([1.01, 1.0], prices=np.array([1.0, np.nextafter(1.0, 2.0)]))
    landing = points.price_for(1.005)
    assert landing.prices == tuple(points.prices)
    assert landing.cost == pytest.approx(1.005, rel=1e-12)


def test_what_a_secant_on_a_table_would_lose_is_kept() -> None:
    # The chord's slope prices a plan that nobody has: where the costs jump, no single price spends the budget.
    points = curve([4.0, 4.0, 1.0, 1.0, 1.0], [4.0, 4.0, 2.0, 2.0, 2.0])
    found = solve_dual(points, 3.0, Secant())
    alone, landing = points.cost_at(found.dual), points.price_for(3.0)
    assert alone != pytest.approx(3.0)
    assert landing.cost == 3.0
    assert (landing.prices, landing.shares) == ((1.0, 2.0), pytest.approx((2 / 3, 1 / 3)))


def test_budgets_beyond_the_curve_take_its_end() -> None:
    points = curve([10.0, 6.0], [9.0, 8.0])
    slack, poor = points.price_for(20.0), points.price_for(1.0)
    assert (slack.status, slack.prices, slack.cost) == (DualStatus.BUDGET_SLACK, (0.0,), 10.0)
    assert (poor.status, poor.prices, poor.cost) == (DualStatus.BUDGET_INFEASIBLE, (1.0,), 6.0)
    cheap, dear = points.price_for_reward(7.0), points.price_for_reward(9.5)
    assert (cheap.status, cheap.prices) == (DualStatus.BUDGET_SLACK, (1.0,))
    assert (dear.status, dear.prices) == (DualStatus.BUDGET_INFEASIBLE, (0.0,))


def test_costs_a_rounding_apart_are_landed_on_too() -> None:
    # Between the last two costs there is one number, and its share of the dearer plan rounds to nothing.
    costs = [9.0, 1.0 + 2 * np.spacing(1.0), 1.0]
    for budget in (1.0 + np.spacing(1.0), np.nextafter(costs[1], 0)):
        for prices in (np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, np.inf])):
            landing = curve(costs, prices=prices).price_for(budget)
            assert 1.0 <= landing.cost <= budget


def test_what_is_not_a_number_cannot_be_landed_on() -> None:
    for land in (curve([5.0, 3.0]).price_for, curve([5.0, 3.0]).price_for_reward):
        with pytest.raises(UsageError, match="to land on is not a number"):
            land(float("nan"))


def test_a_flat_part_is_left_at_its_lowest_price() -> None:
    points = curve([5.0, 3.0, 3.0, 1.0, 0.0], [5.0, 4.0, 3.5, 1.0, 0.0])
    landing = points.price_for(3.0)
    # Of plans of equal cost the one at the lowest price earns the most.
    assert (landing.prices, landing.reward) == ((1.0,), 4.0)


def test_the_curve_goes_through_its_points_and_is_straight_between() -> None:
    points = curve([5.0, 4.0, 3.0, 2.0, 0.0], [9.0, 8.0, 7.0, 6.0, 5.0])
    price: PriceFunction = points
    np.testing.assert_array_equal(price(PRICES[:, None]), points.outcomes)
    asked = np.array([0.5, 1.5, 3.0, 100.0])
    # The unit is the median of the finite prices above 0, which is 2.
    places = [0, 1 / 3, 1 / 2, 2 / 3, 1]
    expected = [np.interp(asked / (asked + 2), places, values) for values in points.outcomes]
    np.testing.assert_allclose(price(asked[:, None]), expected, rtol=1e-12)


def test_the_unit_of_money_does_not_matter() -> None:
    points, cents = curve([5.0, 4.0, 3.0]), curve([5.0, 4.0, 3.0], prices=PRICES / 100)
    assert cents.cost_at(0.005) == pytest.approx(points.cost_at(0.5), rel=1e-12)


def test_estimates_that_rise_with_the_price_are_pooled_by_their_errors() -> None:
    noisy = curve([5.0, 3.0, 3.4, 1.0, 0.0])
    np.testing.assert_allclose(noisy.monotone[1], [5.0, 3.2, 3.2, 1.0, 0.0])
    assert noisy.mended == pytest.approx(0.2)
    assert curve([5.0, 4.0, 3.0]).mended == 0
    # An error twice as large counts a quarter: (4·3.0 + 3.5) / 5.
    errors = np.array([[0.1, 0.1, 0.2, 0.1]] * 2)
    unequal = MonotoneCurve(PRICES[:4], np.array([[5.0, 3.0, 3.5, 1.0]] * 2), errors)
    np.testing.assert_allclose(unequal.monotone[1], [5.0, 3.1, 3.1, 1.0])


def test_estimates_without_error_are_kept() -> None:
    np.testing.assert_allclose(curve([5.0, 3.0, 3.4], error=0.0).monotone[1], [5.0, 3.2, 3.2])


def test_merged_curves_have_the_points_of_both() -> None:
    first = curve([5.0, 4.0, 1.0], prices=np.array([0.0, 1.0, np.inf]))
    second = curve([9.0, 3.0, 2.0], prices=np.array([1.0, 2.0, 3.0]), error=0.2)
    merged = first.merge(second)
    assert merged.prices.tolist() == [0, 1, 2, 3, np.inf]
    assert merged.outcomes[1].tolist() == [5, 4, 3, 2, 1]
    assert merged.errors[0].tolist() == [0.1, 0.1, 0.2, 0.2, 0.1]


def test_a_single_point_is_a_curve() -> None:
    points = curve([5.0], [2.0])
    np.testing.assert_array_equal(points(PRICES[:, None]), [[2.0] * 5, [5.0] * 5])
    assert points.price_for(5.0).prices == (0.0,)


@pytest.mark.parametrize(
    ("prices", "shape", "message"),
    [
        ([0.0, 2.0, 1.0], (2, 3), "each above the one before"),
        ([0.0, 1.0, 1.0], (2, 3), "each above the one before"),
        ([-1.0, 1.0, 2.0], (2, 3), "at least 0"),
        ([], (2, 0), "at least 0"),
        ([0.0, 1.0, 2.0], (3, 3), r"outcomes of a curve must be finite numbers of shape \(2, 3\)"),
        ([0.0, 1.0, 2.0], (2, 2), r"not of shape \(2, 2\)"),
    ],
)
def test_what_is_no_curve_is_refused(prices: list[float], shape: tuple[int, int], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        MonotoneCurve(np.array(prices), np.ones(shape), np.ones(shape))
