"""What is deployed: a source, an encoder and prices; from features to probabilities."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.log.encoding import Encoder
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.plain import to_plain
from redenvelope.plan.sources import Source
from redenvelope.plan.specification import PolicySpecification
from redenvelope.policies.policy import normalised
from redenvelope.policies.pricing import Pricing
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

    @cached_property
    def valuer(self) -> Valuer:
        """What says how much every action is worth."""
        return self.source.valuer(self.specification)

    def steps_left(self, step: NDArray[np.integer]) -> NDArray[np.int64]:
        """Decisions left, this one included, [rows]."""
        return np.asarray(self.encoder.first_step + self.specification.steps - step, dtype=np.int64)

    def values(self, log: Log) -> ActionValues:
        """What logged rows are worth at the policy's own prices, [rows, prices, actions]."""
        return self.valuer.values(self.encoder.encode(log), self.steps_left(log.step), self.pricing.table)

    def probabilities(
        self, frame: pl.DataFrame, row: int = 0, history: pl.DataFrame | None = None
    ) -> NDArray[np.float64]:
        """Probabilities [rows, actions] for a table of users (step and features) who follow one row of the prices.

        `history` are their earlier steps, where the encoder asks for them.
        """
        states, _ = self.encoder.encode_frame(frame, history)
        left = self.steps_left(frame["step"].to_numpy())
        return normalised(self.valuer.decided(states, left, self.pricing.table[[row]]).probabilities[:, 0])


def policy_sha256(policy: DeployedPolicy) -> str:
    """A hash of everything that decides what the policy does."""
    config, weights = policy.source.state()
    digest = hashlib.sha256()
    plain = {
        "specification": to_plain(policy.specification),
        "pricing": to_plain(policy.pricing),
        "encoder": to_plain(policy.encoder),
        "catalogue": to_plain(policy.catalogue),
        "source": policy.source.kind,
        "model": config,
    }
    digest.update(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()
