"""Users in folds, rows by step: what each network learns from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from redenvelope.chance import fold, fraction
from redenvelope.errors import ModelError
from redenvelope.learning.settings import LearningSettings
from redenvelope.models.examples import Examples
from redenvelope.models.training import ChunkSource

__all__ = ["FoldedRows", "UserFolds", "always", "gather", "new_folds", "pick"]

_HELD_OUT = -1

IndexArray = NDArray[np.int64]


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

    def strangers(self, rows: IndexArray) -> NDArray[np.float32]:
        """How much each fold's others (all networks but its own) speak of each row, [rows, folds]: only those who did
        not learn from its user; of a held-out user all alike."""
        own = self.fold[rows][:, None] == np.arange(self.count)
        return np.where(own.any(axis=1, keepdims=True), own, 1.0 / self.count).astype(np.float32)

    def split(self, rows: IndexArray, what: str) -> tuple[IndexArray, IndexArray]:
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


def gather(examples: Examples, rows: IndexArray, target: NDArray[np.float32] | None = None) -> Any:
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
