"""What was learned and decides: a model to plan with, or values learned without one, each stored by its kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from redenvelope.dual.price import PriceFunction
from redenvelope.errors import PlanError
from redenvelope.log.layout import StateLayout
from redenvelope.models.charged import ChargedModel
from redenvelope.models.charges import Charges
from redenvelope.models.neural import NeuralModel
from redenvelope.plain import from_plain, to_plain
from redenvelope.plan.specification import PolicySpecification
from redenvelope.planning.learned_price import LearnedPrice
from redenvelope.planning.learned_stored import learned_from_state, learned_state
from redenvelope.planning.learned_values import LearnedValues
from redenvelope.planning.rollout import ModelPrice
from redenvelope.planning.tree import TreePlanner
from redenvelope.policies.constraints import Constraint
from redenvelope.policies.standing import Standing
from redenvelope.policies.values import Valuer

if TYPE_CHECKING:
    from redenvelope.planning.single_backup import SingleDecision

__all__ = ["SOURCES", "LearnedSource", "ModelSource", "SingleValuer", "Source", "Weights", "source_from_state"]

States = NDArray[np.float32]
StepsLeft = NDArray[np.int64]
Weights = dict[str, NDArray[np.float32]]
"""Arrays by name."""
_CHARGES = "charges"


class SingleValuer(Protocol):
    """Says what one user's actions are worth at the prices it was made for, in plain arrays."""

    def decide(
        self, state: States, steps_left: int, eligible: Standing | NDArray[np.bool_] | None = None
    ) -> SingleDecision:
        """Of a state [width]; `eligible` [actions], or a `Standing` of one row, rules actions out."""
        ...


class Source(Protocol):
    """Something learned that says what actions are worth."""

    kind: ClassVar[str]

    @property
    def charges(self) -> Charges | None:
        """What budgets are charged of what is measured; None where the one budget is of the cost."""
        ...

    def valuer(self, wanted: PolicySpecification, rules: Constraint | None = None) -> Valuer:
        """What says how much every action is worth, as the specification wants it and the rules allow."""
        ...

    def planner(self, wanted: PolicySpecification, rules: Constraint | None = None) -> TreePlanner | None:
        """The planner behind it, whose trees may end before the campaign does; None where nothing is planned."""
        ...

    def single(
        self, wanted: PolicySpecification, prices: NDArray[np.float64], rules: Constraint | None = None
    ) -> SingleValuer:
        """The same for one user at a time, at prices [prices, budgets]."""
        ...

    def believed(
        self,
        wanted: PolicySpecification,
        states: States,
        steps_left: StepsLeft,
        standing: Standing | None = None,
        rules: Constraint | None = None,
    ) -> PriceFunction:
        """What it believes of the whole campaign from first states [users, width] of users who stand there on."""
        ...

    @property
    def shape(self) -> tuple[StateLayout, int, int]:
        """The states it was learned on, the number of actions, and that of costs."""
        ...

    @property
    def steps(self) -> int | None:
        """Steps of the campaign that it was learned for; None where any number will do."""
        ...

    def state(self) -> tuple[dict[str, Any], Weights]:
        """Plain data for JSON, and the weights."""
        ...

    @classmethod
    def from_state(cls, config: dict[str, Any], weights: Weights) -> Source:
        """What `state` wrote."""
        ...


@dataclass(frozen=True, eq=False)
class ModelSource:
    """A model, planned with by trees."""

    kind: ClassVar[str] = "model"
    model: NeuralModel
    charges: Charges | None = None
    """What budgets are charged of what the model measures; None where the one budget is of the cost."""

    @property
    def world(self) -> NeuralModel | ChargedModel:
        """The model with the costs of the budgets."""
        return self.model if self.charges is None else ChargedModel(self.model, self.charges)

    def valuer(self, wanted: PolicySpecification, rules: Constraint | None = None) -> TreePlanner:
        """See Source."""
        terms = (wanted.horizon, wanted.temperature, wanted.steps)
        return TreePlanner(self.world, *terms, constraint=rules, explore=wanted.explore)

    def planner(self, wanted: PolicySpecification, rules: Constraint | None = None) -> TreePlanner:
        """See Source."""
        return self.valuer(wanted, rules)

    def single(
        self, wanted: PolicySpecification, prices: NDArray[np.float64], rules: Constraint | None = None
    ) -> SingleValuer:
        """See Source."""
        from redenvelope.planning.single import SinglePlanner

        return SinglePlanner.of(self.valuer(wanted, rules), self.model, prices)

    def believed(
        self,
        wanted: PolicySpecification,
        states: States,
        steps_left: StepsLeft,
        standing: Standing | None = None,
        rules: Constraint | None = None,
    ) -> PriceFunction:
        """See Source: the policy is followed through the model to the end of the campaign."""
        return ModelPrice(self.valuer(wanted, rules), states, steps_left, standing)

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
        return config if self.charges is None else config | {_CHARGES: to_plain(self.charges)}, weights

    @classmethod
    def from_state(cls, config: dict[str, Any], weights: Weights) -> ModelSource:
        """See Source."""
        own = {name: value for name, value in config.items() if name != _CHARGES}
        model = NeuralModel.from_state(own, weights)
        charges = from_plain(Charges, config[_CHARGES], "charges") if _CHARGES in config else None
        if charges is not None and (charges.actions, charges.measured) != (model.actions, 1 + model.budgets):
            raise PlanError("the charges of its budgets are of other actions or outcomes than its model's")
        return cls(model, charges)


@dataclass(frozen=True, eq=False)
class LearnedSource:
    """Values learned for all prices."""

    kind: ClassVar[str] = "learned"
    values: LearnedValues

    @property
    def charges(self) -> Charges | None:
        """See Source."""
        return None

    def valuer(self, wanted: PolicySpecification, rules: Constraint | None = None) -> LearnedValues:
        """See Source."""
        return replace(self.values, constraint=rules, explore=wanted.explore)

    def planner(self, wanted: PolicySpecification, rules: Constraint | None = None) -> None:
        """See Source."""
        return

    def single(
        self, wanted: PolicySpecification, prices: NDArray[np.float64], rules: Constraint | None = None
    ) -> SingleValuer:
        """See Source."""
        from redenvelope.planning.single_learned import SingleLearned

        return SingleLearned.of(self.valuer(wanted, rules), prices)

    def believed(
        self,
        wanted: PolicySpecification,
        states: States,
        steps_left: StepsLeft,
        standing: Standing | None = None,
        rules: Constraint | None = None,
    ) -> PriceFunction:
        """See Source."""
        return LearnedPrice(self.valuer(wanted, rules), states, steps_left, standing)

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
"""The kinds of sources that a plan folder can hold."""


def source_from_state(kind: str, config: dict[str, Any], weights: Weights) -> Source:
    """The source of a kind."""
    if kind not in SOURCES:
        raise PlanError(f"it decides by {kind!r}, which this version does not know; upgrade redenvelope")
    return SOURCES[kind].from_state(config, weights)
