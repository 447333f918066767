"""The recorder checks what a price function answers."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope import ProblemError
from redenvelope.dual.oracle import Point, RecordedPrice


def test_every_evaluation_is_recorded_in_order() -> None:
    price = RecordedPrice(lambda prices: np.stack([prices[:, 0] * 2, 1 / (1 + prices[:, 0])]))
    price.points([1.0, 3.0])
    assert price.at(0.0) == Point(0.0, 1.0, 0.0)
    assert price.plans.prices.tolist() == [[1.0], [3.0], [0.0]]
    assert price.plans.outcomes.tolist() == [[2.0, 6.0, 0.0], [0.5, 0.25, 1.0]]
    assert (price.passes, len(price.plans)) == (2, 3)


def test_several_budgets_are_recorded_in_the_same_way() -> None:
    price = RecordedPrice(lambda prices: np.stack([prices.sum(axis=1), prices[:, 0], prices[:, 1]]), budgets=2)
    assert price([[1.0, 2.0], [0.0, 3.0]]).tolist() == [[3.0, 3.0], [1.0, 0.0], [2.0, 3.0]]
    assert price.plans.prices.tolist() == [[1.0, 2.0], [0.0, 3.0]]
    with pytest.raises(ProblemError, match=r"rewards that are not finite at price 1, inf; an infinite price must"):
        price([[1.0, np.inf]])


def test_not_a_number_names_the_price() -> None:
    price = RecordedPrice(lambda prices: np.stack([prices[:, 0], np.where(prices[:, 0] == 2.5, np.nan, 1.0)]))
    with pytest.raises(ProblemError, match=r"costs that are not finite at price 2\.5$"):
        price([1.0, 2.5])


def test_an_infinite_price_that_is_multiplied_is_explained() -> None:
    price = RecordedPrice(lambda prices: np.stack([1 - prices[:, 0], np.ones(len(prices))]))
    with pytest.raises(ProblemError, match="rewards that are not finite at price inf; an infinite price must"):
        price([0.0, np.inf])


@pytest.mark.parametrize("shape", [(2, 1), (3, 2), (2,), (2, 2, 1)])
def test_a_reward_and_a_cost_for_each_price(shape: tuple[int, ...]) -> None:
    price = RecordedPrice(lambda prices: np.ones(shape))
    with pytest.raises(ProblemError, match=r"prices of shape \(2, 1\) and returned .* it must return \(2, 2\)"):
        price([0.0, 1.0])


def test_prices_are_handed_over_as_rows_of_one_budget() -> None:
    shapes = []
    RecordedPrice(lambda prices: (shapes.append(prices.shape), np.ones((2, len(prices))))[1])([0.0, 1.0, np.inf])
    assert shapes == [(3, 1)]
