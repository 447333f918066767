"""Price functions whose truth is known by looking at them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

Price = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Prices [prices, 1] -> outcomes [outcomes, prices]."""


@pytest.fixture
def corners() -> Callable[[ArrayLike, ArrayLike], Price]:
    """A world of a few plans, given by cost and reward, of which each dual takes the best."""

    def make(costs: ArrayLike, rewards: ArrayLike) -> Price:
        plan_costs, plan_rewards = np.asarray(costs, dtype=float), np.asarray(rewards, dtype=float)

        def best(dual: float) -> int:
            if np.isinf(dual):
                return int(np.lexsort((-plan_rewards, plan_costs))[0])
            return int(np.lexsort((plan_costs, -(plan_rewards - dual * plan_costs)))[0])

        def price(prices: NDArray[np.float64]) -> NDArray[np.float64]:
            chosen = [best(dual) for (dual,) in prices]
            return np.stack([plan_rewards[chosen], plan_costs[chosen]])

        return price

    return make


@pytest.fixture
def smooth() -> Price:
    """A smooth world: the reward of cost c is 4·√c, so that the cost at dual λ is (2/λ)², at most 9."""

    def price(prices: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(divide="ignore"):
            costs = np.minimum(9.0, (2 / prices[:, 0]) ** 2)
        return np.stack([4 * np.sqrt(costs), costs])

    return price
