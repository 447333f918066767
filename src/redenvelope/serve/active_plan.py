"""The active plan: its decisions, the charges of its actions, and its pacing, replaced together when plans change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from math import isnan
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from redenvelope.campaign.conditions import columns_of
from redenvelope.errors import UsageError
from redenvelope.ledger.ledger import Ledger
from redenvelope.ledger.records import Fund, PriceNote
from redenvelope.log.cleaning.dates import dates_of, with_relative_row
from redenvelope.log.encoding.row import label_of, number_of
from redenvelope.plan.decide import DecisionEngine, stacked
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import policy_sha256
from redenvelope.planning.planner import FEW_USERS
from redenvelope.policies.eligibility_state import EligibilityState, allowed, eligibility_of_row
from redenvelope.policies.new_actions import known_history
from redenvelope.policies.pricing import Pricing
from redenvelope.randomness import user_key
from redenvelope.serialization import to_plain
from redenvelope.serve.funds import Amounts, ChargeTable, charge_table_of, funded_budgets, served_funds
from redenvelope.serve.pacing import Pacer, Progress
from redenvelope.serve.settings import ServeSettings


@dataclass(frozen=True, eq=False)
class ActivePlan:
    """A loaded plan, what its actions may cost, and the pacing of its prices."""

    plan: LoadedPlan
    charges: ChargeTable
    pacer: Pacer | None
    expected: ExpectedFeatures

    @property
    def pricing(self) -> Pricing:
        """The current prices."""
        return self.plan.plan.policy.pricing if self.pacer is None else self.pacer.pricing

    def described(self) -> str:
        """What a reader of the decision log needs to know about the plan, as JSON."""
        plan = self.plan.plan
        campaign = {"budget": plan.record.budgets, "rule": plan.policy.rules}
        content = {"plan": self.plan.sha256, "labels": self.plan.labels, "features": self.expected.kinds}
        return msgspec.json.encode({**content, "campaign": to_plain(campaign)}).decode()

    def beliefs(self) -> dict[str, dict[str, Any]]:
        """The state of pacing, by budget."""
        found = () if self.pacer is None else self.pacer.beliefs
        return {name: one.as_dict() for name, one in zip(self.charges.names, found, strict=False)}

    def solve(self, ledger: Ledger, now: int) -> PriceNote | None:
        """Let pacing update the prices; returns the note to record if they changed."""
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
    """Load a plan and warm it up; returns it with the funds in its order of budgets. `seed` is that of all draws."""
    plan = Plan.load(folder)
    served = served_funds(funded_budgets(plan, settings.minor_units), funds)
    budgets = [fund.budget for fund in served]
    charges = charge_table_of(plan, budgets, amounts, settings)
    pacer = None
    if settings.audience is not None and settings.pacing is not None:
        units = [one.minor_units for one in charges.budgets]
        pacer = Pacer(plan, settings.pacing, settings.audience, units)
    rows = len(plan.policy.pricing.shares) if pacer is None else pacer.rows
    expected = ExpectedFeatures(plan, charges)
    return ActivePlan(LoadedPlan(plan, seed, rows).warm(paced=pacer is not None), charges, pacer, expected), served


# Features of requests, checked against those that the plan was fitted with.

_RESERVED = frozenset(
    (
        *("user", "step", "action", "propensity", "reward", "cost", "price", "plan", "eligible", "expired", "episode"),
        *("holdout", "past as decided", "all labels"),
    )
)
_PRICE_OF = "price of "
_NUMBER: set[type] = {float, int, bool}
_TEXT: set[type] = {str, NoneType}
_ANY = _NUMBER | _TEXT
_LARGEST = 3.4e38  # from here on a number becomes infinite as float32
_MOST_SHOWN = 20


class FeatureFault(NamedTuple):
    """A feature of a request that is not what the plan expects."""

    code: str
    """`unknown_feature`, `missing_feature` or `wrong_type`."""
    name: str
    given: Any = None
    """The value of the wrong type; for a missing feature, whether it was sent as null."""

    @property
    def counted_as(self) -> str:
        """Its name in metrics; empty for unknown features, whose names callers choose."""
        return "" if self.code == "unknown_feature" else self.name


class ExpectedFeatures:
    """The features that a plan uses; only these are stored with a decision.

    A request with other features would be decided as if for somebody else. A feature with the name of one of the
    ledger's own log columns would make that log unreadable.
    """

    def __init__(self, plan: Plan, charges: ChargeTable) -> None:
        encoder = plan.policy.encoder
        self._numbers = {one.name: one.missing_seen for one in encoder.numbers}
        self._labels = {one.name: frozenset((*one.labels, *one.rare)) for one in encoder.categories}
        self._of_dates = encoder.of_dates
        self._dates = {date for name in self._of_dates for date in dates_of(name)}
        own = {*self._numbers, *self._labels}
        self._dates -= own
        conditions = [rule.condition for rule in plan.policy.rules] + [one.condition for one in charges.budgets]
        used = {name for one in conditions if one is not None for name in columns_of(one)}
        self._others = used - own - self._dates - {"step"}
        self.names = (*self._numbers, *self._labels, *sorted(self._others))
        self._kinds: dict[str, set[type]] = {
            **{name: _NUMBER | ({NoneType} if seen else set()) for name, seen in self._numbers.items()},
            **dict.fromkeys(self._labels, _TEXT),
            **dict.fromkeys(self._others, _ANY),
        }
        summed = {one.measure for one in charges.budgets}
        written = [("feature", name, _RESERVED | summed) for name in self.names]
        written += [("budget of", name, _RESERVED - {"cost", "reward"}) for name in sorted(summed)]
        for kind, name, taken in written:
            if name in taken or name.startswith(_PRICE_OF):
                raise UsageError(
                    f"the plan has a {kind} {name!r}, which is a column of the log that the ledger keeps; rename the "
                    "column in the log that the plan is made from, and fit again"
                )

    @property
    def kinds(self) -> dict[str, str]:
        """What each feature is: number, text, or either (value)."""
        known = {**dict.fromkeys(self._numbers, "number"), **dict.fromkeys(self._labels, "text")}
        return {name: known.get(name, "value") for name in self.names}

    def admitted(self, features: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[FeatureFault]]:
        """The features that the plan knows, with unreadable values as missing, and the faults of the rest."""
        kinds = self._kinds
        if features.keys() == kinds.keys() and all(
            type(value) in kinds[name] and (type(value) is not float or -_LARGEST < value < _LARGEST)
            for name, value in features.items()
        ):
            return features, []
        given = with_relative_row(features, self._of_dates) if self._of_dates else features
        unknown = (name for name in features if name not in kinds and name not in self._dates)
        faults = [FeatureFault("unknown_feature", name) for name in unknown]
        for name in self.names:
            value = given.get(name)
            if name not in given or (value is None and not self._may_be_null(name)):
                faults.append(FeatureFault("missing_feature", name, name in given))
            elif value is not None and not self._fits(name, value):
                faults.append(FeatureFault("wrong_type", name, value))
        kept = {name: self._read(name, value) for name, value in features.items() if name in kinds}
        return kept | {name: features[name] for name in self._dates if isinstance(features.get(name), str)}, faults

    def _fits(self, name: str, value: Any) -> bool:
        if name in self._numbers:
            return not isinstance(value, str) and not isnan(number_of(value))
        return name in self._others or isinstance(value, str) or label_of(value) in self._labels[name]

    def _read(self, name: str, value: Any) -> Any:
        if name in self._numbers and (isinstance(value, str) or not self._fits(name, value)):
            number = number_of(value)
            return None if isnan(number) else number
        if name in self._labels and value is not None and not isinstance(value, str):
            # A number is a label if the log had it as one.
            return label_of(value) if self._fits(name, value) else None
        return value

    def _may_be_null(self, name: str) -> bool:
        return self._numbers.get(name, True)

    def described(self, fault: FeatureFault) -> tuple[str, str]:
        """What is wrong with a feature, and what to do."""
        name, wanted = fault.name, self._wanted(fault.name)
        if fault.code == "unknown_feature":
            return self._unknown(name)
        if fault.code == "wrong_type":
            kind = _kind(fault.given)
            large = " too large to be one" if kind == wanted else ""
            return f"feature {name!r} is {kind}{large}; expected {wanted}", f"send {wanted}, as in the log of the plan"
        if fault.given:
            return (
                f"feature {name!r} is null, but no user in the plan's log was without it; expected {wanted}",
                "send it",
            )
        made = " (or the dates that it is made of)" if name in self._of_dates else ""
        null = ", or null where it is not known" if self._may_be_null(name) else ""
        return f"feature {name!r} is missing; expected {wanted}{made}", f"send it{null}"

    def _unknown(self, name: str) -> tuple[str, str]:
        if name in _RESERVED or name.startswith(_PRICE_OF):
            return f"a feature cannot have the reserved name {name[:60]!r}", "rename it, or leave it out"
        near = get_close_matches(name[:60], self.names, 1)
        meant = f"send {near[0]!r}, if that is meant, or leave it out" if near else "leave it out"
        shown = ", ".join(self.names[:_MOST_SHOWN]) + (", …" if len(self.names) > _MOST_SHOWN else "")
        return f"the plan has no feature {name[:60]!r}", f"{meant}; the plan's features are {shown}"

    def _wanted(self, name: str) -> str:
        return "a number" if name in self._numbers else "text" if name in self._labels else "a value"


def _kind(value: Any) -> str:
    return "text" if isinstance(value, str) else "true or false" if isinstance(value, bool) else "a number"


# Decisions for users who wait at the same time, in calls small enough to answer quickly.


class DecisionQuery(NamedTuple):
    """A user and step to decide for."""

    user: int | str
    step: int
    features: Mapping[str, Any]
    past: Sequence[Mapping[str, Any]]
    """Earlier steps: step, action, reward and cost."""
    eligible: NDArray[np.bool_] | None = None
    """[actions]; None: all."""


class ActionDistribution(NamedTuple):
    """The plan's distribution over actions for one query, in plain numbers, ready for the draw in the transaction."""

    probabilities: list[float]
    """[actions]"""
    costs: list[list[float]]
    """Expected at this step, [budgets][actions]."""
    prices: tuple[float, ...]
    """The prices that the user follows, [budgets]; empty for held-out users, who follow none."""
    uniform: float
    """The number that draws the action: fixed by user, step and seed."""
    allowed: list[bool] | None
    """Actions allowed by the plan's rules and by the request, [actions]; None: all."""


class LoadedPlan:
    """A plan that is loaded and compiled; prices are an argument of every call, because pacing changes them."""

    def __init__(self, plan: Plan, seed: int = 0, rows: int = 2) -> None:
        """`rows` is the most rows of prices in a mixture; programs are compiled for that many, once."""
        self.plan, self.seed = plan, seed
        self.sha256 = policy_sha256(plan.policy)
        policy = plan.policy
        self._encoder = policy.encoder
        self.first_step, self.steps = policy.encoder.first_step, policy.specification.steps
        self.labels = policy.offered.labels
        self.needs_history = plan.needs_history
        self._engine = DecisionEngine(policy, seed, max(rows, 2), waiting=True)

    def warm(self, paced: bool = False) -> LoadedPlan:
        """Compile by deciding for placeholder users, alone and in groups, so that no request waits for a compilation.
        If prices are `paced` they may become infinite, which is another program."""
        nobody = [DecisionQuery(user, self.first_step, {}, ()) for user in self.plan.policy.one_of_each()]
        own = self.plan.policy.pricing
        ends = Pricing(((1.0,) * own.budgets, (np.inf,) * own.budgets), (0.5, 0.5))
        for pricing in (own, ends) if paced and self.plan.policy.plans else (own,):
            for size, one in product(FEW_USERS, nobody):
                self.propose([one] * size, pricing)
        return self

    def encode(self, asked: Sequence[DecisionQuery]) -> NDArray[np.float32]:
        """The encoded states [users, width]; raises ModelError if a feature does not fit."""
        return self._encoder.encode_rows([_row(one) for one in asked], [self._past(one) for one in asked])

    def _past(self, one: DecisionQuery) -> Any:
        return known_history(self.plan.policy.new, self.plan.catalogue, one.past)

    def propose(
        self, asked: Sequence[DecisionQuery], pricing: Pricing, states: Sequence[NDArray[np.float32]] | None = None
    ) -> list[ActionDistribution]:
        """The action distribution of each query at given prices; `states` avoids encoding again."""
        rows = self.encode(asked) if states is None else np.array(states)
        keys = np.array([user_key(one.user) for one in asked], dtype=np.uint64)
        steps = np.array([one.step for one in asked], dtype=np.int64)
        constraint = self.plan.policy.constraint
        eligibilities = [self._eligibility(one) for one in asked]
        known, lists = len(self.plan.catalogue), [one.eligible for one in asked]
        eligibility = stacked(eligibilities, known, 0 if constraint is None else constraint.remembers)
        listed = np.array([np.ones(len(self.labels), dtype=bool) if one is None else one for one in lists])[:, known:]
        found = [
            self._engine.decide(rows[part], steps[part], eligibility[part], keys[part], pricing, listed[part])
            for part in _parts(len(asked))
        ]
        may = np.concatenate([one.probabilities[:, known:] > 0 for one in found])
        by_rules = allowed(eligibility, constraint, rows, self.first_step + self.steps - steps)
        masks = np.concatenate([by_rules, may], axis=1).tolist()
        # Convert whole arrays to plain numbers, which is far cheaper than row by row.
        each = (
            row
            for one in found
            for row in zip(
                *(one.probabilities.tolist(), one.outcomes[1:].swapaxes(0, 1).tolist()),
                *(one.followed.tolist(), one.uniforms.tolist(), one.held_out.tolist()),
                strict=True,
            )
        )
        return [
            ActionDistribution(
                *(probabilities, costs, () if held_out else pricing.prices[price], uniform),
                None if eligibilities[place] is None else masks[place],
            )
            for place, (probabilities, costs, price, uniform, held_out) in enumerate(each)
        ]

    def _eligibility(self, one: DecisionQuery) -> EligibilityState | None:
        """The eligibility state of a query, from the rules and the request; None if neither restricts the actions."""
        constraint = self.plan.policy.constraint
        if constraint is None and one.eligible is None:
            return None
        listed = None if one.eligible is None else one.eligible[: len(self.plan.catalogue)]
        past = self._past(one)
        return eligibility_of_row(constraint, self._encoder, _row(one), one.step, past, listed).eligibility


def _row(one: DecisionQuery) -> dict[str, Any]:
    return {**one.features, "step": one.step}


def _parts(users: int) -> list[slice]:
    """Splits users into calls of the compiled batch sizes: a partly filled call takes as long as a full one, and two
    small calls as long as a large one."""
    small, large = FEW_USERS[-2:]
    most = small if users <= 2 * small else large
    return [slice(first, min(first + most, users)) for first in range(0, users, most)]
