"""Every other column as far as its own rows tell: a number, or text that may mean a number or a label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.log.findings import EXAMPLES
from redenvelope.log.named import column
from redenvelope.log.numbers import days, to_numbers
from redenvelope.log.places import Found, Places
from redenvelope.log.tables import TEMPORAL, Table, kind_of
from redenvelope.log.words import MOST_LABELS, LabelSums, Meanings, TextTally, Words, many_labels, words_of

__all__ = ["FeatureRows", "coerce_feature"]


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """The rows of one feature."""

    kind: str
    """What the table holds: "text", "integer", "number", "boolean", "missing" or one of `TEMPORAL`."""
    plain: NDArray[np.float32] | None = None
    """[rows]; None for text, unless it has too many different values for anything but a number. NaN is missing."""
    words: Words | None = None
    """For text of no more than `MOST_LABELS` different values."""
    tally: TextTally | None = None
    """For text."""
    many: LabelSums | None = None
    """For text of more different values."""
    different: NDArray[np.generic] | None = None
    """Integers, if all of them are different: such a column may name rows."""
    found: Found = field(default_factory=dict)
    """Rows that may break a rule, depending on what the column means."""

    @cached_property
    def numbers(self) -> NDArray[np.float32] | None:
        """The rows as numbers, [rows], NaN where missing; None where a row is no number."""
        if self.words is None:
            return self.plain
        if self.tally is None or self.tally.words:
            return None
        return np.append(_narrow(to_numbers(self.words.values))[0], np.float32("nan"))[self.words.codes]

    def rows(self, index: NDArray[np.int64]) -> FeatureRows:
        """Some of the rows, in this order."""
        return replace(
            self,
            plain=None if self.plain is None else self.plain[index],
            words=None if self.words is None else self.words.rows(index),
        )


def coerce_feature(table: Table, name: str) -> FeatureRows:
    """A feature in the types its rows can have."""
    values = column(table.frame, name)
    kind = kind_of(values.dtype)
    if kind == "text":
        return _text_rows(table, name, values)
    numbers, infinite = _narrow(days(values) if kind in TEMPORAL else values)
    found = {} if infinite is None else _noted(table, name, {"feature_infinite": infinite})
    return FeatureRows(kind, numbers, different=_different_integers(values) if kind == "integer" else None, found=found)


def _narrow(numbers: pl.Series) -> tuple[NDArray[np.float32], pl.Series | None]:
    """Numbers as float32, what is missing or too large for it as NaN; and which were too large, if any."""
    narrow = numbers.cast(pl.Float32, strict=False)
    infinite = narrow.is_infinite()
    if not infinite.any():
        return narrow.fill_null(float("nan")).to_numpy(), None
    infinite = infinite.fill_null(False)
    return narrow.set(infinite, None).fill_null(float("nan")).to_numpy(), infinite


def _noted(table: Table, name: str, broken: Mapping[str, pl.Series]) -> Found:
    found: dict[tuple[str, str], Places] = {}
    for rule, rows in broken.items():
        table.note(found, rule, name, rows)
    return found


def _different_integers(values: pl.Series) -> NDArray[np.generic] | None:
    """The values, [rows], if all are whole numbers and no two are the same."""
    if values.null_count() or (values.dtype.is_float() and not (values == values.floor()).all()):
        return None
    head = values.head(10_000)
    if head.n_unique() < len(head) or values.n_unique() < len(values):
        return None
    return values.to_numpy()


def _text_rows(table: Table, name: str, text: pl.Series) -> FeatureRows:
    distinct = text.drop_nulls().unique()
    if len(distinct) > MOST_LABELS:
        return _many_rows(table, name, text, distinct)
    words = words_of(text, distinct)
    counts = np.bincount(words.codes + 1, minlength=len(words.values) + 1)[1:]
    meanings = Meanings.of(words.values)
    tally = meanings.tally(counts)
    _, infinite = _narrow(meanings.numbers)
    found = {}
    for rule, meant in (
        ("feature_number_as_text", meanings.dressed),
        ("feature_mixed", meanings.wordy),
        ("feature_infinite", None if infinite is None else infinite.to_numpy()),
    ):
        if meant is not None and meant.any():
            found[rule, name] = table.places(name, words.first_rows(meant, EXAMPLES), int(counts[meant].sum()))
    different = _different_integers(meanings.numbers) if len(words.values) == len(text) else None
    return FeatureRows("text", words=words, tally=tally, different=different, found=found)


def _many_rows(table: Table, name: str, text: pl.Series, distinct: pl.Series) -> FeatureRows:
    """The same for text with more different values than a category has."""
    counted = text.drop_nulls().value_counts()
    meanings = Meanings.of(counted["value"])
    tally = meanings.tally(counted["count"].cast(pl.Int64).to_numpy())
    many = many_labels(text.null_count(), distinct)
    meant = {"feature_number_as_text": meanings.dressed, "feature_mixed": meanings.wordy}
    broken = {
        rule: text.is_in(counted["value"].filter(pl.Series(values)).implode()).fill_null(False)
        for rule, values in meant.items()
        if values.any()
    }
    if tally.words:
        return FeatureRows("text", tally=tally, many=many, found=_noted(table, name, broken))
    parsed = to_numbers(text)
    numbers, infinite = _narrow(parsed)
    if infinite is not None:
        broken["feature_infinite"] = infinite
    different = _different_integers(parsed)
    return FeatureRows("text", numbers, tally=tally, many=many, different=different, found=_noted(table, name, broken))
