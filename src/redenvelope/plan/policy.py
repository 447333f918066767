"""What is deployed: a planner at one price, or at two, each user drawn to one of them once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.log.encoding import Encoder
from redenvelope.log.log import Log
from redenvelope.models.neural import NeuralModel
from redenvelope.planning.planned import PlannedPolicy
from redenvelope.planning.tree import PlannedValues, TreePlanner
from redenvelope.policies.mixture import MixturePolicy

__all__ = ["DeployedPolicy", "PolicySpecification"]


@dataclass(frozen=True)
class PolicySpecification:
    """All that a policy is, besides the model's weights."""

    method: str
    horizon: int
    temperature: float
    steps: int
    duals: tuple[float, ...]
    """One price, or two."""
    shares: tuple[float, ...]
    """Share of the users who follow each."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, where infinity has no number."""
        return asdict(self) | {"duals": ["infinity" if np.isinf(dual) else dual for dual in self.duals]}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> PolicySpecification:
        """The specification that `as_dict` wrote."""
        duals = tuple(np.inf if dual == "infinity" else float(dual) for dual in content["duals"])
        return cls(**content | {"duals": duals, "shares": tuple(float(share) for share in content["shares"])})


@dataclass(frozen=True, eq=False)
class DeployedPolicy:
    """A specification with its model and encoder: from features to probabilities."""

    specification: PolicySpecification
    model: NeuralModel
    encoder: Encoder

    @property
    def planner(self) -> TreePlanner:
        """The tree planner behind the policy."""
        wanted = self.specification
        return TreePlanner(self.model, wanted.horizon, wanted.temperature, wanted.steps)

    @property
    def mixture(self) -> MixturePolicy:
        """The policy, as it is drawn for each user."""
        planner = self.planner
        components = tuple(PlannedPolicy(planner, dual) for dual in self.specification.duals)
        return MixturePolicy(components, self.specification.shares)

    def steps_left(self, step: NDArray[np.integer]) -> NDArray[np.int64]:
        """Decisions left, this one included, [rows]."""
        return np.asarray(self.encoder.first_step + self.specification.steps - step, dtype=np.int64)

    def values(self, log: Log, duals: NDArray[np.float64] | tuple[float, ...]) -> PlannedValues:
        """What the planner says of logged rows at some duals, [rows, duals, actions]."""
        return self.planner.plan(self.encoder.encode(log), self.steps_left(log.step), np.asarray(duals))

    def decide(self, log: Log) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
        """Probabilities and values to go at the policy's own duals, as estimators take them."""
        values = self.values(log, self.specification.duals)
        return values.probabilities, {"reward": values.reward_to_go, "cost": values.cost_to_go}

    def probabilities(self, frame: pl.DataFrame, component: int = 0) -> NDArray[np.float64]:
        """Probabilities [rows, actions] for a table of users (step and features) who follow a component."""
        states, _ = self.encoder.encode_frame(frame)
        left = self.steps_left(frame["step"].to_numpy())
        return self.mixture.components[component].probabilities(states, left)
