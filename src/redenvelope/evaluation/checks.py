"""What evidence is made of, checked block by block while it is in the cache; refusals in words."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError

__all__ = [
    "aligned",
    "check_finite",
    "check_rows",
    "checked_features",
    "checked_outcomes",
    "checked_shares",
    "contiguous",
    "over_actions",
]

FloatArray = NDArray[np.float64]

# A policy may come from float32 arithmetic, whose rows sum to one only this closely.
_PROBABILITY_TOLERANCE = 1e-4


def aligned(
    probabilities: NDArray[np.floating], to_go: NDArray[np.floating] | None, outcomes: int, rows: int
) -> tuple[NDArray[np.floating], list[NDArray[np.floating]]]:
    """Probabilities, and the values to go of each outcome, if there are any, as [rows, prices, actions]."""
    if probabilities.ndim not in (2, 3) or len(probabilities) != rows:
        raise UsageError(
            f"probabilities must be [rows, actions] or [rows, prices, actions] with {rows} rows, "
            f"not of shape {probabilities.shape}"
        )
    if not np.issubdtype(probabilities.dtype, np.floating):
        probabilities = probabilities.astype(np.float64)
    shares = probabilities.reshape(rows, -1, probabilities.shape[-1])
    if to_go is None:
        return shares, []
    if to_go.shape not in ((outcomes, *probabilities.shape), (outcomes, rows, shares.shape[2])):
        raise UsageError(
            f"to_go must be [outcomes, …] with {outcomes} outcome(s), each of the shape of probabilities, "
            f"{probabilities.shape}, not {to_go.shape}"
        )
    return shares, [future.reshape(rows, -1, future.shape[-1]) for future in to_go]


def checked_outcomes(outcomes: ArrayLike, names: tuple[str, ...], rows: int) -> FloatArray:
    """What came of each row, [outcomes, rows], all finite."""
    table = np.asarray(outcomes, dtype=np.float64)
    if table.shape != (len(names), rows):
        raise UsageError(f"outcomes must be [outcomes, rows] = {(len(names), rows)}, not {table.shape}")
    for name, column in zip(names, table, strict=True):
        check_finite(column, name)
    return table


def checked_features(features: NDArray[np.floating], rows: int) -> NDArray[np.floating]:
    """What ratios of states are regressed on, [rows, features], all finite."""
    if features.ndim != 2 or len(features) != rows:
        raise UsageError(f"features must be [rows, features] with {rows} rows, not of shape {features.shape}")
    check_finite(features, "a feature")
    return features


def check_rows(
    starts: NDArray[np.int64],
    keys: NDArray[np.integer],
    action: NDArray[np.integer],
    propensity: FloatArray,
    actions: int,
) -> int:
    """The number of steps of the longest user, all columns being sound."""
    rows, lengths = len(action), np.diff(starts)
    if rows == 0 or starts[0] != 0 or starts[-1] != rows or int(lengths.min()) < 1:
        raise UsageError("starts must rise from 0 to the number of rows: every user needs at least one row")
    if keys.shape != lengths.shape:
        raise UsageError(f"keys must be [users] = {lengths.shape}, one for each of the starts but the last")
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


def check_finite(numbers: NDArray[np.floating], name: str) -> None:
    """Refuse numbers of any shape that are not all finite."""
    # A sum is finite only if all its numbers are; it needs no array of answers.
    with np.errstate(invalid="ignore", over="ignore"):
        if not np.isfinite(numbers.sum(dtype=np.float64)):
            raise UsageError(f"{name} holds a number that is not finite")


def checked_shares(
    shares: NDArray[np.floating], first: int
) -> tuple[NDArray[np.floating], NDArray[np.floating] | None]:
    """Contiguous probabilities [rows, prices, actions] and, of float32, which sum to one only roughly, their sums
    [rows, prices]: to be divided by."""
    totals = over_actions(shares)
    low, high = float(totals.min()), float(totals.max())
    if not (float(shares.min()) >= 0 and low >= 1 - _PROBABILITY_TOLERANCE and high <= 1 + _PROBABILITY_TOLERANCE):
        wrong = (shares < 0).any(axis=2) | ~(np.abs(totals - 1) <= _PROBABILITY_TOLERANCE)
        row = first + int(np.argwhere(wrong)[0][0])
        raise UsageError(f"the policy's probabilities for row {row} are negative or do not sum to 1")
    return shares, None if shares.dtype == np.float64 else totals


def contiguous(block: NDArray[np.floating], room: NDArray[np.floating]) -> NDArray[np.floating]:
    """The same numbers [rows, prices, actions] in the room's type and without gaps: the block itself, or copied there.

    `room` has at least so many rows. Rows of one price are given to each of its prices.
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
    """Sums over actions: [rows, prices, actions] -> [rows, prices]."""
    # A product with ones is several times faster than a sum over few numbers.
    actions = block.shape[2]
    return np.asarray(block.reshape(-1, actions) @ np.ones(actions, dtype=block.dtype)).reshape(block.shape[:2])
