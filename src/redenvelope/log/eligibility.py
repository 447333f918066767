"""The list column `eligible`: the labels of the actions that each row's user may get.

Lists are read as one text for each row, with labels between marks, because text files have no lists.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.log.log import ActionCatalogue
from redenvelope.log.schema.text import Words

ELIGIBLE = "eligible"
"""The name of the column in logs and tables of users."""

LISTED = "\0eligible"
"""Its name while a log is read, which no header can contain."""

BETWEEN = "|"
"""The separator of labels in files without lists."""

_UNIT = "\x1f"  # the internal separator, which no label contains


def with_listed(frame: pl.DataFrame) -> pl.DataFrame:
    """A log's table with its lists as text under an internal name; without such lists, the table as it is.

    A text column counts as lists only if all parts are labels of actions; otherwise it is an ordinary feature.
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
    """Whether each row's list contains its logged action, [rows]; true for rows without a list or an action."""
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
    """Whether a column type holds lists of labels."""
    return isinstance(dtype, pl.List) and not dtype.inner.is_nested()


def as_text(values: pl.Series) -> pl.Series:
    """Lists of labels as one text each; text with labels between bars is converted too. Missing stays missing."""
    if not is_listed(values.dtype):
        return values.cast(pl.String).str.replace_all(BETWEEN, _UNIT, literal=True)
    inner = values.list.explode() if len(values) else pl.Series([], dtype=pl.String)
    if inner.dtype.is_numeric():
        values = values.cast(pl.List(pl.Float64)).list.eval(_number_text(pl.element()))
    # The mark at the beginning distinguishes an empty list from a missing one.
    return _UNIT + values.cast(pl.List(pl.String)).list.join(_UNIT)


def as_marked_text(values: pl.Series) -> pl.Series:
    """Like `as_text`, but always with the mark of a list, for columns that are known to hold lists."""
    text = as_text(values)
    return text if is_listed(values.dtype) else _UNIT + text


def parts_of(text: str) -> tuple[str, ...]:
    """The labels in a text made by `as_text`."""
    return tuple(part.strip() for part in text.split(_UNIT) if part.strip())


def mask_of_texts(texts: list[str], catalogue: ActionCatalogue) -> NDArray[np.bool_]:
    """The actions listed by each text from `as_text`, [texts, actions]; unknown labels are ignored."""
    known = {_key(label, catalogue.numeric): place for place, label in enumerate(catalogue.labels)}
    mask = np.zeros((len(texts), len(catalogue)), dtype=bool)
    for row, text in enumerate(texts):
        for part in parts_of(text):
            place = known.get(_key(part, catalogue.numeric))
            if place is not None:
                mask[row, place] = True
    return mask


def listed_actions(values: pl.Series, catalogue: ActionCatalogue) -> NDArray[np.bool_]:
    """The actions listed in each row of a table of users, [rows, actions]; all actions for rows without a list."""
    if not is_listed(values.dtype) and values.dtype not in (pl.String, pl.Null, pl.Categorical, pl.Enum):
        raise ModelError(
            f"the column {ELIGIBLE!r} holds {values.dtype}; it must hold lists of the labels of eligible actions"
        )
    text = as_text(values) if values.dtype != pl.Null else values.cast(pl.String)
    distinct = text.drop_nulls().unique(maintain_order=True)  # so that an error shows the first example
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
