"""What is deployed: decisions at one price, or at two, each user drawn to one of them once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.learning.values import LearnedValues
from redenvelope.log.encoding import Encoder
from redenvelope.log.log import Log
from redenvelope.plan.valuers import LearnedValuer, PlannedValuer, Source, Valuer, source_state
from redenvelope.planning.tree import TreePlanner
from redenvelope.policies.mixture import MixturePolicy
from redenvelope.policies.values import ActionValues

__all__ = ["DeployedPolicy", "PolicySpecification", "policy_sha256"]


@dataclass(frozen=True)
class PolicySpecification:
    """All that a policy is, besides the weights."""

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
    """A specification with what was learned, and the encoder: from features to probabilities."""

    specification: PolicySpecification
    source: Source
    encoder: Encoder

    @cached_property
    def valuer(self) -> Valuer:
        """What says how much every action is worth."""
        if isinstance(self.source, LearnedValues):
            return LearnedValuer(self.source)
        wanted = self.specification
        planner = TreePlanner(self.source, wanted.horizon, wanted.temperature, wanted.steps)
        return PlannedValuer(planner, self.source)

    @property
    def mixture(self) -> MixturePolicy:
        """The policy, as it is drawn for each user."""
        components = tuple(self.valuer.policy(dual) for dual in self.specification.duals)
        return MixturePolicy(components, self.specification.shares)

    def steps_left(self, step: NDArray[np.integer]) -> NDArray[np.int64]:
        """Decisions left, this one included, [rows]."""
        return np.asarray(self.encoder.first_step + self.specification.steps - step, dtype=np.int64)

    def values(self, log: Log, duals: NDArray[np.float64] | tuple[float, ...]) -> ActionValues:
        """What logged rows are worth at some duals."""
        return self.valuer.values(self.encoder.encode(log), self.steps_left(log.step), np.asarray(duals))

    def probabilities(self, frame: pl.DataFrame, component: int = 0) -> NDArray[np.float64]:
        """Probabilities [rows, actions] for a table of users (step and features) who follow a component."""
        states, _ = self.encoder.encode_frame(frame)
        left = self.steps_left(frame["step"].to_numpy())
        return self.mixture.components[component].probabilities(states, left)


def policy_sha256(policy: DeployedPolicy) -> str:
    """A hash of everything that decides what the policy does."""
    config, arrays = source_state(policy.source)
    digest = hashlib.sha256()
    plain = {"specification": policy.specification.as_dict(), "encoder": policy.encoder.as_dict(), "model": config}
    digest.update(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
