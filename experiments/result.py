"""What an experiment hands over: a table, figures, and what to see in them; and intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.special import stdtrit

if TYPE_CHECKING:
    import altair as alt

__all__ = ["Figure", "Result", "interval", "with_interval"]


@dataclass(frozen=True, eq=False)
class Figure:
    """A chart before it is drawn."""

    name: str
    """Stem of its files."""
    title: str
    caption: str
    """What to see."""
    chart: alt.TopLevelMixin


@dataclass(frozen=True, eq=False)
class Result:
    """One finished experiment."""

    name: str
    """Stem of its files."""
    title: str
    key: str
    """The finding in a few words, for a line of progress."""
    sentences: tuple[str, ...]
    """How it was done and what came out."""
    table: pl.DataFrame
    """Columns `x`, `x_lower`, `x_upper` are a figure with its 95 % interval."""
    figures: tuple[Figure, ...] = ()


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean over seeds and its 95 % interval, Student's t; one value has none."""
    numbers = np.asarray(values, dtype=np.float64)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return mean, None, None
    reach = float(stdtrit(len(numbers) - 1, 0.975) * numbers.std(ddof=1) / np.sqrt(len(numbers)))
    return mean, mean - reach, mean + reach


def with_interval(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """The three columns of a figure with its interval."""
    return dict(zip((name, f"{name}_lower", f"{name}_upper"), interval(values), strict=True))
