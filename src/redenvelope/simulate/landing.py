"""Land on a budget exactly, given what the policy of each price costs and earns."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from redenvelope.finite.evaluate import Value
from redenvelope.simulate.campaign import Optimum

__all__ = ["Price", "bisect_price", "climb_envelope"]

Price = Callable[[float], Value]
"""Reward and cost of the policy for a dual; 0 ignores cost and infinity minimises it."""

# Differences below this share of the figures are rounding.
_RELATIVE_TOLERANCE = 1e-12
# What a mixture can lose is the width of the dual's bracket times the step in cost that is left inside.
_DUAL_TOLERANCE = 1e-8
_MAXIMUM_STEPS = 200


def climb_envelope(price: Price, budget: float) -> Optimum:
    """The optimum of policies that maximise reward − dual · cost: two neighbours on the envelope, mixed.

    The next dual is the slope between the two best points around the budget. Either its policy lies above
    their line and replaces one of them, or the line is an edge of the envelope and the mixture is optimal.
    """
    low, high = price(inf), price(0.0)
    dual = inf
    for _ in range(_MAXIMUM_STEPS):
        if not low.cost <= budget < high.cost:
            break
        dual = (high.reward - low.reward) / (high.cost - low.cost)
        middle = price(dual)
        gain = middle.reward - low.reward - dual * (middle.cost - low.cost)
        if gain <= _RELATIVE_TOLERANCE * max(1.0, abs(high.reward)):
            break
        low, high = (middle, high) if middle.cost <= budget else (low, middle)
    return _mix(low, high, budget, dual)


def bisect_price(price: Price, budget: float) -> Optimum:
    """Where the cost of a policy crosses the budget as its dual grows; the two sides of the step mixed.

    Right for policies that do not maximise reward − dual · cost over the whole campaign, such as a bandit.
    """
    low, high = price(inf), price(0.0)
    cheap_dual, dear_dual = inf, 0.0
    if low.cost <= budget < high.cost:
        cheap_dual, low = _first_affordable(price, budget)
        while cheap_dual - dear_dual > _DUAL_TOLERANCE * cheap_dual:
            dual = (cheap_dual + dear_dual) / 2
            middle = price(dual)
            if middle.cost <= budget:
                low, cheap_dual = middle, dual
            else:
                high, dear_dual = middle, dual
    return _mix(low, high, budget, cheap_dual)


def _first_affordable(price: Price, budget: float) -> tuple[float, Value]:
    """The first power of two whose policy fits the budget, and its value; infinity when there is none."""
    duals = [2.0**exponent for exponent in range(_MAXIMUM_STEPS)]
    prices = ((dual, price(dual)) for dual in [*duals, inf])
    return next((dual, value) for dual, value in prices if value.cost <= budget)


def _mix(low: Value, high: Value, budget: float, dual: float) -> Optimum:
    if high.cost <= budget:
        return Optimum("budget_slack", high.cost, high.reward, 0.0)
    if low.cost > budget:
        return Optimum("budget_infeasible", low.cost, low.reward, inf)
    share = (budget - low.cost) / (high.cost - low.cost)
    reward = low.reward + share * (high.reward - low.reward)
    return Optimum("converged", budget, reward, dual)
