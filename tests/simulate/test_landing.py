"""Landing on a budget, on points whose envelope is known."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.finite.problem import Value
from redenvelope.simulate.campaign import Price, bisect_price, climb_envelope

# (3, 2.5) lies below the envelope; its corners are the others, with slopes 2, 1 and 0.25.
POINTS = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0], [3.0, 2.5], [5.0, 4.5]])


def price_of(points: np.ndarray) -> Price:
    def price(dual: float) -> Value:
        scores = -points[:, 0] if np.isinf(dual) else points[:, 1] - dual * points[:, 0]
        return Value(points[scores.argmax(), ::-1])

    return price


@pytest.mark.parametrize("land", [climb_envelope, bisect_price])
@pytest.mark.parametrize(("budget", "reward", "dual"), [(0.5, 1, 2), (2, 3, 1), (4, 4.25, 0.25)])
def test_lands_on_the_edge_of_the_envelope(land, budget: float, reward: float, dual: float) -> None:
    optimum = land(price_of(POINTS), budget)
    assert (optimum.status, optimum.cost) == ("converged", budget)
    assert optimum.reward == pytest.approx(reward, rel=1e-12)
    assert optimum.dual == pytest.approx(dual, rel=1e-7)


@pytest.mark.parametrize("land", [climb_envelope, bisect_price])
def test_slack_and_infeasible_budgets(land) -> None:
    slack = land(price_of(POINTS), 5.0)
    assert (slack.status, slack.cost, slack.reward, slack.dual) == ("budget_slack", 5.0, 4.5, 0.0)
    refused = land(price_of(POINTS), -0.1)
    assert (refused.status, refused.cost, refused.dual) == ("budget_infeasible", 0.0, np.inf)
