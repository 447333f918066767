"""What evidence is made of, checked block by block while it is in the cache; refusals in words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError

__all__ = ["aligned", "check_finite", "check_rows", "checked_shares", "contiguous", "over_actions"]

FloatArray = NDArray[np.float64]

# A policy may come from float32 arithmetic, whose rows sum to one only this closely.
_PROBABILITY_TOLERANCE = 1e-4


def aligned(
    probabilities: NDArray[np.floating],
    action_values: Mapping[str, NDArray[np.floating]] | None,
    targets: tuple[str, ...],
    rows: int,
) -> tuple[NDArray[np.floating], list[NDArray[np.floating]] | None]:
    """Probabilities and the values of each target as [rows, duals, actions], shapes checked."""
    if probabilities.ndim not in (2, 3) or len(probabilities) != rows:
        raise UsageError(
            f"probabilities must be [rows, actions] or [rows, duals, actions] with {rows} rows, "
            f"not of shape {probabilities.shape}"
        )
    if not np.issubdtype(probabilities.dtype, np.floating):
        probabilities = probabilities.astype(np.float64)
    shares = probabilities.reshape(rows, -1, probabilities.shape[-1])
    if action_values is None:
        return shares, None
    missing = [target for target in targets if target not in action_values]
    if missing:
        raise UsageError(f"action_values lack a baseline for {', '.join(missing)}")
    futures = [action_values[target] for target in targets]
    for target, future in zip(targets, futures, strict=True):
        if future.shape != probabilities.shape and future.shape != (rows, shares.shape[2]):
            raise UsageError(
                f"action_values of {target} must have the shape of probabilities, {probabilities.shape}, "
                f"not {future.shape}"
            )
    return shares, [future.reshape(rows, -1, future.shape[-1]) for future in futures]


def check_rows(
    starts: NDArray[np.int64], action: NDArray[np.integer], propensity: FloatArray, rows: int, actions: int
) -> int:
    """The number of steps of the longest user, all columns being sound."""
    lengths = np.diff(starts)
    if rows == 0 or starts[0] != 0 or starts[-1] != rows or int(lengths.min()) < 1:
        raise UsageError("starts must rise from 0 to the number of rows: every user needs at least one row")
    if not 0 <= int(action.min()) <= int(action.max()) < actions:
        raise UsageError(f"actions must be indices below {actions}, the number of actions the policy knows")
    if propensity.shape != (rows,):
        raise UsageError(f"propensity must be [rows] = {(rows,)}, not {propensity.shape}")
    highest = float(propensity.max())
    if highest > 1 + 1e-9:
        hint = "; they look like percentages: divide them by 100" if highest <= 100 else ""
        raise UsageError(f"propensities are probabilities and cannot be above 1, but one is {highest:g}{hint}")
    if not float(propensity.min()) > 0:
        row = int(np.flatnonzero(~(propensity > 0))[0])
        raise UsageError(
            f"the propensity of row {row} is {propensity[row]:g}: an action that was logged had a chance above 0; "
            "log the true probability, or leave the row's user out"
        )
    return int(lengths.max())


def check_finite(numbers: FloatArray, name: str) -> None:
    """Refuse numbers of any shape that are not all finite."""
    # A sum is finite only if all its numbers are; it needs no array of answers.
    with np.errstate(invalid="ignore", over="ignore"):
        if not np.isfinite(numbers.sum()):
            raise UsageError(f"{name} holds a number that is not finite")


def checked_shares(
    shares: NDArray[np.floating], first: int
) -> tuple[NDArray[np.floating], NDArray[np.floating] | None]:
    """Contiguous probabilities [rows, duals, actions] and, of float32, which sum to one only roughly, their sums
    [rows, duals]: to be divided by."""
    totals = over_actions(shares)
    low, high = float(totals.min()), float(totals.max())
    if not (float(shares.min()) >= 0 and low >= 1 - _PROBABILITY_TOLERANCE and high <= 1 + _PROBABILITY_TOLERANCE):
        wrong = (shares < 0).any(axis=2) | ~(np.abs(totals - 1) <= _PROBABILITY_TOLERANCE)
        row = first + int(np.argwhere(wrong)[0][0])
        raise UsageError(f"the policy's probabilities for row {row} are negative or do not sum to 1")
    return shares, None if shares.dtype == np.float64 else totals


def contiguous(block: NDArray[np.floating], room: NDArray[np.floating]) -> NDArray[np.floating]:
    """The same numbers [rows, duals, actions] in the room's type and without gaps: the block itself, or copied there.

    `room` has at least so many rows. Rows of one dual are given to each of its duals.
    """
    room = room[: len(block)]
    if block.dtype == room.dtype and block.shape == room.shape:
        if block.flags.c_contiguous:
            return block
        if block.strides[-1] == block.itemsize:
            # Every n-th row of a larger table: copied a row at a time, not a number at a time.
            row = np.dtype((np.void, block.itemsize * block.shape[-1]))
            room.view(row)[...] = block.view(row)
            return room
    room[...] = block
    return room


def over_actions(block: NDArray[np.floating]) -> NDArray[np.floating]:
    """Sums over actions: [rows, duals, actions] -> [rows, duals]."""
    # A product with ones is several times faster than a sum over few numbers.
    actions = block.shape[2]
    return np.asarray(block.reshape(-1, actions) @ np.ones(actions, dtype=block.dtype)).reshape(block.shape[:2])
