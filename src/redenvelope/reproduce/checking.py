"""What held-out users say of a policy at many prices, and the price at which a budget or a reward is met."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.special import ndtri

from redenvelope.dual.bisection import Bisection
from redenvelope.dual.solve import solve_dual
from redenvelope.evaluation.estimator import Estimator
from redenvelope.evaluation.logs import Featurise, evaluate_log
from redenvelope.log.encoding import Encoder
from redenvelope.log.log import Log
from redenvelope.reproduce.methods import Decisions, Method

__all__ = ["CheckedPrice", "Curve", "Landing", "bisect_budget", "estimated_curve", "land_on"]

FloatArray = NDArray[np.float64]

_REACH = float(ndtri(0.975))

# Prices beyond this are searched only if it does not do: no slope of the two-step problem comes near it.
_UPPER = 4.0
# A thousandth of the first bracket: finer than the estimates that decide where it closes.
_SEARCH = Bisection(tolerance=1e-4, precision=1e-3, upper=_UPPER)


@dataclass(frozen=True, eq=False)
class Curve:
    """Off-policy estimates at rising duals, all [duals]."""

    duals: FloatArray
    costs: FloatArray
    cost_errors: FloatArray
    rewards: FloatArray
    reward_errors: FloatArray

    def bounds(self, target: str) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds of cost or reward at 95 % confidence, each [duals]."""
        values, errors = (self.costs, self.cost_errors) if target == "cost" else (self.rewards, self.reward_errors)
        return values - _REACH * errors, values + _REACH * errors


@dataclass(frozen=True)
class Landing:
    """One price, or two that users are drawn to once each, and what they are estimated to cost and earn."""

    duals: tuple[float, ...]
    shares: tuple[float, ...]
    cost: float
    reward: float

    @property
    def dual(self) -> float:
        """The price of the cheaper plan."""
        return self.duals[-1]


def estimated_curve(
    method: Method,
    encoder: Encoder,
    log: Log,
    duals: FloatArray,
    estimator: Estimator | str = "doubly_robust",
    features: Featurise | None = None,
) -> Curve:
    """What users whom the method did not learn from say of it at every dual [duals]."""

    def decide(batch: Log) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        states = encoder.encode(batch)
        left = (encoder.first_step + encoder.campaign_steps - batch.step).astype(np.int64)
        made = _for_distinct(method, states, left, duals)
        return made.probabilities, np.stack([made.reward_to_go, made.cost_to_go])

    (found,) = evaluate_log(log, decide, [estimator], features=features).values()
    reward, cost = found.place("reward"), found.place("cost")
    return Curve(
        duals, found.value[cost], found.standard_error[cost], found.value[reward], found.standard_error[reward]
    )


def _for_distinct(
    method: Method, states: NDArray[np.float32], steps_left: NDArray[np.int64], duals: FloatArray
) -> Decisions:
    """Ask once for rows that are alike: on the two-step problem there are five."""
    both = np.column_stack([states, steps_left.astype(np.float32)])
    _, first, place = np.unique(both, axis=0, return_index=True, return_inverse=True)
    made = method.decisions(np.ascontiguousarray(states[first]), steps_left[first], duals)
    return Decisions(*(array[place.reshape(-1)] for array in made))


@dataclass(eq=False)
class CheckedPrice:
    """A price function made of off-policy estimates; what was estimated is kept."""

    method: Method
    encoder: Encoder
    log: Log
    known: dict[float, tuple[float, float]] = field(default_factory=dict)

    def __call__(self, duals: FloatArray, /) -> tuple[FloatArray, FloatArray]:
        """Costs and rewards, both [duals]."""
        new = np.array([dual for dual in duals if float(dual) not in self.known])
        if len(new):
            curve = estimated_curve(self.method, self.encoder, self.log, new)
            self.known |= {
                float(dual): (float(cost), float(reward))
                for dual, cost, reward in zip(new, curve.costs, curve.rewards, strict=True)
            }
        costs, rewards = np.array([self.known[float(dual)] for dual in duals]).T
        return costs, rewards


def bisect_budget(price: CheckedPrice, budget: float) -> Landing:
    """Algorithm 1, corrected: halve the bracket of prices by the estimated cost, and mix at the jump."""
    found = solve_dual(price, budget, _SEARCH)
    if found.mixture is None:
        return Landing((found.dual,), (1.0,), found.cost, found.reward)
    duals = (found.mixture.low_dual, found.mixture.high_dual)
    shares = (found.mixture.low_share, 1 - found.mixture.low_share)
    return Landing(duals, shares, found.cost, found.reward)


def land_on(curve: Curve, target: str, wanted: float) -> Landing:
    """The mixture of two neighbouring prices of a curve whose estimated cost, or reward, is what is wanted.

    The estimates are made to fall with the price first, as the truth does; outside of the curve its end is taken.
    """
    costs = _falling(curve.costs, curve.cost_errors)
    rewards = _falling(curve.rewards, curve.reward_errors)
    values = costs if target == "cost" else rewards
    above = int(np.count_nonzero(values > wanted))
    if above in (0, len(values)):
        place = 0 if above == 0 else len(values) - 1
        return Landing((float(curve.duals[place]),), (1.0,), float(costs[place]), float(rewards[place]))
    low, high = above - 1, above
    share = float((wanted - values[high]) / (values[low] - values[high]))
    return Landing(
        (float(curve.duals[low]), float(curve.duals[high])),
        (share, 1 - share),
        float(share * costs[low] + (1 - share) * costs[high]),
        float(share * rewards[low] + (1 - share) * rewards[high]),
    )


def _falling(values: FloatArray, errors: FloatArray) -> FloatArray:
    """The nearest values that never rise, [duals]."""
    weights = 1 / np.maximum(errors, 1e-12) ** 2
    return np.asarray(isotonic_regression(values, weights=weights, increasing=False).x, dtype=np.float64)
