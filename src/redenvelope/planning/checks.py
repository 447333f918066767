"""Checks of what a planner is given, in words that its user understands."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import ModelError, UsageError

__all__ = ["checked_states"]


def checked_states(states: ArrayLike, columns: tuple[str, ...] = ()) -> NDArray[np.float32]:
    """States as finite float32 [users, width]; `columns` [width] names the columns for the message."""
    rows = np.asarray(states, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise UsageError(f"states must be [users, width], not of shape {rows.shape}")
    wrong = ~np.isfinite(rows)
    if wrong.any():
        row, column = (int(place) for place in np.argwhere(wrong)[0])
        name = f"column '{columns[column]}'" if column < len(columns) else f"column {column}"
        others = int(wrong.sum()) - 1
        more = f", and {others} more cells like it" if others else ""
        raise ModelError(
            f"row {row} of the states holds {rows[row, column]} in {name}{more}: a plan needs a number in "
            "every feature; fill in what is missing as it was done for training, or leave the user out"
        )
    return rows
