"""The deployed policy: a learned source of action values, an encoder and prices; features in, probabilities out.

`DeployedPolicy` is what a plan decides by. Its `Source` is a model planned with by trees (`ModelSource`), values
learned without a model (`LearnedSource`), or several of one kind from different users (`CrossFittedSource`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.arrays import Float32Array, FloatArray, IntArray, KeyArray
from redenvelope.campaign.records import Rule
from redenvelope.dual.oracle import PriceFunction
from redenvelope.errors import PlanError
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.models.charges import ChargedModel, Charges
from redenvelope.models.neural_model import NeuralModel
from redenvelope.planning.leaf_values import LEAF_VALUES, LeafValues
from redenvelope.planning.planner import ModelPrice, TreePlanner
from redenvelope.planning.q_values import LearnedPrice, LearnedValues, learned_from_state, learned_state
from redenvelope.policies.action_values import ActionValues, Valuer
from redenvelope.policies.eligibility_state import EligibilityState, eligibility_of_frame, eligibility_of_log
from redenvelope.policies.new_actions import IntroducedAction, known_history
from redenvelope.policies.policy import Constraint, normalised
from redenvelope.policies.pricing import Pricing
from redenvelope.policies.rules import RuleConstraint
from redenvelope.randomness import member_of, user_keys
from redenvelope.serialization import from_plain, to_plain

Rows = slice | NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class DeployedPolicy:
    """A specification, a learned source, the encoder, the action catalogue, the prices and the rules.

    A cross-fitted policy has several members at the same prices, each made without the users who follow it.
    """

    specification: PolicySpecification
    source: Source
    encoder: Encoder
    catalogue: ActionCatalogue
    pricing: Pricing
    rules: tuple[Rule, ...] = ()
    """Which users may get which actions, and how often."""
    joins_late: bool = False
    """Whether some users' campaigns began after the first step; rules that count then start counting there."""
    holdout: float = 0.0
    """Share of users, by the hash of their ids, in the control group, which gets the cheapest eligible action.
    Estimates and certificates leave them out."""
    new: tuple[IntroducedAction, ...] = ()
    """Actions that the log does not have, drawn beside the plan. All of the policy's own figures leave them out."""

    @cached_property
    def constraint(self) -> RuleConstraint | None:
        """The rules as a constraint for planners; None if there are none."""
        return RuleConstraint(self.rules, self.encoder, self.catalogue, self.joins_late) if self.rules else None

    @cached_property
    def offered(self) -> ActionCatalogue:
        """The actions that decisions may give: the catalogue's, then the new ones."""
        return replace(self.catalogue, labels=(*self.catalogue.labels, *(each.label for each in self.new)))

    @property
    def set_aside(self) -> FloatArray:
        """The most that new actions add to the mean cost per user, which budgets set aside, [budgets]."""
        found: FloatArray = np.array([[0.0] * self.pricing.budgets, *(each.added for each in self.new)]).sum(axis=0)
        return found

    @cached_property
    def members(self) -> tuple[DeployedPolicy, ...]:
        """The policies that users follow by the hash of their ids; the policy itself if it is not cross-fitted."""
        if not isinstance(self.source, CrossFittedSource):
            return (self,)
        return tuple(replace(self, source=source) for source in self.source.members)

    def one_of_each(self) -> tuple[int, ...]:
        """One user id per member that follows it, [members]."""
        members = len(self.members)
        ids = np.arange(100 * members)
        first = np.unique(member_of(ids.astype(np.uint64), members), return_index=True)[1]
        return tuple(int(own) for own in ids[first])

    def by_member(
        self, keys: KeyArray, work: Callable[[DeployedPolicy, Rows], Sequence[NDArray[Any]]], axes: Sequence[int]
    ) -> Sequence[NDArray[Any]]:
        """The arrays that `work` makes for each member and the rows of its users, put back in row order. `keys` [rows]
        are the users' keys, and `axes` the row axis of each array."""
        if len(self.members) == 1 or not len(keys):
            return work(self.members[0], slice(None))
        member = member_of(keys, len(self.members))
        rows = [np.flatnonzero(member == number) for number in range(len(self.members))]
        parts = [work(own, some) for own, some in zip(self.members, rows, strict=True) if len(some)]
        order = np.argsort(np.concatenate(rows), kind="stable")
        tables = zip(zip(*parts, strict=True), axes, strict=True)
        return [np.take(np.concatenate(each, axis=axis), order, axis=axis) for each, axis in tables]

    @cached_property
    def valuer(self) -> Valuer:
        """The action values, of a policy with one member."""
        return self.source.valuer(self.specification, self.constraint)

    def outcomes(self, states: Float32Array, keys: KeyArray) -> FloatArray:
        """Expected outcomes of this step alone, for rows of users with these keys, [outcomes, rows, actions]."""
        return self.by_member(keys, lambda own, rows: (own.valuer.outcomes(states[rows]),), (1,))[0]

    @property
    def plans(self) -> bool:
        """Whether actions are valued by planning with a model."""
        return isinstance(self.members[0].source, ModelSource)

    def believed(
        self, states: NDArray[np.float32], steps_left: NDArray[np.int64], eligibility: EligibilityState | None
    ) -> PriceFunction:
        """Predicted reward and cost of the campaign as functions of the price, from first states [users, width]; of a
        policy with one member."""
        valuer = self.valuer
        if isinstance(valuer, TreePlanner):
            return ModelPrice(valuer, states, steps_left, eligibility)
        assert isinstance(valuer, LearnedValues)
        return LearnedPrice(valuer, states, steps_left, eligibility)

    def to_the_end(
        self, states: Float32Array, steps_left: IntArray, prices: FloatArray, eligibility: EligibilityState | None
    ) -> ActionValues:
        """Action values at prices [prices, budgets] with outcomes to go until the end of the campaign: the baseline of
        doubly robust estimates, of a policy with one member."""
        values = self.valuer.values(states, steps_left, prices, eligibility)
        ends = getattr(self.source, LEAF_VALUES, None)
        if ends is None or self.specification.leaf_values or not isinstance(self.valuer, TreePlanner):
            return values
        ahead = replace(self.valuer, horizon=1, leaf_values=ends)
        return values._replace(to_go=ahead.values(states, steps_left, prices, eligibility).to_go)

    @property
    def looks_to_the_end(self) -> bool:
        """Whether action values reach the end of the campaign. They do not in plans of earlier versions whose trees end
        before it, nor with more budgets than values to go are learned for."""
        first = self.members[0]
        known = not isinstance(first.source, ModelSource) or first.source.leaf_values is not None
        return known or first.valuer.depth >= self.specification.steps

    def eligibility(self, log: Log) -> EligibilityState | None:
        """Eligibility of logged rows; None where nothing is ruled out."""
        return eligibility_of_log(self.constraint, log)

    @property
    def several_budgets(self) -> tuple[str, ...]:
        """Budget names if there are several, [budgets]; empty with one."""
        charges = self.source.charges
        return () if charges is None or len(charges.budgets) < 2 else charges.names

    def steps_left(self, step: NDArray[np.integer]) -> NDArray[np.int64]:
        """Number of decisions left, this one included, [rows]."""
        return np.asarray(self.encoder.first_step + self.specification.steps - step, dtype=np.int64)

    def values(self, log: Log) -> ActionValues:
        """Action values of logged rows at the policy's own prices, [rows, prices, actions]."""
        states, left, eligibility = self.encoder.encode(log), self.steps_left(log.step), self.eligibility(log)

        def of_member(own: DeployedPolicy, rows: Rows) -> ActionValues:
            some = None if eligibility is None else eligibility[rows]
            return own.valuer.values(states[rows], left[rows], self.pricing.table, some)

        return ActionValues(*self.by_member(np.repeat(log.keys, log.lengths), of_member, (0, 0, 1)))

    def probabilities(
        self, frame: pl.DataFrame, row: int = 0, history: pl.DataFrame | None = None
    ) -> NDArray[np.float64]:
        """Probabilities [rows, actions] for a table of users (step and features) who follow one row of the prices.
        New actions are drawn beside these.

        `history` holds their earlier steps, if the encoder needs them. A policy with several members needs the column
        `user`.
        """
        if len(self.members) > 1 and "user" not in frame.columns:
            raise PlanError("which member of the plan a user follows depends on the id: add the column 'user'")
        history = known_history(self.new, self.catalogue, history)
        states, _ = self.encoder.encode_frame(frame, history)
        left = self.steps_left(frame["step"].to_numpy())
        eligibility = eligibility_of_frame(self.constraint, self.encoder, self.catalogue, frame, history).eligibility

        def of_member(own: DeployedPolicy, rows: Rows) -> tuple[NDArray[np.float64]]:
            some = None if eligibility is None else eligibility[rows]
            decided = own.valuer.decided(states[rows], left[rows], self.pricing.table[[row]], some)
            return (normalised(decided.probabilities[:, 0]),)

        keys = user_keys(frame["user"]) if len(self.members) > 1 else np.zeros(len(frame), np.uint64)
        return self.by_member(keys, of_member, (0,))[0]


_SINCE_FORMAT_5 = {"attributes": 0, "pieces": [[], []], "calibrated": False, "leaf_values": False}
"""Keys that a plan of format 5 does not have, with the values that their absence means."""


def policy_sha256(policy: DeployedPolicy, format_5: bool = False) -> str:
    """A hash of everything that determines the policy's decisions; `format_5` hashes as that format did."""
    config, weights = policy.source.state()
    digest = hashlib.sha256()
    plain = {
        "specification": to_plain(policy.specification),
        "pricing": to_plain(policy.pricing),
        "encoder": to_plain(policy.encoder),
        "catalogue": to_plain(policy.catalogue),
        "rules": to_plain(policy.rules),
        "joins_late": policy.joins_late,
        "source": policy.source.kind,
        "model": config,
    }
    if policy.holdout:  # absent without a holdout, so that hashes of older plans stay the same
        plain["holdout"] = policy.holdout
    if policy.new:
        plain["new"] = to_plain(policy.new)
    if format_5:
        plain = _less(plain, _SINCE_FORMAT_5)
    digest.update(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def _less(value: Any, entries: dict[str, Any]) -> Any:
    """Plain data without these entries, wherever they have these values."""
    if isinstance(value, dict):
        kept = {name: item for name, item in value.items() if name not in entries or item != entries[name]}
        return {name: _less(item, entries) for name, item in kept.items()}
    return [_less(item, entries) for item in value] if isinstance(value, list) else value


# The settings of a policy.


@dataclass(frozen=True)
class PolicySpecification:
    """The settings of a policy: everything but its weights, rules and prices."""

    method: str
    horizon: int
    temperature: float
    steps: int
    """Steps of the campaign."""
    explore: float = 0.0
    """Share of decisions drawn uniformly from the eligible actions."""
    leaf_values: bool = False
    """Whether trees have values to go at their leaves; without them nothing follows a tree, as in the paper."""


# What was learned: a model to plan with, or action values without a model. Each kind stores itself.

Weights = dict[str, NDArray[np.float32]]
"""Arrays by name."""
_CHARGES = "charges"


class Source(Protocol):
    """A learned source of action values."""

    kind: ClassVar[str]

    @property
    def charges(self) -> Charges | None:
        """What each budget is charged, from measured outcomes; None if the only budget is of the cost itself."""
        ...

    def valuer(self, wanted: PolicySpecification, rules: Constraint | None = None) -> Valuer:
        """The action values under these settings and rules."""
        ...

    @property
    def shape(self) -> tuple[StateLayout, int, int]:
        """State layout, number of actions, and number of costs."""
        ...

    @property
    def steps(self) -> int | None:
        """Number of campaign steps that it was learned for; None if any number will do."""
        ...

    def state(self) -> tuple[dict[str, Any], Weights]:
        """Plain data for JSON, and the weights."""
        ...

    @classmethod
    def from_state(cls, config: dict[str, Any], weights: Weights) -> Source:
        """Read what `state` wrote."""
        ...


@dataclass(frozen=True, eq=False)
class ModelSource:
    """A model that trees plan with."""

    kind: ClassVar[str] = "model"
    model: NeuralModel
    charges: Charges | None = None
    """What each budget is charged, from predicted outcomes; None if the only budget is of the cost itself."""
    leaf_values: LeafValues | None = None
    """The policy's values to go; None if its trees reach the end of the campaign, or if none were learned."""

    @property
    def world(self) -> NeuralModel | ChargedModel:
        """The model, with the charges of the budgets as its costs."""
        return self.model if self.charges is None else ChargedModel(self.model, self.charges)

    def valuer(self, wanted: PolicySpecification, rules: Constraint | None = None) -> TreePlanner:
        """See Source."""
        terms = (wanted.horizon, wanted.temperature, wanted.steps)
        ends = self.leaf_values if wanted.leaf_values else None
        return TreePlanner(self.world, *terms, constraint=rules, explore=wanted.explore, leaf_values=ends)

    @property
    def shape(self) -> tuple[StateLayout, int, int]:
        """See Source."""
        return self.model.layout, self.model.actions, self.world.budgets

    @property
    def steps(self) -> None:
        """See Source."""
        return

    def state(self) -> tuple[dict[str, Any], Weights]:
        """See Source."""
        config, weights = self.model.state()
        if self.charges is not None:
            config |= {_CHARGES: to_plain(self.charges)}
        if self.leaf_values is not None:
            written, further = self.leaf_values.state()
            config, weights = config | {LEAF_VALUES: written}, weights | further
        return config, weights

    @classmethod
    def from_state(cls, config: dict[str, Any], weights: Weights) -> ModelSource:
        """See Source."""
        own = {name: value for name, value in config.items() if name not in (_CHARGES, LEAF_VALUES)}
        further = {name: array for name, array in weights.items() if name.startswith(LEAF_VALUES)}
        model = NeuralModel.from_state(own, {name: array for name, array in weights.items() if name not in further})
        charges = from_plain(Charges, config[_CHARGES], "charges") if _CHARGES in config else None
        if charges is not None and (charges.actions, charges.measured) != (model.actions, 1 + model.budgets):
            raise PlanError("the charges of its budgets are of other actions or outcomes than its model's")
        leaf_values = LeafValues.from_state(config[LEAF_VALUES], further) if LEAF_VALUES in config else None
        return cls(model, charges, leaf_values)


@dataclass(frozen=True, eq=False)
class LearnedSource:
    """Action values learned without a model, for all prices."""

    kind: ClassVar[str] = "learned"
    values: LearnedValues

    @property
    def charges(self) -> Charges | None:
        """See Source."""
        return None

    def valuer(self, wanted: PolicySpecification, rules: Constraint | None = None) -> LearnedValues:
        """See Source."""
        return replace(self.values, constraint=rules, explore=wanted.explore)

    @property
    def shape(self) -> tuple[StateLayout, int, int]:
        """See Source."""
        return self.values.layout, self.values.actions, 1

    @property
    def steps(self) -> int:
        """See Source."""
        return self.values.steps

    def state(self) -> tuple[dict[str, Any], Weights]:
        """See Source."""
        return learned_state(self.values)

    @classmethod
    def from_state(cls, config: dict[str, Any], weights: Weights) -> LearnedSource:
        """See Source."""
        return cls(learned_from_state(config, weights))


SOURCES: dict[str, type[ModelSource] | type[LearnedSource]] = {
    source.kind: source for source in (ModelSource, LearnedSource)
}
"""The kinds of sources in a plan folder; a cross-fitted source consists of these."""

MOST_MEMBERS = 20
_MEMBERS = "members"


@dataclass(frozen=True)
class _WrittenMember:
    """A member's kind and configuration, without its weights."""

    kind: str
    config: dict[str, Any]


@dataclass(frozen=True, eq=False)
class CrossFittedSource:
    """Sources of one kind and shape, learned from different users."""

    kind: ClassVar[str] = "cross-fitted"
    members: tuple[Source, ...]
    """At least two."""

    def __post_init__(self) -> None:
        first = self.members[0] if self.members else None
        alike = first is not None and all(
            (each.kind, each.shape, each.steps, each.charges) == (first.kind, first.shape, first.steps, first.charges)
            for each in self.members
        )
        if not (alike and first is not None and first.kind in SOURCES and 2 <= len(self.members) <= MOST_MEMBERS):
            raise PlanError("the members of a cross-fitted policy must be two or more of one kind and one campaign")

    @property
    def charges(self) -> Charges | None:
        """See Source."""
        return self.members[0].charges

    def valuer(self, wanted: PolicySpecification, rules: Constraint | None = None) -> Valuer:
        """Refused: each member has its own action values."""
        raise PlanError("a cross-fitted policy decides by its members: ask each of them")

    @property
    def shape(self) -> tuple[StateLayout, int, int]:
        """See Source."""
        return self.members[0].shape

    @property
    def steps(self) -> int | None:
        """See Source."""
        return self.members[0].steps

    def state(self) -> tuple[dict[str, Any], Weights]:
        """See Source."""
        configs, weights = list[dict[str, Any]](), Weights()
        for number, (own, arrays) in enumerate(member.state() for member in self.members):
            configs.append({"kind": self.members[number].kind, "config": own})
            weights |= {f"{number} {name}": array for name, array in arrays.items()}
        return {_MEMBERS: configs}, weights

    @classmethod
    def from_state(cls, config: dict[str, Any], weights: Weights) -> CrossFittedSource:
        """See Source."""
        listed = config.get(_MEMBERS)
        if not isinstance(listed, list) or not 2 <= len(listed) <= MOST_MEMBERS:
            raise PlanError("the members of a cross-fitted policy are not listed")
        members, used = [], 0
        for number, written in enumerate(from_plain(_WrittenMember, each, "a member") for each in listed):
            head = f"{number} "
            own = {name.removeprefix(head): array for name, array in weights.items() if name.startswith(head)}
            if written.kind not in SOURCES:
                raise PlanError(f"a member decides by {written.kind[:40]!r}, which this version does not know")
            members.append(SOURCES[written.kind].from_state(written.config, own))
            used += len(own)
        if used != len(weights):
            raise PlanError("there are weights that belong to no member")
        return cls(tuple(members))


def cross_fitted(policies: Sequence[DeployedPolicy]) -> DeployedPolicy:
    """Combine policies that differ only in their sources into one; each user follows one of them."""
    if len(policies) == 1:
        return policies[0]
    return replace(policies[0], source=CrossFittedSource(tuple(policy.source for policy in policies)))


def source_from_state(kind: str, config: dict[str, Any], weights: Weights) -> Source:
    """Read a source of this kind from what its `state` wrote."""
    if kind == CrossFittedSource.kind:
        return CrossFittedSource.from_state(config, weights)
    if kind not in SOURCES:
        raise PlanError(f"it decides by {kind!r}, which this version does not know; upgrade redenvelope")
    return SOURCES[kind].from_state(config, weights)
