"""What is behind a plan's decisions, in one shape: a model that is planned with, or values learned without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from redenvelope.learning.learned import LearnedPolicy, LearnedPrice
from redenvelope.learning.stored import learned_from_state, learned_state
from redenvelope.learning.values import LearnedValues
from redenvelope.models.neural import NeuralModel
from redenvelope.planning.planned import PlannedPolicy
from redenvelope.planning.rollout import ModelPrice
from redenvelope.planning.tree import TreePlanner
from redenvelope.policies.policy import Policy
from redenvelope.policies.values import ActionValues

__all__ = ["LearnedValuer", "PlannedValuer", "Source", "Valuer", "source_from_state", "source_state"]

FloatArray = NDArray[np.float64]
StateArray = NDArray[np.float32]

Source = NeuralModel | LearnedValues
"""What was learned from the log: a model to plan with, or values learned without one."""


class Valuer(Protocol):
    """Says what every action is worth, at any price."""

    @property
    def depth(self) -> int:
        """Steps that its values look ahead."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out to keep it quick or safe, in words."""
        ...

    def values(self, states: StateArray, steps_left: NDArray[np.int64], duals: FloatArray) -> ActionValues:
        """[rows, width], [rows] and [duals] -> values and probabilities."""
        ...

    def policy(self, dual: float) -> Policy:
        """The policy at one price."""
        ...

    def outcomes(self, states: StateArray) -> FloatArray:
        """Expected outcomes of this step: [rows, width] -> [outcomes, rows, actions]."""
        ...

    def believed(
        self, states: StateArray, steps_left: NDArray[np.int64], duals: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """What it believes of the whole campaign from first states [users, width]: costs and rewards, [duals] each."""
        ...


@dataclass(frozen=True, eq=False)
class PlannedValuer:
    """A tree planner on a model."""

    planner: TreePlanner
    model: NeuralModel

    @property
    def depth(self) -> int:
        """See Valuer."""
        return self.planner.depth

    @property
    def notes(self) -> tuple[str, ...]:
        """See Valuer."""
        return tuple(self.planner.notes)

    def values(self, states: StateArray, steps_left: NDArray[np.int64], duals: FloatArray) -> ActionValues:
        """See Valuer."""
        return self.planner.values(states, steps_left, duals)

    def policy(self, dual: float) -> Policy:
        """See Valuer."""
        return PlannedPolicy(self.planner, dual)

    def outcomes(self, states: StateArray) -> FloatArray:
        """See Valuer."""
        return self.planner.outcomes(states)

    def believed(
        self, states: StateArray, steps_left: NDArray[np.int64], duals: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """See Valuer: the policy is followed through the model to the end of the campaign."""
        rewards, costs = ModelPrice(self.planner, states, steps_left)(duals)
        return costs, rewards


@dataclass(frozen=True, eq=False)
class LearnedValuer:
    """Values learned for all prices; they reach to the end of the campaign."""

    learned: LearnedValues

    @property
    def depth(self) -> int:
        """See Valuer."""
        return self.learned.steps

    @property
    def notes(self) -> tuple[str, ...]:
        """See Valuer."""
        return self.learned.report.notes

    def values(self, states: StateArray, steps_left: NDArray[np.int64], duals: FloatArray) -> ActionValues:
        """See Valuer."""
        asked = np.asarray(duals, dtype=np.float64)
        worth = self.learned.worth(states, steps_left, asked)
        infinite = np.isinf(asked)[:, None]
        price = np.where(np.isinf(asked), 1.0, asked)[:, None]
        earned = np.where(infinite, 0.0, worth.reward_to_go + worth.bonus_to_go)
        q = np.asarray(earned - price * worth.cost_to_go, dtype=np.float32)
        return ActionValues(q, worth.probabilities, np.stack([worth.reward_to_go, worth.cost_to_go]))

    def policy(self, dual: float) -> Policy:
        """See Valuer."""
        return LearnedPolicy(self.learned, dual)

    def outcomes(self, states: StateArray) -> FloatArray:
        """See Valuer."""
        return np.stack(self.learned.outcomes(states))

    def believed(
        self, states: StateArray, steps_left: NDArray[np.int64], duals: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """See Valuer."""
        return LearnedPrice(self.learned, states, steps_left)(duals)


def source_state(source: Source) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """What was learned, as plain data for JSON and weights by name."""
    if isinstance(source, LearnedValues):
        config, arrays = learned_state(source)
        return {"kind": "learned"} | config, arrays
    config, arrays = source.state()
    return {"kind": "model"} | config, arrays


def source_from_state(config: dict[str, Any], arrays: dict[str, NDArray[np.float32]]) -> Source:
    """What `source_state` wrote."""
    content = {name: value for name, value in config.items() if name != "kind"}
    if config["kind"] == "learned":
        return learned_from_state(content, arrays)
    return NeuralModel.from_state(content, arrays)
