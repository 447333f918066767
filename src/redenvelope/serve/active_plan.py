"""The active plan: what it would do for a user, what its actions may cost, and its pacing; swapped as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.errors import ModelError
from redenvelope.ledger.ledger import Ledger
from redenvelope.ledger.records import Fund, PriceNote
from redenvelope.plan.decide import ACTION_STREAM
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import policy_sha256
from redenvelope.planning.planner import TreePlanner, decide_in_one_program
from redenvelope.planning.single_user import SinglePlanner
from redenvelope.policies.action_values import Valuer
from redenvelope.policies.eligibility_state import EligibilityState, allowed, eligibility_of_row
from redenvelope.policies.pricing import Pricing
from redenvelope.randomness import fraction, user_key
from redenvelope.serve.funds import Amounts, ChargeTable, charge_table_of, funded_budgets, served_funds
from redenvelope.serve.pacing import Pacer, Progress
from redenvelope.serve.settings import ServeSettings


@dataclass(frozen=True, eq=False)
class ActivePlan:
    """A loaded plan, what its actions may cost, and the pacing of its prices."""

    plan: LoadedPlan
    charges: ChargeTable
    pacer: Pacer | None

    @property
    def pricing(self) -> Pricing:
        """The price now."""
        return self.plan.plan.policy.pricing if self.pacer is None else self.pacer.pricing

    def beliefs(self) -> dict[str, dict[str, Any]]:
        """What pacing believes, by budget."""
        found = () if self.pacer is None else self.pacer.beliefs
        return {name: one.as_dict() for name, one in zip(self.charges.names, found, strict=False)}

    def solve(self, ledger: Ledger, now: int) -> PriceNote | None:
        """Look at the money again; what to remember, where the price changed."""
        if self.pacer is None:
            return None
        counts = [0] * self.plan.steps
        for tally in ledger.tallies():
            if 0 <= tally.step - self.plan.first_step < len(counts):
                counts[tally.step - self.plan.first_step] += tally.decided
        balances = {one.budget: one for one in ledger.balances()}
        progress = Progress(tuple(balances[name] for name in self.charges.names), tuple(counts))
        if not self.pacer.solve(progress):
            return None
        content = {
            "budgets": self.charges.names,
            "prices": self.pricing.prices,
            "shares": self.pricing.shares,
            "decisions": sum(counts),
            "spent": {one.budget: one.spent for one in progress.balances},
            "beliefs": self.beliefs(),
        }
        return PriceNote(now, msgspec.json.encode(content).decode())


def load_active_plan(
    folder: Path, funds: Sequence[Fund], amounts: Amounts | None, settings: ServeSettings, seed: int
) -> tuple[ActivePlan, list[Fund]]:
    """Load a plan and warm it up; with the funds in its order, as it keeps them. `seed` is that of all draws."""
    plan = Plan.load(folder)
    served = served_funds(funded_budgets(plan, settings.minor_units), funds)
    budgets = [fund.budget for fund in served]
    charges = charge_table_of(plan, budgets, amounts, settings)
    pacer = None
    if settings.audience is not None and settings.pacing is not None:
        units = [one.minor_units for one in charges.budgets]
        pacer = Pacer(plan, settings.pacing, settings.audience, units)
    rows = len(plan.policy.pricing.shares) if pacer is None else pacer.rows
    return ActivePlan(LoadedPlan(plan, seed, rows).warm(), charges, pacer), served


# Probabilities for users who wait at the same time: one by one in plain arrays, or together in one program.

# From so many on, a call of the compiled program takes less time than as many decisions one by one; see
# benchmarks/serve.py.
_TOGETHER = 3


@dataclass(frozen=True, eq=False)
class DecisionQuery:
    """Somebody who waits for a decision."""

    user: int | str
    step: int
    features: Mapping[str, Any]
    past: Sequence[Mapping[str, Any]]
    """Earlier steps: step, action, reward and cost."""
    eligible: NDArray[np.bool_] | None = None
    """[actions]; None: all."""


class ActionDistribution(NamedTuple):
    """What the plan would do."""

    probabilities: FloatArray
    """[actions]"""
    rewards: FloatArray
    """Expected at this step, [actions]."""
    costs: FloatArray
    """Expected at this step, [budgets, actions]."""
    prices: tuple[float, ...]
    """That the user follows, [budgets]."""
    uniform: float
    """What the action is drawn with: fixed by user, step and seed."""
    allowed: NDArray[np.bool_] | None
    """By the plan's rules and by whoever asks, [actions]; None: all."""


class LoadedPlan:
    """A plan that is loaded and warm; the price is given with every question, so that it can change at any time."""

    def __init__(self, plan: Plan, seed: int = 0, rows: int = 2) -> None:
        """`rows` of prices are mixed at most: a number of rows is compiled for once, and nobody waits for another."""
        self.plan, self.seed, self._rows = plan, seed, max(rows, 2)
        self.sha256 = policy_sha256(plan.policy)
        policy = plan.policy
        self._encoder = policy.encoder
        self.first_step, self.steps = policy.encoder.first_step, policy.specification.steps
        self.labels = plan.catalogue.labels
        self._together = can_decide_together(policy.valuer)
        self._single: tuple[Pricing, Any] = (policy.pricing, self._single_at(policy.pricing))

    @property
    def needs_history(self) -> bool:
        """Whether it decides by what happened to a user before."""
        return self.plan.needs_history

    def warm(self) -> LoadedPlan:
        """Decide for nobody at every step, alone and together, so that no real user waits for a compilation."""
        past: list[dict[str, Any]] = []
        for step in range(self.first_step, self.first_step + self.steps):
            asked = DecisionQuery(0, step, {}, past)
            self.propose([asked], self.plan.policy.pricing)
            for size in CALL_SIZES:  # one program each, whatever the step
                self.propose([asked] * size, self.plan.policy.pricing)
            label: Any = float(self.labels[0]) if self.plan.catalogue.numeric else self.labels[0]
            past = [*past, {"step": step, "action": label, "reward": 0.0, "cost": 0.0}]
        return self

    def encode(self, asked: DecisionQuery) -> NDArray[np.float32]:
        """The state [width] of somebody; a ModelError says what does not fit."""
        row = {**asked.features, "step": asked.step}
        return self._encoder.encode_row(row, asked.past if self.needs_history else None)

    def propose(
        self, asked: Sequence[DecisionQuery], pricing: Pricing, states: Sequence[NDArray[np.float32]] | None = None
    ) -> list[ActionDistribution]:
        """What each would get at prices; `states` spare encoding again."""
        rows = [self.encode(one) for one in asked] if states is None else states
        keys = np.array([user_key(one.user) for one in asked], dtype=np.uint64)
        steps = np.array([one.step for one in asked], dtype=np.int64)
        uniforms = fraction(keys, ACTION_STREAM, self.seed, steps)
        followed = pricing.drawn(keys, self.seed)
        left = self.first_step + self.steps - steps
        standings = [self._standing(one) for one in asked]
        found = self._found(standings, rows, left, pricing)
        own = np.array([shares[price] for (shares, _), price in zip(found, followed.tolist(), strict=True)], np.float64)
        own /= own.sum(axis=1, keepdims=True)
        outcomes = np.array([outcomes for _, outcomes in found], np.float64)
        return [
            ActionDistribution(
                own[row],
                outcomes[row, 0],
                outcomes[row, 1:],
                pricing.prices[price],
                uniform,
                self._allowed(standings[row], rows[row], left[row : row + 1]),
            )
            for row, (price, uniform) in enumerate(zip(followed.tolist(), uniforms.tolist(), strict=True))
        ]

    def _standing(self, one: DecisionQuery) -> EligibilityState | None:
        """What the rules remember of somebody, and what may be given; None where nothing is ruled out."""
        constraint = self.plan.policy.constraint
        if constraint is None and one.eligible is None:
            return None
        row = {**one.features, "step": one.step}
        return eligibility_of_row(constraint, self._encoder, row, one.step, one.past, one.eligible).standing

    def _allowed(
        self, standing: EligibilityState | None, state: NDArray[np.float32], left: NDArray[np.int64]
    ) -> NDArray[np.bool_] | None:
        """What may be given now, [actions]."""
        if standing is None:
            return None
        return np.asarray(allowed(standing, self.plan.policy.constraint, state[None], left.astype(np.intp))[0])

    def _found(
        self,
        standings: Sequence[EligibilityState | None],
        states: Sequence[NDArray[np.float32]],
        left: NDArray[np.int64],
        pricing: Pricing,
    ) -> list[tuple[FloatArray, FloatArray]]:
        """Probabilities [prices, actions] and outcomes [outcomes, actions] of each.

        Those of whom nothing is ruled out are planned for together, where they are enough.
        """
        valuer, table = self.plan.policy.valuer, _filled(pricing.table, self._rows)
        free = [place for place, standing in enumerate(standings) if standing is None]
        # Infinite prices are another program, which nobody should wait for.
        together = self._together and len(free) >= _TOGETHER and bool(np.isfinite(table).all())
        found: dict[int, tuple[FloatArray, FloatArray]] = {}
        if together:
            assert isinstance(valuer, TreePlanner)
            group = decide_together(valuer, [states[place] for place in free], left[free], table)
            found.update(zip(free, group, strict=True))
        others = [place for place in range(len(standings)) if place not in found]
        if others:
            own = [states[place] for place in others]
            group = self._one_by_one([standings[place] for place in others], own, left[others], pricing)
            found.update(zip(others, group, strict=True))
        return [found[place] for place in range(len(standings))]

    def _one_by_one(
        self,
        standings: Sequence[EligibilityState | None],
        states: Sequence[NDArray[np.float32]],
        left: NDArray[np.int64],
        pricing: Pricing,
    ) -> list[tuple[FloatArray, FloatArray]]:
        """Probabilities [prices, actions] and outcomes [outcomes, actions] of each."""
        known, single = self._single
        if known != pricing:
            single = self._single_at(pricing, single)
            self._single = (pricing, single)
        found = []
        for standing, state, steps_left in zip(standings, states, left, strict=True):
            decision = single.decide(state, int(steps_left), standing)
            found.append((decision.values.probabilities[0], decision.outcomes))
        return found

    def _single_at(self, pricing: Pricing, before: Any = None) -> Any:
        if isinstance(before, SinglePlanner):
            return before.at(pricing.table)
        policy = self.plan.policy
        return policy.source.single(policy.specification, pricing.table, policy.constraint)


def _filled(table: FloatArray, rows: int) -> FloatArray:
    """Prices [prices, budgets] of at least so many rows, the last one repeated."""
    missing = rows - len(table)
    return table if missing <= 0 else np.concatenate([table, np.repeat(table[-1:], missing, axis=0)])


# Decisions for some users at once, in calls that are small enough for somebody who waits.

CALL_SIZES = (8, 16, 32)
"""Whose trees one call of the compiled program plans, whether there are so many or not: the least that are enough."""


def can_decide_together(valuer: Valuer) -> bool:
    """Whether there is one compiled program for it: rules at the nodes of a tree do not fit in."""
    return isinstance(valuer, TreePlanner) and valuer.constraint is None


def decide_together(
    planner: TreePlanner, states: Sequence[NDArray[np.float32]], left: NDArray[np.int64], table: FloatArray
) -> list[tuple[FloatArray, FloatArray]]:
    """Probabilities [prices, actions] and outcomes of this step [outcomes, actions] of each state [width].

    Users have so many decisions `left` [users]: those near the end share the program of the others, and their trees
    end where the campaign does. Prices are a table [prices, budgets].
    """
    found: list[tuple[FloatArray, FloatArray]] = []
    reach = np.minimum(left, planner.depth).astype(np.int32)
    shape = planner.branching.at_depth(planner.depth)
    for first in range(0, len(states), CALL_SIZES[-1]):
        rows = np.stack(states[first : first + CALL_SIZES[-1]])
        size = next(size for size in CALL_SIZES if len(rows) <= size)
        terms = (planner.temperature, planner.discount, planner.explore, size)
        part = decide_in_one_program(planner.model, rows, shape, table, *terms, reach[first : first + len(rows)])
        if not part.finite.all():
            raise ModelError("the model's predictions for a user are not finite numbers; the state lies far outside")
        outcomes = np.asarray(part.outcomes, dtype=np.float64).swapaxes(0, 1)
        found.extend(zip(np.asarray(part.probabilities, dtype=np.float64), outcomes, strict=True))
    return found
