"""The item catalogue: one row per action with its attributes, through which models share strength.

Attributes are the columns besides `action`: numbers (a face value, a margin) and texts or flags (a category). A model
with attributes learns about a category or an amount from all items that have it. Without a catalogue, labels that are
numbers serve as their own attribute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.arrays import Float32Array, FloatArray
from redenvelope.campaign.rows import places_of
from redenvelope.errors import UsageError
from redenvelope.log.cleaning.number_formats import is_number, to_numbers, to_plain_numbers
from redenvelope.log.columns import nearest_name
from redenvelope.log.findings import EXAMPLES, IN_MEMORY, Findings, merge, require_usable
from redenvelope.log.formats.dataframes import to_polars
from redenvelope.log.log import Log
from redenvelope.log.read import read_file
from redenvelope.log.tables import ROW, kind_of

_MOST_VALUES = 30
"""Most distinct values of a text attribute; with more, a column identifies single items."""
_LONG_TAIL = 10.0
"""Numbers whose maximum is more than this many times their median are replaced by their logarithms."""
_RIDGE = 0.3
"""Weight of the penalty in the regression that predicts new items, next to attributes with variance one."""
_FEW_ACTIONS = 12
"""With at most so many actions, numeric labels say no more than their order."""


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The attributes of a campaign's actions.

    For example:

        Catalogue.of(pl.DataFrame({"action": ["none", "5 € shoes"], "amount": [0, 5], "category": ["-", "shoes"]}))
    """

    frame: pl.DataFrame
    """One row per action; the column `action` holds its label."""
    file: str = IN_MEMORY
    """The file name for findings."""

    @classmethod
    def of(cls, frame: Any, action: str = "action") -> Catalogue:
        """A catalogue from any dataframe; `action` names the column with the actions' labels."""
        return cls(_named(to_polars(frame, "the catalogue"), action))

    @classmethod
    def read(cls, path: str | Path, action: str = "action") -> Catalogue:
        """A catalogue from a Parquet, CSV or TSV file or a workbook."""
        place, findings = Path(path), Findings()
        if not place.is_file():
            raise UsageError(f"the item catalogue {place} is no file; give a Parquet, CSV or TSV file, or a workbook")
        frame = read_file(place, place.name, frozenset(), findings)
        require_usable(findings.sorted())
        assert frame is not None, "without an error there is a table"
        return cls(_named(frame.drop(ROW, strict=False), action), place.name)

    def attached(self, log: Log, new: Sequence[str] = ()) -> Log:
        """A log whose actions have these attributes; all mistakes in the catalogue are reported at once. The items
        `new` are to be introduced."""
        findings = Findings()
        places = self._places(log, findings, new)
        parts = [] if places is None else [self._attribute(name, places, findings) for name in self._columns]
        require_usable(findings.sorted())
        known = [part for part in parts if part is not None]
        if not known:
            findings.add("items_no_attributes", file=self.file)
        attributes = np.concatenate(known) if known else None
        return replace(log, attributes=attributes, findings=merge(log.findings, findings.sorted()))

    def mixtures(self, log: Log, new: Sequence[str]) -> FloatArray:
        """Weights of the log's actions that predict new items: a ridge regression on attributes, [new, actions].

        Outcomes of a new item are the weighted outcomes of the known ones, whatever model predicts these."""
        places, labels = self._places(log, Findings()), self.frame["action"].cast(pl.String).fill_null("").to_list()
        assert places is not None, "the catalogue was attached to the log before"
        rows = places_of(tuple(new), tuple(labels), log.catalogue.numeric)
        if None in rows:
            lacking = new[rows.index(None)]
            raise UsageError(f"[[new]]: the item catalogue {self.file} has no {lacking!r}; add its row")
        everywhere = np.concatenate([places, np.array(rows, dtype=np.intp)])
        parts = [self._attribute(name, everywhere, Findings()) for name in self._columns]
        rising = np.concatenate(
            [part for part in parts if part is not None] or [np.zeros((0, len(everywhere)), np.float32)]
        ).T
        known, own = rising[: len(places)].astype(np.float64), rising[len(places) :]
        middle = known.mean(axis=0)  # the mean is not shrunk
        shrunk = np.linalg.solve((known - middle).T @ known + _RIDGE * np.eye(known.shape[1]), (known - middle).T)
        return np.asarray((own - middle) @ shrunk + 1 / len(places))

    def named(self, action: str) -> Catalogue:
        """The catalogue, whose column of labels may be called as in the log, `action`."""
        return replace(self, frame=_named(self.frame, action))

    @property
    def _columns(self) -> list[str]:
        return [name for name in self.frame.columns if name != "action"]

    def _places(self, log: Log, findings: Findings, new: Sequence[str] = ()) -> NDArray[np.intp] | None:
        """The row of each action of the log, [actions]; None if some action has none."""
        if "action" not in self.frame.columns:
            near = nearest_name("action", self.frame.columns) or "YOUR_COLUMN"
            findings.add("items_no_action", file=self.file, present=", ".join(self.frame.columns[:30]), nearest=near)
            return None
        labels, catalogue = tuple(self.frame["action"].cast(pl.String).fill_null("").to_list()), log.catalogue
        found = places_of(labels, catalogue.labels, catalogue.numeric)
        introduced = places_of(labels, tuple(new), catalogue.numeric)
        both = zip(labels, found, introduced, strict=True)
        unknown = [label for label, *places in both if places == [None, None]]
        if unknown:
            findings.add("items_not_logged", file=self.file, column="action", count=len(unknown), examples=unknown)
        rows: dict[int, list[int]] = {}
        for row, place in enumerate(found):
            if place is not None:
                rows.setdefault(place, []).append(row)
        twice = [place for place, own in rows.items() if len(own) > 1]
        if twice:
            examples = [catalogue.labels[place] for place in twice]
            lines = [rows[place][1] + 1 for place in twice]
            findings.add(
                "items_twice", file=self.file, column="action", count=len(twice), rows=lines, examples=examples
            )
        missing = [label for place, label in enumerate(catalogue.labels) if place not in rows]
        if missing:
            meant = {label: nearest_name(label, unknown) for label in missing[:EXAMPLES]}
            told = [label if own is None else f"{label}, or is it {own}?" for label, own in meant.items()]
            findings.add("items_missing", file=self.file, column="action", count=len(missing), examples=told)
            return None
        return np.array([rows[place][0] for place in range(len(catalogue))])

    def _attribute(self, name: str, places: NDArray[np.intp], findings: Findings) -> Float32Array | None:
        """One column as attributes, [attributes, actions]; None if it has no information."""
        values = self.frame[name][places]
        if values.dtype == pl.String and not values.str.contains(r"^0\d").any():  # codes such as 007 are labels
            plain = to_plain_numbers(values)
            values = to_numbers(plain) if is_number(plain).all() else values
        kind = kind_of(values.dtype)
        if kind in ("nested", "date", "time", "duration"):
            findings.add("items_column_kind", file=self.file, column=name, kind=kind)
            return None
        empty = int(values.is_null().sum())
        if empty and kind != "missing":
            findings.add("items_empty", file=self.file, column=name, count=empty)
        if values.n_unique() < 2:
            return None
        if kind in ("integer", "number"):
            return _numbers(values.cast(pl.Float64).to_numpy())
        texts = values.cast(pl.String).fill_null("")
        distinct = sorted(set(texts.to_list()))
        if len(distinct) > min(_MOST_VALUES, 3 * len(places) // 4):
            findings.add("items_single", file=self.file, column=name, count=len(distinct))
            return None
        return np.array([(texts == value).to_numpy() for value in distinct], dtype=np.float32)


def with_attributes(log: Log, catalogue: Catalogue | None, action: str = "action", new: Sequence[str] = ()) -> Log:
    """A log with the attributes of a catalogue or, without one, of numeric labels if there are many. The catalogue may
    name its column of labels as the log does, `action`. The items `new` are to be introduced."""
    if catalogue is not None:
        return catalogue.named(action).attached(log, new)
    if not log.catalogue.numeric or len(log.catalogue) <= _FEW_ACTIONS:
        return log
    return replace(log, attributes=_numbers(np.array(log.catalogue.labels, dtype=np.float64)))


def _numbers(values: FloatArray) -> Float32Array:
    """A standardised number and its centred square, [2, actions]; missing values are replaced by the mean."""
    known = np.isfinite(values)
    numbers = np.where(known, values, values[known].mean())
    if numbers.min() >= 0 and numbers.max() > _LONG_TAIL * max(float(np.median(numbers)), 1e-12):
        numbers = np.log1p(numbers / max(float(np.median(numbers)), 1e-12))
    unit = (numbers - numbers.mean()) / max(float(numbers.std()), 1e-12)
    return np.stack([unit, unit**2 - 1]).astype(np.float32)


def _named(frame: pl.DataFrame, action: str) -> pl.DataFrame:
    return frame.rename({action: "action"}) if action in frame.columns and "action" not in frame.columns else frame
