"""What each network of learning without a model is trained on: users in folds, rows by step; and its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import IntArray
from redenvelope.errors import ModelError, UsageError
from redenvelope.models.dataset import Examples
from redenvelope.models.training import ChunkSource, TrainingSettings
from redenvelope.randomness import fold, fraction

_HELD_OUT = -1


class FoldedRows(NamedTuple):
    """Rows of all folds side by side; the network of a fold reads its own column."""

    states: Any
    """[rows, folds, width]"""
    action: Any
    """[rows, folds]"""
    reward: Any
    """[rows, folds]"""
    cost: Any
    """[rows, folds]"""
    target: Any
    """Targets of the values to go, [rows, folds, curves]; None where only the step itself is learned."""


@dataclass(frozen=True, eq=False)
class UserFolds:
    """Which fold every row of a log belongs to."""

    fold: NDArray[np.int8]
    """[rows]; −1 is held out."""
    step: NDArray[np.int64]
    """Steps before this one, [rows]."""
    count: int
    """Number of folds."""
    steps: int
    """Steps of the campaign."""
    held_out_rows: int
    """Most held-out rows of a split."""

    def unseen_weights(self, rows: IntArray) -> NDArray[np.float32]:
        """Weights of the estimates by all folds but one, [rows, folds]: only those without the user's own fold, or
        all equally for a held-out user."""
        own = self.fold[rows][:, None] == np.arange(self.count)
        return np.where(own.any(axis=1, keepdims=True), own, 1.0 / self.count).astype(np.float32)

    def split(self, rows: IntArray, what: str) -> tuple[IntArray, IntArray]:
        """Training rows and held-out rows, both [.., folds], of some rows [any].

        A shorter fold repeats a few rows, so that all have equal length. Held-out rows are the same for all folds.
        """
        if not len(rows):
            raise ModelError(f"the log has no row of {what}; log users who reach it")
        parts = [rows[self.fold[rows] == fold] for fold in range(self.count)]
        parts = [part if len(part) else rows for part in parts]
        held = rows[self.fold[rows] == _HELD_OUT]
        held = held if len(held) else rows
        # Spread over the log, because the first users may differ from the last.
        held = held[:: -(-len(held) // self.held_out_rows)]
        longest = max(len(part) for part in parts)
        training = np.stack([np.resize(part, longest) for part in parts], axis=1)
        return training, np.repeat(held[:, None], self.count, axis=1)


def new_folds(examples: Examples, settings: LearningSettings, seed: int) -> UserFolds:
    """Assign users to folds by the hash of their ids, and hold out a share of them."""
    count, share = settings.folds, settings.held_out_share
    dealt = fold(examples.keys, count, "learning fold", seed).astype(np.int8)
    places = fraction(examples.keys, "learning held out", seed)
    # In very small logs possibly nobody is held out: then the user with the smallest hash is.
    dealt[places <= max(share, places.min(initial=1.0))] = _HELD_OUT
    if not 0 < share < 1 or examples.users < count + 1 or (dealt == _HELD_OUT).all():
        raise ModelError(
            f"cannot divide {examples.users} user(s) into {count} fold(s) and hold out {share:.0%}; log more users"
        )
    by_row = np.repeat(dealt, np.diff(examples.starts))
    return UserFolds(by_row, examples.step, count, examples.campaign_steps, settings.held_out_rows)


def gather(examples: Examples, rows: IntArray, target: NDArray[np.float32] | None = None) -> Any:
    """FoldedRows of rows [rows, folds]; `target` is [rows, folds, curves]."""
    return jax.device_put(
        FoldedRows(
            states=examples.states[rows],
            action=examples.action[rows].astype(np.int32),
            reward=examples.reward[rows].astype(np.float32),
            cost=examples.cost[rows].astype(np.float32),
            target=target,
        )
    )


def pick(column: jax.Array, slot: jax.Array) -> jax.Array:
    """One fold's part of a column: [rows, folds, ...] and a one-hot row [folds] -> [rows, ...]."""
    # A sum of products is fused with what follows; a gather would not be.
    shape = (1, -1) + (1,) * (column.ndim - 2)
    return (column * jax.lax.stop_gradient(slot).reshape(shape).astype(column.dtype)).sum(axis=1, dtype=column.dtype)


def always(chunk: Any) -> ChunkSource:
    """A source of the same rows at every epoch."""
    return lambda epoch: [chunk]


StageProgress = Callable[[int, int], None]
"""Called with (fits done, all fits): first the immediate outcomes, then one fit per step but the last."""


def _future_training() -> TrainingSettings:
    return TrainingSettings(
        learning_rate=3e-3, weight_decay=1e-2, batch_rows=512, steps=400, epochs_least=3, epochs_most=20, patience=3
    )


def _immediate_training() -> TrainingSettings:
    return TrainingSettings(batch_rows=1_024, steps=1_000, epochs_least=4, epochs_most=20, patience=4)


@dataclass(frozen=True)
class LearningSettings:
    """Settings of learning values; the defaults suit ten steps and 20,000 to 100,000 users."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of every network."""
    advantage_rank: int | None = 3
    """Rank of the dueling advantages over the actions; None is full rank."""
    most_curves: int = 6
    """Most curves over the prices in a value network. Values at neighbouring prices are correlated: in the envelopes
    campaign, six curves explain 96 to 99 % of the variance of rewards and costs to go at 13 prices, and noise leaves
    10 to 20 % that no network can learn."""
    knots: int = 13
    """Prices at which values for all prices are learned; in between they are interpolated."""
    structure: str | None = None
    """Response structure of the immediate outcomes; None chooses by the log (see models.responses)."""
    folds: int = 2
    """Folds of users, each with its own networks: one chooses the next action, another values it, which removes the
    upward bias of a maximum (double Q-learning). 1 is the plain, biased estimate."""
    held_out_share: float = 0.1
    """Share of held-out users, whose Bellman error decides when to stop."""
    held_out_rows: int = 20_000
    """Most held-out rows: the noise of a mean over this many is small."""
    least_chance: float = 0.005
    """Least estimated probability under the behaviour policy: an action that is rarer in a state is neither valued nor
    chosen there. 0 admits all actions."""
    lags: int = 3
    """Largest lag of an effect that the next state does not show: effects that held-out users confirm become part of
    the targets (see late_effects). 0 relies on the states alone."""
    discount: float = 1.0
    immediate: TrainingSettings = field(default_factory=_immediate_training)
    """Training of the immediate outcomes."""
    future: TrainingSettings = field(default_factory=_future_training)
    """Training of the values to go, once for each step but the last."""

    def __post_init__(self) -> None:
        for name, least in (("folds", 1), ("knots", 2), ("most_curves", 1), ("held_out_rows", 1), ("lags", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 0 <= self.least_chance < 1:
            raise UsageError(f"least_chance must be a probability below 1, not {self.least_chance}")
        if not 0 < self.discount <= 1:
            raise UsageError(f"discount must be above 0 and at most 1, not {self.discount}")
