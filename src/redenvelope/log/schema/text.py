"""Text columns: their distinct values, which of them are numbers, and how often each label occurs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.log.cleaning.number_formats import evidence_in, is_number, looks_formatted, to_numbers
from redenvelope.log.schema.statistics import changes_within
from redenvelope.merging import ANY, FieldwiseSums

MOST_LABELS = 10_000
"""The most labels of a category."""

_BLOCK = 1 << 16


@dataclass(frozen=True, eq=False)
class Words:
    """A text column as codes of its distinct values."""

    values: pl.Series
    """Sorted, [values]."""
    codes: NDArray[np.int32]
    """[rows], index into the values; −1 is missing."""

    def rows(self, index: NDArray[np.int64]) -> Words:
        """Some of the rows, in the given order."""
        return Words(self.values, self.codes[index])

    def first_rows(self, meant: NDArray[np.bool_], count: int) -> list[int]:
        """At most `count` of the first rows that hold one of the meant values, [values]."""
        lookup = np.append(meant, False)
        found: list[int] = []
        for start in range(0, len(self.codes), _BLOCK):
            rows = np.flatnonzero(lookup[self.codes[start : start + _BLOCK]])[: count - len(found)]
            found += (rows + start).tolist()
            if len(found) >= count:
                break
        return found


def words_of(text: pl.Series, distinct: pl.Series) -> Words:
    """A text column as `Words`, given its distinct values."""
    values = distinct.sort()
    codes = text.cast(pl.Enum(values)).to_physical().cast(pl.Int32).fill_null(-1)
    return Words(values, codes.to_numpy())


@dataclass(frozen=True)
class TextTally(FieldwiseSums):
    """Counts of rows by content, from which it is decided whether a text column means numbers or labels."""

    filled: int
    numbers: int
    words: int
    """Rows that are neither numbers nor words for missing."""
    formatted: int
    """Numbers with a spreadsheet's format."""
    zero_codes: bool = field(metadata=ANY)
    """Whether any value begins with a zero before another digit, because codes such as 00123 are labels."""


@dataclass(frozen=True, eq=False)
class Meanings:
    """What each distinct text may mean."""

    numbers: pl.Series
    """Float64, null if a text is not a number, [values]."""
    wordy: NDArray[np.bool_]
    """Whether a text is neither a number nor a word for missing, [values]."""
    formatted: NDArray[np.bool_]
    """Whether a text is a number with a spreadsheet's format, [values]."""
    zero_codes: bool
    """Whether any text begins with a zero before another digit."""

    @classmethod
    def of(cls, values: pl.Series) -> Meanings:
        """The meanings of distinct values."""
        wordy = ~is_number(values).to_numpy()
        if not values.str.contains(r"\d").any():
            formatted, zero_codes = np.zeros(len(values), dtype=bool), False
        else:
            formatted, zero_codes = looks_formatted(values).to_numpy(), bool(values.str.contains(r"^0\d").any())
            evidence = evidence_in(values)
            if evidence.point > evidence.comma:  # next to 0.081, the point of 1.384 does not separate thousands
                formatted &= wordy
        return cls(to_numbers(values), wordy, formatted, zero_codes)

    def tally(self, counts: NDArray[np.int64]) -> TextTally:
        """The counts of rows by content, given the number of rows with each value, [values]."""
        return TextTally(
            filled=int(counts.sum()),
            numbers=int(counts[self.numbers.is_not_null().to_numpy()].sum()),
            words=int(counts[self.wordy].sum()),
            formatted=int(counts[self.formatted].sum()),
            zero_codes=self.zero_codes,
        )


@dataclass(frozen=True, eq=False)
class LabelSums:
    """How often each label of a category occurs."""

    missing: int
    labels: tuple[str, ...]
    """Sorted; empty if there are more than `MOST_LABELS`."""
    rows: NDArray[np.int64]
    """[labels]"""
    users: NDArray[np.int64]
    """Users who ever had the label, [labels]."""
    changes: bool
    """Whether it ever changes within a user."""
    many: tuple[NDArray[np.uint64], ...] = ()
    """If there are more than `MOST_LABELS`: hashes of the labels of each part, so that they can be counted."""

    @cached_property
    def distinct(self) -> int:
        """Number of distinct labels."""
        return len(np.unique(np.concatenate(self.many))) if self.many else len(self.labels)

    def merge(self, other: LabelSums) -> LabelSums:
        """See Mergeable."""
        missing, changes = self.missing + other.missing, self.changes or other.changes
        labels = sorted({*self.labels, *other.labels})
        if len(labels) > MOST_LABELS or self.many or other.many:
            return many_labels(missing, pl.Series(labels, dtype=pl.String), self.many + other.many)
        place = {label: number for number, label in enumerate(labels)}
        rows, users = np.zeros(len(labels), dtype=np.int64), np.zeros(len(labels), dtype=np.int64)
        for part in (self, other):
            places = np.array([place[label] for label in part.labels], dtype=np.int64)
            rows[places] += part.rows
            users[places] += part.users
        return LabelSums(missing, tuple(labels), rows, users, changes)


def label_sums(words: Words, user: NDArray[np.int64], within: NDArray[np.bool_]) -> LabelSums:
    """The statistics of a category.

    `user` numbers the user of each row, increasing by one from user to user; `within` says which rows continue their
    predecessor's sequence; both are [rows].
    """
    changes = changes_within(words.codes, within)
    size = len(words.values)
    rows = np.bincount(words.codes + 1, minlength=size + 1)
    if changes or user[-1] - user[0] + 1 < np.count_nonzero(~within):  # count users, not their episodes
        pairs = np.sort(user * (size + 1) + words.codes + 1, kind="stable")  # fast, because nearly sorted
        had = pairs[np.append(True, pairs[1:] != pairs[:-1])] % (size + 1)
    else:
        had = words.codes[~within] + 1
    users = np.bincount(had, minlength=size + 1)
    seen = rows[1:] > 0  # some rows may have been dropped since the values were listed
    labels = tuple(words.values.filter(pl.Series(seen)))
    return LabelSums(int(rows[0]), labels, rows[1:][seen], users[1:][seen], changes)


def many_labels(missing: int, distinct: pl.Series, known: tuple[NDArray[np.uint64], ...] = ()) -> LabelSums:
    """The statistics of text with more distinct values than a category may have; `known` are hashes of further ones."""
    none = np.zeros(0, dtype=np.int64)
    # The hashes are only counted, so polars' own hash is good enough.
    return LabelSums(missing, (), none, none, changes=True, many=(*known, distinct.hash().to_numpy()))
