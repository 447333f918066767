"""User ids and steps: one canonical form, whatever type they are stored in.

An integer id is the same user as an integer, as a decimal number (5.0) and as text ("5", "5.0"). Any other text is
compared literally, except for surrounding spaces: "005", "+5" and "5e0" differ from 5. No id is ever converted to a
number that cannot hold it exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from redenvelope.arrays import KeyArray
from redenvelope.errors import ModelError
from redenvelope.log.cleaning.number_formats import MISSING_WORDS
from redenvelope.log.tables import kind_of, plain, wide_integers
from redenvelope.wording import counted

_WHOLE = r"^(0|-?[1-9][0-9]*)\.0+$"
_INTEGER = r"^(0|-?[1-9][0-9]*)$"
_STEP = r"^\s*([+-]?[0-9]{1,18})(?:\.0*)?\s*$"  # excludes 1e0 and true
_NO_NUMBER = r"(?i)^[+-]?(nan|inf|infinity)$"
_ROUNDED = r"^-?[0-9]\.[0-9]+[eE]\+[0-9]+$"  # 1.23457e+18: an id of nineteen digits that an export rounded
_EXACT = {pl.Float32: 2.0**24, pl.Float64: 2.0**53}  # from here on, neighbouring integers coincide


class Ids(NamedTuple):
    """The ids of some rows in canonical form, and which rows cannot have one; all [rows]."""

    values: pl.Series
    """Int64, or text; integers beyond int64 are text, with all their digits."""
    rewritten: pl.Series
    """Integers that were written with a fraction of zeros."""
    lost: pl.Series
    """Missing."""
    not_finite: pl.Series
    fractional: pl.Series
    too_large: pl.Series
    """Numbers so large that they were rounded."""

    @property
    def usable(self) -> pl.Series:
        """The ids, null if a row has none, because rounded ids could be confused with others."""
        nobody = self.lost | self.not_finite | self.fractional | self.too_large
        return self.values.set(nobody, None) if nobody.any() else self.values


def read_ids(users: pl.Series) -> Ids | None:
    """The ids of a column; None if its type cannot hold ids (booleans, dates, lists)."""
    kind = kind_of(users.dtype)
    none = users.is_null() & False
    if kind == "missing":
        return Ids(users.cast(pl.Int64), none, users.is_null(), none, none, none)
    if kind == "integer":
        return Ids(_integers(users), none, users.is_null(), none, none, none)
    if kind == "text" or isinstance(users.dtype, pl.Decimal):
        return _of_text(plain(users) if kind == "text" else users.cast(pl.String), kind == "text")
    if kind != "number":
        return None
    lost, not_finite = users.is_null(), (~users.is_finite()).fill_null(False)
    fractional = (users != users.floor()).fill_null(False) & ~not_finite
    limit = _EXACT.get(type(users.dtype), 2.0**11)  # type: ignore[arg-type]
    too_large = (users.abs() >= limit).fill_null(False) & ~not_finite & ~fractional
    whole = users.cast(pl.Int64, strict=False)
    return Ids(whole, users.is_not_null(), lost, not_finite, fractional, too_large)


def _integers(users: pl.Series) -> pl.Series:
    narrow = users.cast(pl.Int64, strict=False)
    return narrow if narrow.null_count() == users.null_count() else users.cast(pl.String)


def _of_text(text: pl.Series, is_text: bool) -> Ids:
    none = text.is_null() & False
    # Text files cannot distinguish padded values from plain ones, so no id keeps surrounding spaces.
    text = plain(text.str.strip_chars())
    values, rewritten = text, none
    if text.str.contains(".0", literal=True).any():
        values = text.str.replace(_WHOLE, "${1}")
        rewritten = (values != text).fill_null(False)
    whole = values.str.contains(_INTEGER).fill_null(True)
    lost = text.is_null()
    if not is_text:
        return Ids(values, rewritten, lost, none, ~whole, none)
    if whole.all():
        return Ids(values, rewritten, lost, none, none, none)
    words = text.is_in(list(MISSING_WORDS)).fill_null(False)
    broken = text.str.contains(_NO_NUMBER).fill_null(False)
    rounded = text.str.contains(_ROUNDED).fill_null(False)
    # A user may be called Nan; only among numbers does it mean NaN.
    if not (whole | words | broken | rounded).all():
        words = broken = none
    return Ids(values, rewritten, lost | words, broken, none, rounded)


def id_refusal(ids: Ids, users: pl.Series, first: int = 0) -> str | None:
    """What is wrong with the first invalid id, as text; None if all are valid. `first` rows precede in the table."""
    for broken, why in (
        (ids.lost, "the user is missing; every row needs one"),
        (ids.not_finite, "{value} is not a user id; repair the export of the id"),
        (ids.fractional, "the user {value} is a number with a fraction; store the id as text or as an integer"),
        (ids.too_large, "the user {value} is a number so large that it was rounded; store the id as text or integer"),
    ):
        if broken.any():
            row = int(broken.arg_true()[0])
            said = why.format(value=str(users[row])[:60])
            return f"row {first + row + 1:,}: {said} ({counted(int(broken.sum()), 'such row')})"
    return None


def serving_ids(users: pl.Series, before: int = 0) -> pl.Series:
    """The ids of a table to decide for: Int64, UInt64 or text, by the column's type alone, so that parts agree.

    `before` rows precede in the whole table.
    """
    ids = read_ids(users)
    if ids is None:
        raise ModelError(
            f"the users of the table are of type {str(users.dtype)[:100]}, neither text nor integers; write the id as "
            "text or as an integer"
        )
    if why := id_refusal(ids, users, before):
        raise ModelError(why)
    if users.dtype == pl.UInt64:
        return users
    return ids.values.cast(pl.String) if wide_integers(users.dtype) else ids.values


def read_steps(steps: pl.Series) -> pl.Series:
    """Steps as Int64, null if missing or not written as an integer."""
    kind = kind_of(steps.dtype)
    if kind == "integer":
        return steps.cast(pl.Int64, strict=False)
    if kind == "text" or isinstance(steps.dtype, pl.Decimal):
        return steps.cast(pl.String).str.extract(_STEP, 1).cast(pl.Int64, strict=False)
    if kind == "number":
        whole = steps.is_finite() & (steps == steps.floor())
        return steps.set((~whole).fill_null(False), None).cast(pl.Int64, strict=False)
    return pl.Series(steps.name, [None] * len(steps), dtype=pl.Int64)


# A user who appears twice at a step would be decided for twice.


def marks_of(rows: pl.DataFrame) -> KeyArray:
    """A hash of user and step for each row, [rows]; different rows hardly ever have the same one."""
    return rows.select("user", "step").hash_rows().to_numpy(writable=True)


def repeated(marks: KeyArray) -> KeyArray:
    """The marks that occur more than once; `marks` is sorted in place to save memory."""
    marks.sort()
    return np.unique(marks[1:][marks[1:] == marks[:-1]])


class Repeats(NamedTuple):
    """Rows that repeat the user and step of an earlier row."""

    row: int
    """The first repeating row, from 0."""
    like: int
    """The first row with that user and step."""
    total: int
    """Number of repeating rows."""


def find_repeats(rows: pl.DataFrame) -> Repeats | None:
    """The repeats among rows of users and steps with their numbers (`row`); None if there are none."""
    again = rows.filter(~pl.struct("user", "step").is_first_distinct())
    if again.is_empty():
        return None
    like = rows.join(again.head(1), on=("user", "step"), how="semi")
    return Repeats(int(again["row"][0]), int(like["row"].min()), len(again))  # type: ignore[arg-type]
