"""Parts of a log that fit into memory together, as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from redenvelope.log.log import Log

__all__ = ["join_logs"]


def join_logs(parts: Sequence[Log]) -> Log:
    """The users of all parts in the order of their ids; the parts were read against the same schema, at least one."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    users = pl.concat([part.users for part in parts])
    # Stable, so that the episodes of a user stay in their order.
    order = pl.DataFrame({"user": users}).select(pl.arg_sort_by("user", maintain_order=True)).to_series().to_numpy()
    lengths = np.concatenate([part.lengths for part in parts])
    begins = np.cumsum(lengths) - lengths
    starts = np.append(0, np.cumsum(lengths[order]))
    # Row by row: the user's first row where the parts stand one after the other, and how far on in the user.
    rows = np.repeat(begins[order] - starts[:-1], lengths[order]) + np.arange(starts[-1])
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])[rows]
        for name in ("step", "action", "propensity", "reward", "cost")
    }
    numeric = np.concatenate([part.features.numeric.T for part in parts], axis=1)[:, rows].T
    codes = np.concatenate([part.features.codes.T for part in parts], axis=1)[:, rows].T
    eligible = None
    if first.eligible is not None:
        eligible = np.concatenate([part.eligible for part in parts if part.eligible is not None])[rows]
    return replace(
        first,
        eligible=eligible,
        users=users.gather(order),
        starts=starts,
        features=replace(first.features, numeric=numeric, codes=codes),
        **columns,
    )
