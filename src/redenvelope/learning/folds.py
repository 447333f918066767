"""Users in folds, rows by step: what each network learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.models.examples import Examples

__all__ = ["FoldedRows", "UserFolds", "gather", "new_folds", "pick", "slots", "stack"]

_HELD_OUT = -1
_HELD_OUT_ROWS = 20_000  # more would only cost time: the noise of a mean over so many rows is small

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
        longest = max(len(part) for part in parts)
        training = np.stack([np.resize(part, longest) for part in parts], axis=1)
        return training, np.repeat(held[:_HELD_OUT_ROWS, None], self.count, axis=1)


def new_folds(examples: Examples, count: int, held_out_share: float, seed: int) -> UserFolds:
    """Deal the users of a log into folds, a share of them held out."""
    held = round(held_out_share * examples.users)
    if examples.users < count + 1 or not 0 < held < examples.users:
        raise ModelError(
            f"cannot deal {examples.users} user(s) into {count} fold(s) and hold out {held_out_share:.0%}; "
            "log more users"
        )
    order = np.random.default_rng([seed, 1]).permutation(examples.users)
    by_user = np.empty(examples.users, dtype=np.int8)
    by_user[order] = (np.arange(examples.users) - held) % count
    by_user[order[:held]] = _HELD_OUT
    layout = examples.layout
    step = np.rint(examples.states[:, layout.step] / layout.step_change).astype(np.int64)
    return UserFolds(np.repeat(by_user, np.diff(examples.starts)), step, count, examples.campaign_steps)


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


def stack(trees: Sequence[Any]) -> Any:
    """Trees of arrays into one, every array with a new leading axis [trees]."""
    # In numpy: outside a compiled function, jax would compile a program for every shape there is.
    return jax.tree.map(lambda *arrays: np.stack([np.asarray(array) for array in arrays]), *trees)


def slots(count: int) -> NDArray[np.float32]:
    """The places of all folds, [folds, folds]."""
    return np.eye(count, dtype=np.float32)
