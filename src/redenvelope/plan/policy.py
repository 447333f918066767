"""What is deployed: a source, an encoder and prices; from features to probabilities."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.campaign.records import Rule
from redenvelope.dual.price import PriceFunction
from redenvelope.log.encoding import Encoder
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.plain import to_plain
from redenvelope.plan.sources import SingleValuer, Source
from redenvelope.plan.specification import PolicySpecification
from redenvelope.planning.tree import TreePlanner
from redenvelope.policies.policy import normalised
from redenvelope.policies.pricing import Pricing
from redenvelope.policies.rule_constraint import RuleConstraint
from redenvelope.policies.standing import Standing
from redenvelope.policies.standing_rows import standing_of_frame, standing_of_log
from redenvelope.policies.values import ActionValues, Valuer

__all__ = ["DeployedPolicy", "policy_sha256"]


@dataclass(frozen=True, eq=False)
class DeployedPolicy:
    """A specification with what was learned, the encoder, the actions by name, and the prices."""

    specification: PolicySpecification
    source: Source
    encoder: Encoder
    catalogue: ActionCatalogue
    pricing: Pricing
    rules: tuple[Rule, ...] = ()
    """Who may get what, how often."""
    joins_late: bool = False
    """Whether some users' campaigns began after the first step: rules that count then begin there too."""

    @cached_property
    def constraint(self) -> RuleConstraint | None:
        """The rules as planners ask them; None where there are none."""
        return RuleConstraint(self.rules, self.encoder, self.catalogue, self.joins_late) if self.rules else None

    @cached_property
    def valuer(self) -> Valuer:
        """What says how much every action is worth."""
        return self.source.valuer(self.specification, self.constraint)

    @property
    def planner(self) -> TreePlanner | None:
        """The planner behind it; None where nothing is planned."""
        return self.source.planner(self.specification, self.constraint)

    def single(self) -> SingleValuer:
        """The same for one user at a time, at the policy's own prices."""
        return self.source.single(self.specification, self.pricing.table, self.constraint)

    def believed(
        self, states: NDArray[np.float32], steps_left: NDArray[np.int64], standing: Standing | None
    ) -> PriceFunction:
        """What it believes of the whole campaign from first states [users, width] of users who stand there on."""
        return self.source.believed(self.specification, states, steps_left, standing, self.constraint)

    def standing(self, log: Log) -> Standing | None:
        """Where logged rows stand; None where nothing is ruled out."""
        return standing_of_log(self.constraint, log)

    @property
    def several_budgets(self) -> tuple[str, ...]:
        """The names of several budgets, [budgets]; empty with one."""
        charges = self.source.charges
        return () if charges is None or len(charges.budgets) < 2 else charges.names

    def steps_left(self, step: NDArray[np.integer]) -> NDArray[np.int64]:
        """Decisions left, this one included, [rows]."""
        return np.asarray(self.encoder.first_step + self.specification.steps - step, dtype=np.int64)

    def values(self, log: Log) -> ActionValues:
        """What logged rows are worth at the policy's own prices, [rows, prices, actions]."""
        states, left = self.encoder.encode(log), self.steps_left(log.step)
        return self.valuer.values(states, left, self.pricing.table, self.standing(log))

    def probabilities(
        self, frame: pl.DataFrame, row: int = 0, history: pl.DataFrame | None = None
    ) -> NDArray[np.float64]:
        """Probabilities [rows, actions] for a table of users (step and features) who follow one row of the prices.

        `history` are their earlier steps, where the encoder asks for them.
        """
        states, _ = self.encoder.encode_frame(frame, history)
        left = self.steps_left(frame["step"].to_numpy())
        standing = standing_of_frame(self.constraint, self.encoder, self.catalogue, frame, history).standing
        decided = self.valuer.decided(states, left, self.pricing.table[[row]], standing)
        return normalised(decided.probabilities[:, 0])


def policy_sha256(policy: DeployedPolicy) -> str:
    """A hash of everything that decides what the policy does."""
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
    digest.update(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()
