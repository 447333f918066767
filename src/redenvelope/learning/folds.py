"""Users in folds, rows by step: what each network learns from."""

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
    """Rows side by side, one of every fold: the network of a fold reads its own column."""

    states: Any
    """[rows, folds, width]"""
    action: Any
    """[rows, folds]"""
    reward: Any
    """[rows, folds]"""
    cost: Any
    """[rows, folds]"""
    target: Any
    """What is to be learned of the future, [rows, folds, curves]; None where only the present is."""


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
    """Rows held out of a split, at most."""

    def strangers(self, rows: IntArray) -> NDArray[np.float32]:
        """How much each fold's others (all networks but its own) speak of each row, [rows, folds]: only those who did
        not learn from its user; of a held-out user all alike."""
        own = self.fold[rows][:, None] == np.arange(self.count)
        return np.where(own.any(axis=1, keepdims=True), own, 1.0 / self.count).astype(np.float32)

    def split(self, rows: IntArray, what: str) -> tuple[IntArray, IntArray]:
        """Training rows and held-out rows, both [.., folds], of some rows [any].

        A shorter fold repeats a few rows, so that every fold has as many. Held-out rows are the same for all folds.
        """
        if not len(rows):
            raise ModelError(f"no row of the log tells about {what}; log users who get that far")
        parts = [rows[self.fold[rows] == fold] for fold in range(self.count)]
        parts = [part if len(part) else rows for part in parts]
        held = rows[self.fold[rows] == _HELD_OUT]
        held = held if len(held) else rows
        # From all over the log: the first users may not be like the last.
        held = held[:: -(-len(held) // self.held_out_rows)]
        longest = max(len(part) for part in parts)
        training = np.stack([np.resize(part, longest) for part in parts], axis=1)
        return training, np.repeat(held[:, None], self.count, axis=1)


def new_folds(examples: Examples, settings: LearningSettings, seed: int) -> UserFolds:
    """Deal the users of a log into folds, a share of them held out: where a user falls depends on no other."""
    count, share = settings.folds, settings.held_out_share
    dealt = fold(examples.keys, count, "learning fold", seed).astype(np.int8)
    places = fraction(examples.keys, "learning held out", seed)
    # In the smallest logs chance may hold out nobody: then it is whoever comes nearest.
    dealt[places <= max(share, places.min(initial=1.0))] = _HELD_OUT
    if not 0 < share < 1 or examples.users < count + 1 or (dealt == _HELD_OUT).all():
        raise ModelError(
            f"cannot deal {examples.users} user(s) into {count} fold(s) and hold out {share:.0%}; log more users"
        )
    layout = examples.layout
    step = np.rint(examples.states[:, layout.step] / layout.step_change).astype(np.int64)
    by_row = np.repeat(dealt, np.diff(examples.starts))
    return UserFolds(by_row, step, count, examples.campaign_steps, settings.held_out_rows)


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
    """One fold's part of a column: [rows, folds, ...] and its place as a one-hot row [folds] -> [rows, ...]."""
    # A sum of products fuses into what comes after; a gather would not.
    shape = (1, -1) + (1,) * (column.ndim - 2)
    return (column * jax.lax.stop_gradient(slot).reshape(shape).astype(column.dtype)).sum(axis=1, dtype=column.dtype)


def always(chunk: Any) -> ChunkSource:
    """A source that gives the same rows at every epoch."""
    return lambda epoch: [chunk]


# What to learn with.


StageProgress = Callable[[int, int], None]
"""Told (fits done, fits in all): the immediate outcomes are the first fit, then one a step but the last."""


def _future_training() -> TrainingSettings:
    return TrainingSettings(
        learning_rate=3e-3, weight_decay=1e-2, batch_rows=512, steps=400, epochs_least=3, epochs_most=20, patience=3
    )


def _immediate_training() -> TrainingSettings:
    return TrainingSettings(batch_rows=1_024, steps=1_000, epochs_least=4, epochs_most=20, patience=4)


@dataclass(frozen=True)
class LearningSettings:
    """How values are learned; the defaults suit a campaign of ten steps and 20,000 to 100,000 users."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of every network."""
    advantage_rank: int | None = 3
    """Curves over the actions that the dueling advantages are made of; None gives every action its own."""
    most_curves: int = 6
    """Curves over the prices that a value network is made of, at most. Values at neighbouring prices rise and fall
    together: of 13 prices' rewards and costs to go, six curves hold 96 to 99 % of the variance in the envelopes
    campaign, where its noise leaves 10 to 20 % that no network can learn."""
    knots: int = 13
    """Prices at which values are learned when they are learned for all prices; between, they are interpolated."""
    structure: str | None = None
    """How the actions share strength in the immediate outcomes; None asks the log (see models.selection)."""
    folds: int = 2
    """Parts of the users, each with networks of its own: one chooses the next action, another says what it is
    worth, so that what flattered a choice does not flatter its value. 1 is the plain, flattered estimate."""
    held_out_share: float = 0.1
    """Share of the users on whom the Bellman error decides when to stop."""
    held_out_rows: int = 20_000
    """Rows of theirs at most: more would only cost time, the noise of a mean over so many is small."""
    least_chance: float = 0.005
    """The guard: an action that the logger is estimated to give in a state with less than this probability
    is neither planned with nor chosen there. 0 lets everything through."""
    lags: int = 3
    """Steps by which an effect may show later than the next state tells, at most: those that held-out users confirm
    become part of what is learned (see late_effects). 0 bootstraps through states alone."""
    discount: float = 1.0
    immediate: TrainingSettings = field(default_factory=_immediate_training)
    """Training of the immediate outcomes."""
    future: TrainingSettings = field(default_factory=_future_training)
    """Training of what follows, once for each step but the last."""

    def __post_init__(self) -> None:
        for name, least in (("folds", 1), ("knots", 2), ("most_curves", 1), ("held_out_rows", 1), ("lags", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 0 <= self.least_chance < 1:
            raise UsageError(f"least_chance must be a probability below 1, not {self.least_chance}")
        if not 0 < self.discount <= 1:
            raise UsageError(f"discount must be above 0 and at most 1, not {self.discount}")
