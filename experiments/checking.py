"""What held-out users say of a policy at many prices, and the price at which a budget is met."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from experiments.curve import Landing, MonotoneCurve
from experiments.methods import Decisions, Method
from redenvelope.dual.search import solve_dual
from redenvelope.dual.solvers import Bisection
from redenvelope.evaluation.estimators import Estimator
from redenvelope.evaluation.evaluate import Featurise, evaluate_log
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.log import Log
from redenvelope.prices import checked_prices

__all__ = ["CheckedPrice", "bisect_budget", "bounds", "estimated_curve"]

FloatArray = NDArray[np.float64]

_REACH = float(ndtri(0.975))

# Prices beyond this are searched only if it does not do: no slope of the two-step problem comes near it.
_UPPER = 4.0
# A thousandth of the first bracket: finer than the estimates that decide where it closes.
_SEARCH = Bisection(tolerance=1e-4, precision=1e-3, upper=_UPPER)


def bounds(curve: MonotoneCurve) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bounds of the estimates at 95 % confidence, each [outcomes, points]."""
    return curve.outcomes - _REACH * curve.errors, curve.outcomes + _REACH * curve.errors


def estimated_curve(
    method: Method,
    encoder: Encoder,
    log: Log,
    duals: FloatArray,
    estimator: Estimator | str = "doubly_robust",
    features: Featurise | None = None,
) -> MonotoneCurve:
    """What users whom the method did not learn from say of it at every dual [duals], rising."""

    def decide(batch: Log) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        states = encoder.encode(batch)
        left = (encoder.first_step + encoder.campaign_steps - batch.step).astype(np.int64)
        made = _for_distinct(method, states, left, duals)
        return made.probabilities, np.stack([made.reward_to_go, made.cost_to_go])

    (found,) = evaluate_log(log, decide, [estimator], features=features).values()
    return MonotoneCurve(duals, found.value, found.standard_error)


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
    known: dict[float, FloatArray] = field(default_factory=dict)
    """Reward and cost by price, each [outcomes]."""

    def __call__(self, prices: FloatArray, /) -> FloatArray:
        """Prices [prices, 1] -> rewards and costs, [outcomes, prices]."""
        asked = checked_prices(prices)[:, 0].tolist()
        new = np.array(sorted({price for price in asked if price not in self.known}))
        if len(new):
            curve = estimated_curve(self.method, self.encoder, self.log, new)
            self.known |= dict(zip(new.tolist(), curve.outcomes.T, strict=True))
        return np.stack([self.known[price] for price in asked], axis=1)


def bisect_budget(price: CheckedPrice, budget: float) -> Landing:
    """Algorithm 1, corrected: halve the bracket of prices by the estimated cost, and mix at the jump."""
    found = solve_dual(price, budget, _SEARCH)
    prices, shares = tuple(found.prices[:, 0].tolist()), tuple(found.shares.tolist())
    return Landing(found.status, prices, shares, found.reward, found.cost)
