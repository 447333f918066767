"""The list column `eligible`: the labels of the actions that each row's user may get."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.log.log import ActionCatalogue
from redenvelope.log.schema.text import Words

ELIGIBLE = "eligible"
"""What the column is called, in logs and in tables of users."""

LISTED = "\0eligible"
"""What it is called while a log is read; the name can stand in no header."""

BETWEEN = "|"
"""Stands between labels where a file has no lists."""

_UNIT = "\x1f"  # stands between labels here: no label is written with it


def with_listed(frame: pl.DataFrame) -> pl.DataFrame:
    """A log's table with its lists under a name of ours, as one text each; else the table as it is.

    A text is a list only if all of it are labels of actions: a column of that name may be a feature like any other.
    """
    if ELIGIBLE not in frame.columns or frame[ELIGIBLE].dtype != pl.String or "action" not in frame.columns:
        return frame
    text = frame[ELIGIBLE]
    if not text.str.starts_with(_UNIT).all():
        text = as_text(text)
        labels = {form for label in frame["action"].unique() if label is not None for form in _forms(label)}
        if not all(part in labels for value in text.drop_nulls().unique() for part in parts_of(value)):
            return frame
    return frame.drop(ELIGIBLE).with_columns(text.alias(LISTED))


def _forms(label: object) -> set[str]:
    return {str(label), f"{label:g}"} if isinstance(label, float | int) else {str(label)}


def lists_logged(listed: Words, action: Words) -> NDArray[np.bool_]:
    """Whether each row lists the action that it logs, [rows]; a row without a list, or without an action, does."""
    member = np.ones((len(listed.values) + 1, len(action.values) + 1), dtype=bool)
    labels = [_forms(float(label)) | {label} if _is_number(label) else {label} for label in action.values]
    for row, text in enumerate(listed.values):
        parts = {
            form for part in parts_of(text) for form in ({part, f"{float(part):g}"} if _is_number(part) else {part})
        }
        member[row, : len(labels)] = [bool(forms & parts) for forms in labels]
    return np.asarray(member[listed.codes, action.codes])


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def is_listed(dtype: pl.DataType) -> bool:
    """Whether a column of this type holds lists of labels."""
    return isinstance(dtype, pl.List) and not dtype.inner.is_nested()


def as_text(values: pl.Series) -> pl.Series:
    """Lists of labels as one text each; a text is one already, of labels with a bar between. Missing stays missing."""
    if not is_listed(values.dtype):
        return values.cast(pl.String).str.replace_all(BETWEEN, _UNIT, literal=True)
    inner = values.list.explode() if len(values) else pl.Series([], dtype=pl.String)
    if inner.dtype.is_numeric():
        values = values.cast(pl.List(pl.Float64)).list.eval(_number_text(pl.element()))
    # A mark at the beginning tells an empty list from a missing one.
    return _UNIT + values.cast(pl.List(pl.String)).list.join(_UNIT)


def as_marked_text(values: pl.Series) -> pl.Series:
    """The same with the mark of a list, whatever labels it has: the table, or somebody, said that it holds lists."""
    text = as_text(values)
    return text if is_listed(values.dtype) else _UNIT + text


def parts_of(text: str) -> tuple[str, ...]:
    """The labels in a text from `as_text`."""
    return tuple(part.strip() for part in text.split(_UNIT) if part.strip())


def mask_of_texts(texts: list[str], catalogue: ActionCatalogue) -> NDArray[np.bool_]:
    """What each text from `as_text` lists, [texts, actions]; labels that nobody knows are passed over."""
    known = {_key(label, catalogue.numeric): place for place, label in enumerate(catalogue.labels)}
    mask = np.zeros((len(texts), len(catalogue)), dtype=bool)
    for row, text in enumerate(texts):
        for part in parts_of(text):
            place = known.get(_key(part, catalogue.numeric))
            if place is not None:
                mask[row, place] = True
    return mask


def listed_actions(values: pl.Series, catalogue: ActionCatalogue) -> NDArray[np.bool_]:
    """What each row of a table of users lists, [rows, actions]; a row without a list may get everything."""
    if not is_listed(values.dtype) and values.dtype not in (pl.String, pl.Null, pl.Categorical, pl.Enum):
        raise ModelError(
            f"the column {ELIGIBLE!r} holds {values.dtype}; it must hold lists of the labels of eligible actions"
        )
    text = as_text(values) if values.dtype != pl.Null else values.cast(pl.String)
    distinct = text.drop_nulls().unique(maintain_order=True)  # what is told as an example is the first
    known = mask_of_texts(distinct.to_list(), catalogue)
    named = [part for value in distinct for part in parts_of(value)]
    if named and not known.any():
        raise ModelError(
            f"the column {ELIGIBLE!r} lists {named[0]!r}, and none of its labels is an action of the plan: "
            f"{', '.join(catalogue.labels)}; use these labels, or rename the column"
        )
    mask = np.concatenate([known, np.ones((1, len(catalogue)), dtype=bool)])
    codes = text.replace_strict(distinct, pl.Series(range(len(distinct)), dtype=pl.Int64), default=len(distinct))
    return np.asarray(mask[codes.fill_null(len(distinct)).cast(pl.Int64).to_numpy()])


def _key(label: str, numeric: bool) -> str | float:
    if not numeric:
        return label
    try:
        return float(label)
    except ValueError:
        return label


def _number_text(number: pl.Expr) -> pl.Expr:
    """5.0 as "5" and 2.5 as "2.5"."""
    whole = number == number.floor()
    return pl.when(whole).then(number.cast(pl.Int64, strict=False).cast(pl.String)).otherwise(number.cast(pl.String))
