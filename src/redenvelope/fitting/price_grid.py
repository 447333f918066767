"""The prices to check: temperature, price grid and exploration share, chosen on pilot users.

Everything here uses the policy's own predictions; the check users then estimate what the chosen prices cost and earn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.dual.frontier import Frontier, refined_frontier
from redenvelope.dual.oracle import PriceFunction
from redenvelope.dual.paths import Paths, gather_plans, paths_through
from redenvelope.fitting.encoded import EncodedLog
from redenvelope.fitting.holdout import CandidatePolicy, DecidedRows, Shown
from redenvelope.fitting.settings import EXPLORE, MOST_EXPLORED, FitSettings, SearchSettings
from redenvelope.fitting.stage_cache import Codec, StageCache
from redenvelope.log.log import Log
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.fixed_sequence_test import Question
from redenvelope.plan.ladder import Mixtures, Place
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.planning.planner import TreePlanner
from redenvelope.planning.temperature import entropy_cost, suggest_temperature

_HARDLY = 1e-9
"""An exploration share so small that nothing is explored."""
_PRICE_RANGE, _HALVINGS = 2.0**24, 30
"""Prices of one step are bisected in so many steps, between one unit divided by the range and one multiplied by it."""
_CHANGED = 0.1
"""Share of decisions that the next plan is expected to change, and that exploration has to inform."""


def temperature_for(
    policy: DeployedPolicy, pilot_users: EncodedLog, settings: FitSettings, budgets: FloatArray | None = None
) -> float:
    """The temperature in the settings, or one that costs little reward: at the price that spends half of the largest
    cost or, with several budgets [budgets], at their predicted prices."""
    if settings.temperature is not None:
        return settings.temperature
    search = settings.search
    if budgets is not None:
        paths = predicted_paths(policy, pilot_users, search, budgets, 2, search.pilot_passes // 2)
        place = int(np.abs(paths.ladder.limits - budgets).sum(axis=1).argmin())
        known = np.where(np.isfinite(paths.ladder.duals), paths.ladder.duals, 0.0)
        # For budgets that cannot be met, the highest known prices.
        prices = np.where(np.isfinite(paths.ladder.duals[place]), paths.ladder.duals[place], known.max(axis=0))[None]
    else:
        curve = refined_frontier(_tree_price(policy, pilot_users), search.pilot_prices)
        middle = curve.duals[int(np.argmin(np.abs(curve.costs - (curve.costs.min() + curve.costs.max()) / 2)))]
        prices = np.array([middle if np.isfinite(middle) else curve.duals[np.isfinite(curve.duals)].max()])
    states, left = pilot_users.first_states()
    return suggest_temperature(policy.valuer.values(states, left, prices, pilot_users.first_eligibility()).q[:, 0])


def candidates(
    policies: Mapping[str, DeployedPolicy],
    pilot_users: EncodedLog,
    settings: SearchSettings,
    budgets: FloatArray | None,
    cache: StageCache,
) -> tuple[dict[str, CandidatePolicy], Paths | None]:
    """Every policy with the prices to check it at; with several budgets [budgets], also the plan's paths.

    The uniform policy is the same at any price.
    """
    rungs = {name: settings.compared_rungs for name in policies if name != "uniform"} | {"plan": settings.rungs}
    uniform = {"uniform": CandidatePolicy(policies["uniform"], policies["uniform"].pricing.table)}
    if budgets is None:
        prices = cache.stage(
            "prices",
            (),
            lambda: {
                name: grid_of_prices(policies[name], pilot_users, settings, count)[::-1, None]
                for name, count in rungs.items()
            },
            Codec(lambda found: ({}, found), lambda _, arrays: arrays),
        )
        return {name: CandidatePolicy(policies[name], prices[name]) for name in rungs} | uniform, None
    paths = {
        name: predicted_paths(policies[name], pilot_users, settings, budgets, count) for name, count in rungs.items()
    }
    mixing = {
        name: _mixing(policies[name], own if name == "plan" else own.ladder_alone()) for name, own in paths.items()
    }
    return mixing | uniform, paths["plan"]


def _mixing(policy: DeployedPolicy, paths: Paths) -> CandidatePolicy:
    ladder, prices = paths.ladder, paths.plans.prices
    return CandidatePolicy(policy, prices, Mixtures(prices, ladder.shares, ladder.duals))


def grid_of_prices(policy: DeployedPolicy, pilot_users: EncodedLog, settings: SearchSettings, count: int) -> FloatArray:
    """About `count` prices from 0 to infinity, ascending: the bends of the frontier, and even steps between them."""
    bends = refined_frontier(_tree_price(policy, pilot_users), settings.pilot_prices).duals
    finite = np.unique(bends[np.isfinite(bends)])
    if len(finite) < 2:
        return np.unique(bends)
    # Even steps within each gap, because planning time grows with blocks of prices, not with single prices.
    each = max(1, (count - 2) // (len(finite) - 1))
    gaps = [np.linspace(low, high, each, endpoint=False) for low, high in pairwise(finite)]
    return np.concatenate([*gaps, finite[-1:], [np.inf]])


def _tree_price(policy: DeployedPolicy, pilot_users: EncodedLog) -> PriceFunction:
    """Predicted mean outcomes of the pilot users within the horizon of action values: a cheap way to locate prices."""

    def of_member(own: DeployedPolicy, users: EncodedLog) -> PriceFunction:
        (states, left), eligibility = users.first_states(), users.first_eligibility()
        valuer = replace(own.valuer, trees={}) if isinstance(own.valuer, TreePlanner) else own.valuer

        def price(prices: FloatArray) -> FloatArray:
            return np.asarray(valuer.values(states, left, prices, eligibility).expected().mean(axis=1))

        return price

    return _over_members(policy, pilot_users, of_member)


def _believed(policy: DeployedPolicy, pilot_users: EncodedLog) -> PriceFunction:
    """Predicted mean outcomes of the pilot users over the whole campaign."""

    def of_member(own: DeployedPolicy, users: EncodedLog) -> PriceFunction:
        return own.believed(*users.first_states(), users.first_eligibility())

    return _over_members(policy, pilot_users, of_member)


def _over_members(
    policy: DeployedPolicy, users: EncodedLog, of_member: Callable[[DeployedPolicy, EncodedLog], PriceFunction]
) -> PriceFunction:
    """Mean outcomes over the members of a policy, given `of_member`, the price function of one member's own users."""
    parts = [
        (of_member(own, some), len(some.log.users) / len(users.log.users)) for own, some in users.by_member(policy)
    ]
    if len(parts) == 1:
        return parts[0][0]
    return lambda prices: np.asarray(sum(share * price(prices) for price, share in parts))


def predicted_paths(
    policy: DeployedPolicy,
    pilot_users: EncodedLog,
    settings: SearchSettings,
    budgets: FloatArray,
    rungs: int,
    passes: int | None = None,
) -> Paths:
    """The ladder and the frontiers of several budgets [budgets], as the policy's own values predict them."""
    plans = gather_plans(_believed(policy, pilot_users), budgets, settings.pilot_passes if passes is None else passes)
    return paths_through(plans, budgets, rungs, settings.frontier_points)


def model_frontier(
    policy: DeployedPolicy, pilot_users: EncodedLog, duals: FloatArray, settings: SearchSettings
) -> Frontier:
    """The frontier predicted by the policy's own values at some of the duals [duals], interpolated in between."""
    places = np.unique(np.linspace(0, len(duals) - 1, settings.pilot_prices).round().astype(int))
    rewards, costs = _believed(policy, pilot_users)(duals[places, None])
    everywhere = np.arange(len(duals))
    return Frontier(duals, np.interp(everywhere, places, costs), np.interp(everywhere, places, rewards))


def exploration_share(bandit: DeployedPolicy, pilot_users: EncodedLog, train: Log, question: Question) -> float:
    """The default exploration share: the one that lets the next plan earn most, capped so that it stays cheap.

    Drawing a share ε of decisions uniformly costs ε·g of reward, where g is the loss of a uniform choice at the
    budget's price λ. The next plan changes a share δ of decisions among k actions, and its cost is then estimated with
    a standard error near sd·√(δk / (εn)); the money that its bound holds back would have earned λ times as much. The
    sum is smallest at ε* = (0.82·λ·sd·√(δk / n) / g)^(2/3). Rows of the pilot users count as one-step decisions.
    """
    decisions = _OneStepDecisions.of(bandit, pilot_users, question)
    price, plan = decisions.priced(question)
    cheapest, even = decisions.outcomes(np.inf), decisions.uniform
    lost = float(plan[0] - even[0] - price * ((plan - even)[1:] / decisions.units).sum())
    limits = np.array(question.limits) if question.budget is not None else plan[1:]
    taken = np.maximum(even[1:] - cheapest[1:], 1e-300)
    share = min(EXPLORE, MOST_EXPLORED * float((np.maximum(limits, 0.0) / taken).min()))
    if lost > 0 and plan[0] > cheapest[0]:
        share = min(share, MOST_EXPLORED * float(plan[0] - cheapest[0]) / lost)
    if lost > 0 and price > 0:
        spent = np.add.reduceat(train.outcomes[1:] / decisions.units[:, None], train.starts[:-1], axis=1).sum(axis=0)
        error = price * float(spent.std()) * np.sqrt(_CHANGED * len(bandit.catalogue) / train.people)
        share = min(share, (0.82 * error / lost) ** (2 / 3))
    # In powers of two, so that nearby budgets get the same plans.
    return float(EXPLORE * 2.0 ** np.floor(np.log2(max(share, 1e-6) / EXPLORE) + 1e-9))


@dataclass(frozen=True, eq=False)
class _OneStepDecisions:
    """Predicted outcomes of every single decision of the pilot users, scaled to a user's whole campaign."""

    predicted: FloatArray
    """[outcomes, rows, actions]"""
    eligible: NDArray[np.bool_]
    """[rows, actions]"""
    units: FloatArray
    """Units of the costs, [budgets]: the limits of several budgets, so that all their prices rise together."""

    @classmethod
    def of(cls, bandit: DeployedPolicy, pilot_users: EncodedLog, question: Question) -> _OneStepDecisions:
        predicted = bandit.valuer.outcomes(pilot_users.states) * (len(pilot_users.log) / len(pilot_users.log.users))
        allowed = pilot_users.eligible(bandit.constraint)
        several = len(predicted) > 2
        units = np.maximum(question.limits, 1e-12) if several else np.ones(len(predicted) - 1)
        return cls(predicted, np.ones(predicted.shape[1:], bool) if allowed is None else allowed, units)

    @cached_property
    def costs(self) -> FloatArray:
        """Costs in these units, summed over budgets, [rows, actions]."""
        return np.asarray(np.einsum("bra,b->ra", self.predicted[1:], 1 / self.units))

    @property
    def uniform(self) -> FloatArray:
        """Mean outcomes of a uniform choice among eligible actions, [outcomes]."""
        shares = self.eligible / self.eligible.sum(axis=1, keepdims=True)
        return np.asarray(np.einsum("ora,ra->o", self.predicted, shares) / len(shares))

    def outcomes(self, price: float) -> FloatArray:
        """Mean outcomes of the best actions at a price, [outcomes]."""
        worth = -self.costs if np.isinf(price) else self.predicted[0] - price * self.costs
        best = np.where(self.eligible, worth, -np.inf).argmax(axis=1)
        return np.asarray(np.take_along_axis(self.predicted, best[None, :, None], axis=2).mean(axis=(1, 2)))

    def priced(self, question: Question) -> tuple[float, FloatArray]:
        """The lowest price with costs within the budgets, or with the reward down to the target, and mean outcomes
        [outcomes] there: the two neighbouring plans mixed up to the budget or the target."""
        wanted = np.asarray([question.target_reward] if question.target_reward is not None else question.limits)
        counts = slice(0, 1) if question.target_reward is not None else slice(1, None)
        if ((dearest := self.outcomes(0.0))[counts] <= wanted).all():
            return 0.0, dearest
        unit = max(float(np.ptp(self.predicted[0])), 1e-150) / max(float(np.ptp(self.costs)), 1e-150)
        low, high = unit / _PRICE_RANGE, unit * _PRICE_RANGE
        for _ in range(_HALVINGS):
            middle = float(np.sqrt(low * high))
            low, high = (low, middle) if (self.outcomes(middle)[counts] <= wanted).all() else (middle, high)
        above, below = self.outcomes(low), self.outcomes(high)
        rise = np.maximum((above - below)[counts], 1e-300)
        share = float(np.clip((wanted - below[counts]) / rise, 0.0, 1.0).min())
        return high, below + share * (above - below)


def exploration_loss(
    policy: DeployedPolicy,
    pilot_users: EncodedLog,
    predicted: Frontier,
    certificate: Certificate,
    settings: SearchSettings,
) -> float:
    """Reward per user that exploration costs at the plan's mean cost; `predicted` is the policy's own frontier."""
    if not policy.plans:
        return exploration_loss_at(policy, pilot_users, (certificate.dual,))
    if not policy.specification.explore:
        return 0.0
    cost = certificate.cost.estimate
    best = model_frontier(_without_exploration(policy), pilot_users, predicted.duals, settings)
    lost = entropy_cost(best.costs, best.rewards, predicted.costs, predicted.rewards)
    order = np.argsort(predicted.costs)
    return max(float(np.interp(cost, predicted.costs[order], lost[order])), 0.0)


def exploration_loss_at(policy: DeployedPolicy, pilot_users: EncodedLog, duals: tuple[float, ...]) -> float:
    """The same with several budgets, or without a model: the gain in reward at the plan's prices without exploration.

    A change in spending is valued at the shadow prices [budgets]. Learned values give the loss of exploring at one step
    with later exploration as learned, so the losses of all steps are summed.
    """
    if not policy.specification.explore:
        return 0.0
    of_users = _believed if policy.plans else _believed_at_all_steps
    with_it, without = (
        policy.pricing.mix(of_users(each, pilot_users)(policy.pricing.table))
        for each in (policy, _without_exploration(policy))
    )
    gained = without - with_it
    return max(float(gained[0] - np.asarray(duals) @ gained[1:]), 0.0)


def _believed_at_all_steps(policy: DeployedPolicy, pilot_users: EncodedLog) -> PriceFunction:
    """Outcomes to go by learned values, summed over every row of the pilot users, per user."""

    def of_member(own: DeployedPolicy, users: EncodedLog) -> PriceFunction:
        price = own.believed(users.states, users.steps_left, users.eligibility)
        return lambda prices: np.asarray(price(prices) * (len(users.log) / len(users.log.users)))

    return _over_members(policy, pilot_users, of_member)


def _without_exploration(policy: DeployedPolicy) -> DeployedPolicy:
    # Not 0, so that the same compiled programs are used.
    return replace(policy, specification=replace(policy.specification, explore=_HARDLY))


def next_effective_share(shown: Shown, policy: DeployedPolicy, place: Place) -> float:
    """The effective sample size of the log that this policy would produce, as a share of its users."""
    decided, eligible = shown.decided(policy, place), shown.encoded.eligible(policy.constraint)
    return effective_share(decided, np.ones(decided.probabilities.shape, bool) if eligible is None else eligible)


def effective_share(decided: DecidedRows, eligible: NDArray[np.bool_]) -> float:
    """Kish's effective sample size, as a share, of importance weights of a uniform choice among eligible actions.

    With propensities p over k eligible actions, 1 / E[Σ 1 / (k²·p)], at the step where it is smallest.
    """
    count = eligible.sum(axis=1)
    with np.errstate(divide="ignore"):
        squares = np.where(eligible, 1.0 / decided.probabilities, 0.0).sum(axis=1) / count**2
    steps = np.unique(decided.log.step)
    return float(min(1.0 / squares[decided.log.step == step].mean() for step in steps))
