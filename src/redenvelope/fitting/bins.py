"""Values of a feature in a few bins, with the names that people give them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.log import FeatureTable

__all__ = ["MISSING", "OTHERS", "Bins", "all_bins", "between", "plain_numbers"]

FloatArray = NDArray[np.float64]

MISSING, OTHERS = "(missing)", "(others)"
_BINS, _LABELS = 5, 8
_FEW_ABOVE = 1 / 3
"""Share of whole numbers above the first few up to which each of those has a bin of its own."""
_DIGITS = 15  # beyond, a double holds no more


@dataclass(frozen=True, eq=False)
class Bins:
    """The rows of a log by one feature."""

    feature: str
    labels: list[str]
    of_row: NDArray[np.int64]
    """[rows], index into the labels."""
    edges: FloatArray | None = None
    """Of numbers: the greatest value of each bin but the last, [bins - 1]; None for categories."""


def all_bins(features: FeatureTable) -> Iterator[Bins]:
    """Every feature in bins."""
    for place, name in enumerate(features.numeric_names):
        yield _number_bins(name, features.numeric[:, place].astype(np.float64))
    for place, name in enumerate(features.category_names):
        yield _category_bins(name, features.codes[:, place], features.labels[place])


def plain_numbers(values: Sequence[float], digits: int = 3) -> list[str]:
    """Numbers as people write them, never with an exponent, with as many digits as it takes to tell them apart."""
    different = len(set(values))
    while True:
        shown = [_plain(value, digits) for value in values]
        if len(set(shown)) >= different or digits >= _DIGITS:
            return shown
        digits += 1


def between(low: float | None, high: float | None, whole: bool) -> str:
    """Values from above `low` up to `high` in words; None has no end. Whole numbers are named by what they can be."""
    if not whole:
        ends = plain_numbers([end for end in (low, high) if end is not None])
        return f"at most {ends[0]}" if low is None else f"over {ends[0]}" if high is None else " to ".join(ends)
    first, last = ("" if end is None else _plain(end, _DIGITS) for end in (None if low is None else low + 1, high))
    if low is None or high is None:
        return f"at most {last}" if low is None else f"{first} or more"
    return last if first == last else f"{first} to {last}"


def _plain(value: float, digits: int) -> str:
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    places = max(digits - 1 - int(np.floor(np.log10(abs(value)))), 0)
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _number_bins(name: str, values: FloatArray) -> Bins:
    """Few values have a bin each, many are cut at quantiles; missing values have a bin of their own."""
    present = values[~np.isnan(values)]
    distinct = np.unique(present)
    if len(distinct) <= _BINS:
        labels = _few(distinct)
        edges, of_row = distinct[:-1], np.searchsorted(distinct, values)
    else:
        edges = _edges(present, distinct)
        labels = _labels(edges, distinct)
        of_row = np.searchsorted(edges, values)
    of_row = np.where(np.isnan(values), len(labels), of_row).astype(np.int64)
    return Bins(name, [*labels, MISSING], of_row, edges)


def _few(distinct: FloatArray) -> list[str]:
    """A bin a value; what is only ever 0 and 1 was true or false."""
    if distinct.tolist() == [0.0, 1.0]:
        return ["no", "yes"]
    return plain_numbers(distinct.tolist(), 4)


def _edges(present: FloatArray, distinct: FloatArray) -> FloatArray:
    """The greatest value of each bin but the last, [bins - 1]."""
    if _whole(distinct) and np.mean(present > distinct[_BINS - 2]) <= _FEW_ABOVE:
        return distinct[: _BINS - 1]  # counts of which most are small: each by itself
    cut = np.quantile(present, np.arange(1, _BINS) / _BINS)
    edges = np.unique(np.floor(cut) if _whole(distinct) else cut)
    edges = edges[(edges >= distinct[0]) & (edges < distinct[-1])]
    return edges if len(edges) else distinct[-2:-1]  # most values are the greatest


def _labels(edges: FloatArray, distinct: FloatArray) -> list[str]:
    whole = _whole(distinct)
    if whole:  # counts have two ends, which single values can be named by
        ends = [float(distinct[0]) - 1, *edges.tolist(), float(distinct[-1])]
        last = len(edges) if distinct[-1] > edges[-1] + 1 else None
        return [between(low, None if at == last else high, True) for at, (low, high) in enumerate(pairwise(ends))]
    shown = plain_numbers(edges.tolist())
    return [f"up to {shown[0]}", *(f"{low} to {high}" for low, high in pairwise(shown)), f"over {shown[-1]}"]


def _whole(values: FloatArray) -> bool:
    return bool((values == np.floor(values)).all())


def _category_bins(name: str, codes: NDArray[np.int32], labels: tuple[str, ...]) -> Bins:
    """The most frequent labels, the others together, and the missing."""
    frequent = np.argsort(-np.bincount(codes[codes >= 0], minlength=len(labels)), kind="stable")[:_LABELS]
    kept = np.sort(frequent)
    place = np.full(len(labels) + 1, len(kept), dtype=np.int64)
    place[kept] = np.arange(len(kept))
    place[-1] = len(kept) + 1  # where the code of a missing value, −1, points
    return Bins(name, [*(labels[code] for code in kept), OTHERS, MISSING], place[codes])
