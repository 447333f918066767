"""Price functions whose truth is known by looking at them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

Price = Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]]


@pytest.fixture
def corners() -> Callable[[ArrayLike, ArrayLike], Price]:
    """A world of a few plans, given by cost and reward, of which each dual takes the best."""

    def make(costs: ArrayLike, rewards: ArrayLike) -> Price:
        plan_costs, plan_rewards = np.asarray(costs, dtype=float), np.asarray(rewards, dtype=float)

        def best(dual: float) -> int:
            if np.isinf(dual):
                return int(np.lexsort((-plan_rewards, plan_costs))[0])
            return int(np.lexsort((plan_costs, -(plan_rewards - dual * plan_costs)))[0])

        def price(duals: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            chosen = [best(dual) for dual in duals]
            return plan_costs[chosen], plan_rewards[chosen]

        return price

    return make


@pytest.fixture
def smooth() -> Price:
    """A smooth world: the reward of cost c is 4·√c, so that the cost at dual λ is (2/λ)², at most 9."""

    def price(duals: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        with np.errstate(divide="ignore"):
            costs = np.minimum(9.0, (2 / np.asarray(duals, dtype=float)) ** 2)
        return costs, 4 * np.sqrt(costs)

    return price
