"""Typing columns: ids, steps, actions, outcomes, features; values that do not fit are noted by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.log.cleaning.ids import read_ids, read_steps
from redenvelope.log.cleaning.number_formats import LOOKS, PLAIN_INTEGER, days, to_numbers
from redenvelope.log.columns import column
from redenvelope.log.findings import EXAMPLES, Found, Places
from redenvelope.log.limits import LARGEST_AMOUNT, LARGEST_STEP, LEAST_PROPENSITY, TINY_PROPENSITY
from redenvelope.log.schema.text import MOST_LABELS, LabelSums, Meanings, TextTally, Words, many_labels, words_of
from redenvelope.log.tables import TEMPORAL, Table, kind_of

_EXACT_FLOAT = 2.0**53

Noted = dict[tuple[str, str], Places]


def ids_are_whole(users: pl.Series) -> bool:
    """Whether text ids are all written as integers; a single exception keeps all of them text."""
    if kind_of(users.dtype) != "text":
        return False
    ids = read_ids(users)
    if ids is None or not ids.usable.str.contains(PLAIN_INTEGER).all():
        return False
    # An integer of nineteen digits may exceed int64.
    return ids.usable.cast(pl.Int64, strict=False).null_count() == ids.usable.null_count()


def coerce_user(table: Table, whole: bool, found: Noted) -> pl.Series | None:
    """Ids as int64 or text; None if the column cannot hold ids. Text is read as integers if `whole`."""
    users = table.frame["user"]
    ids = read_ids(users)
    if ids is None:
        table.note(found, "user_null", "user", users.is_null())
        return None
    for rule, broken in (
        ("user_null", ids.lost),
        ("user_not_finite", ids.not_finite),
        ("user_not_integer", ids.fractional),
        ("user_too_large", ids.too_large),
        ("user_float", ids.rewritten),
    ):
        table.note(found, rule, "user", broken)
    return ids.usable.cast(pl.Int64) if whole else ids.usable


def coerce_step(table: Table, found: Noted) -> pl.Series | None:
    """Steps as int32; None if the column cannot hold steps."""
    steps = table.frame["step"]
    table.note(found, "step_null", "step", steps.is_null())
    numbers = read_steps(steps)
    table.note(found, "step_not_integer", "step", numbers.is_null() & steps.is_not_null())
    far = ~numbers.is_between(-LARGEST_STEP, LARGEST_STEP).fill_null(True)
    table.note(found, "step_too_large", "step", far)
    if kind_of(steps.dtype) in (*TEMPORAL, "boolean"):
        return None
    return (numbers.set(far, None) if far.any() else numbers).cast(pl.Int32)


def coerce_outcome(table: Table, role: str, found: Noted) -> NDArray[np.float64] | None:
    """Propensity, reward or cost, [rows], with every unusable value noted; None if the column cannot hold numbers."""
    values = table.frame[role]
    if kind_of(values.dtype) in TEMPORAL:
        table.note(found, "cost_null" if role == "cost" else "value_null", role, values.is_null())
        table.note(found, "not_a_number", role, values.is_not_null())
        return None
    numbers = to_numbers(values)
    nan = numbers.is_nan().fill_null(False)
    if role == "cost":
        table.note(found, "cost_null", role, values.is_null() | nan)  # some tools write NaN for an empty field
    else:
        table.note(found, "value_null", role, values.is_null())
        table.note(found, "value_nan", role, nan)
    _note_no_numbers(table, role, numbers.is_null() & values.is_not_null(), found)
    table.note(found, "value_infinite", role, numbers.is_infinite().fill_null(False))
    if role != "propensity":
        too_large = (numbers.abs() > LARGEST_AMOUNT) & numbers.is_finite()
        table.note(found, "value_too_large", role, too_large.fill_null(False))
        numbers = numbers.set(too_large.fill_null(False), None)  # so that sums do not overflow before the refusal
    else:
        too_small = (numbers > 0) & (numbers < LEAST_PROPENSITY)
        table.note(found, "propensity_too_small", role, too_small.fill_null(False))
        table.note(found, "propensity_not_positive", role, (numbers <= 0).fill_null(False))
        table.note(found, "propensity_above_one", role, ((numbers > 1) & numbers.is_finite()).fill_null(False))
        table.note(
            found,
            "propensity_tiny",
            role,
            ((numbers >= LEAST_PROPENSITY) & (numbers < TINY_PROPENSITY)).fill_null(False),
        )
    if role == "cost":
        table.note(found, "cost_negative", role, (numbers < 0).fill_null(False))
    return numbers.fill_null(float("nan")).to_numpy()


def _note_no_numbers(table: Table, role: str, broken: pl.Series, found: Noted) -> None:
    """Note values that are not numbers by their look, because each look has its own remedy."""
    if not broken.any():
        return
    text = table.frame[role].cast(pl.String)
    for rule, look in LOOKS.items():
        looks_so = broken & text.str.contains(look).fill_null(False)
        table.note(found, rule, role, looks_so)
        broken &= ~looks_so
    table.note(found, "not_a_number", role, broken)


def coerce_action(table: Table, found: Noted) -> Words | None:
    """Actions by their labels as written; None if all are missing."""
    actions = table.frame["action"]
    table.note(found, "action_null", "action", actions.is_null())
    if actions.null_count() == len(actions):
        return None
    kind = kind_of(actions.dtype)
    if kind == "text":
        return words_of(actions, actions.drop_nulls().unique())
    if kind in TEMPORAL:
        text = actions.dt.to_string("iso")
        return words_of(text, text.drop_nulls().unique())
    if kind == "number":
        table.note(found, "value_nan", "action", actions.is_nan().fill_null(False))
        table.note(found, "value_infinite", "action", actions.is_infinite().fill_null(False))
    numbers = actions.cast(pl.Int8) if kind == "boolean" else actions
    distinct = numbers.drop_nulls().unique().sort()
    # Look codes up among the distinct values: converting every row to text would take far longer.
    codes = np.searchsorted(distinct.to_numpy(), numbers.fill_null(distinct[0]).to_numpy()).astype(np.int32)
    if numbers.null_count():
        codes[numbers.is_null().to_numpy()] = -1
    labels = number_labels(distinct.cast(pl.Float64)) if kind == "number" else distinct.cast(pl.String)
    return Words(labels, codes)


def number_labels(numbers: pl.Series) -> pl.Series:
    """5.0 as "5" and 2.5 as "2.5"."""
    whole = numbers.is_finite() & (numbers == numbers.floor()) & (numbers.abs() < _EXACT_FLOAT)
    return (
        numbers.cast(pl.Int64, strict=False).cast(pl.String).zip_with(whole.fill_null(False), numbers.cast(pl.String))
    )


# Features, as far as their own rows determine them: a number, or text that may mean numbers or labels.


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """The rows of one feature."""

    kind: str
    """The kind in the table: "text", "integer", "number", "boolean", "missing" or one of `TEMPORAL`."""
    plain: NDArray[np.float32] | None = None
    """[rows], NaN if missing; None for text, unless it has too many distinct values for a category."""
    words: Words | None = None
    """For text with at most `MOST_LABELS` distinct values."""
    tally: TextTally | None = None
    """For text."""
    many: LabelSums | None = None
    """For text with more distinct values."""
    different: NDArray[np.generic] | None = None
    """Integers, if all of them are distinct, because such a column may identify rows."""
    found: Found = field(default_factory=dict)
    """Rows that may violate a rule, depending on what the column means."""

    @cached_property
    def numbers(self) -> NDArray[np.float32] | None:
        """The rows as numbers, [rows], NaN if missing; None if any row is not a number."""
        if self.words is None:
            return self.plain
        if self.tally is None or self.tally.words:
            return None
        return np.append(_narrow(to_numbers(self.words.values))[0], np.float32("nan"))[self.words.codes]

    def rows(self, index: NDArray[np.int64]) -> FeatureRows:
        """Some of the rows, in the given order."""
        return replace(
            self,
            plain=None if self.plain is None else self.plain[index],
            words=None if self.words is None else self.words.rows(index),
        )


def coerce_feature(table: Table, name: str) -> FeatureRows:
    """A feature, typed as far as its rows determine."""
    values = column(table.frame, name)
    kind = kind_of(values.dtype)
    if kind == "text":
        return _text_rows(table, name, values)
    numbers, infinite = _narrow(days(values) if kind in TEMPORAL else values)
    found = {} if infinite is None else _noted(table, name, {"feature_infinite": infinite})
    return FeatureRows(kind, numbers, different=_different_integers(values) if kind == "integer" else None, found=found)


def _narrow(numbers: pl.Series) -> tuple[NDArray[np.float32], pl.Series | None]:
    """Numbers as float32, NaN if missing or too large for it; and which were too large, if any."""
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
    """The values, [rows], if all are distinct integers."""
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
        ("feature_number_as_text", meanings.formatted),
        ("feature_mixed", meanings.wordy),
        ("feature_infinite", None if infinite is None else infinite.to_numpy()),
    ):
        if meant is not None and meant.any():
            found[rule, name] = table.places(name, words.first_rows(meant, EXAMPLES), int(counts[meant].sum()))
    different = _different_integers(meanings.numbers) if len(words.values) == len(text) else None
    return FeatureRows("text", words=words, tally=tally, different=different, found=found)


def _many_rows(table: Table, name: str, text: pl.Series, distinct: pl.Series) -> FeatureRows:
    """Like `_text_rows`, for text with more distinct values than a category may have."""
    counted = text.drop_nulls().value_counts()
    meanings = Meanings.of(counted["value"])
    tally = meanings.tally(counted["count"].cast(pl.Int64).to_numpy())
    many = many_labels(text.null_count(), distinct)
    meant = {"feature_number_as_text": meanings.formatted, "feature_mixed": meanings.wordy}
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
