"""Features into states: fitted on training users only, saved as data, defined for what it never saw."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.log.findings import Finding, Findings
from redenvelope.log.layout import StateLayout
from redenvelope.log.log import FeatureTable, Log
from redenvelope.log.numbers import days, is_number, to_numbers
from redenvelope.log.tables import TEMPORAL, kind_of, plain

__all__ = ["CategoryEncoding", "Encoder", "NumberEncoding"]

OTHER, MISSING = 0, 1
"""Codes of every category: unseen or rare, and missing. Labels follow."""

_UNSEEN = "\0"  # stands for every label met at serving time that training did not know
_RARE_ROWS = 10  # labels seen less often teach nothing of their own, but they do teach `OTHER`
_LARGEST_DEVIATION = 8.0  # standard deviations; a value beyond is a typing error or an outlier, and is clipped


@dataclass(frozen=True)
class NumberEncoding:
    """How one number is standardised; a missing value becomes the mean, and says so in a column of its own."""

    name: str
    mean: float
    scale: float
    static: bool
    binary: bool
    missing_seen: bool


@dataclass(frozen=True)
class CategoryEncoding:
    """How one category is coded: 0 for unseen or rare labels, 1 for missing, then the labels."""

    name: str
    labels: tuple[str, ...]
    static: bool

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.labels) + 2


@dataclass(frozen=True)
class Encoder:
    """Turns features and steps into states [rows, layout.width] of float32."""

    numbers: tuple[NumberEncoding, ...]
    categories: tuple[CategoryEncoding, ...]
    first_step: int
    campaign_steps: int

    @classmethod
    def fit(cls, log: Log) -> Encoder:
        """Learn means, scales and labels from the (training) users of a log."""
        features = log.features
        numbers = tuple(
            _fit_number(name, features.numeric[:, column], name in features.static)
            for column, name in enumerate(features.numeric_names)
        )
        categories = tuple(
            _fit_category(name, features.codes[:, column], features.labels[column], name in features.static)
            for column, name in enumerate(features.category_names)
        )
        return cls(numbers, categories, log.first_step, log.campaign_steps)

    @property
    def layout(self) -> StateLayout:
        """Where each part of a state stands."""
        indicators = [number for number in self.numbers if number.missing_seen]
        return StateLayout(
            static_categories=tuple(category.size for category in self.categories if category.static),
            static_numbers=sum(number.static for number in self.numbers) + sum(number.static for number in indicators),
            dynamic_numbers=sum(not number.static and not number.binary for number in self.numbers),
            dynamic_binaries=sum(not number.static and number.binary for number in self.numbers)
            + sum(not number.static for number in indicators),
            dynamic_categories=tuple(category.size for category in self.categories if not category.static),
            step_change=1.0 / max(self.campaign_steps - 1, 1),
        )

    def encode(self, log: Log) -> NDArray[np.float32]:
        """The states of a log's rows, [rows, width]."""
        return self.encode_table(log.features, log.step)

    def encode_table(self, features: FeatureTable, step: NDArray[np.int32]) -> NDArray[np.float32]:
        """The states of a feature table, [rows, width]; a feature it lacks is missing in every row."""
        layout = self.layout
        states = np.zeros((len(step), layout.width), dtype=np.float32)
        static_number = len(layout.static_categories)
        states[:, layout.step] = (step - self.first_step) * layout.step_change
        number, binary = layout.numbers.start, layout.binaries.start
        for encoding in self.numbers:
            values, missing = _standardise(encoding, _numeric_column(features, encoding.name, len(step)))
            columns = [values, missing] if encoding.missing_seen else [values]
            for place, column in enumerate(columns):
                if encoding.static:
                    states[:, static_number] = column
                    static_number += 1
                elif encoding.binary or place == 1:
                    states[:, binary] = column
                    binary += 1
                else:
                    states[:, number] = column
                    number += 1
        blocks = iter(layout.categories)
        code_column = 0
        for category in self.categories:
            codes = _category_codes(category, features, len(step))
            if category.static:
                states[:, code_column] = codes
                code_column += 1
            else:
                states[np.arange(len(step)), next(blocks).start + codes] = 1.0
        return states

    def encode_frame(self, frame: pl.DataFrame) -> tuple[NDArray[np.float32], tuple[Finding, ...]]:
        """The states of a table of users to decide for (`step` and the features), and what was odd about it.

        A missing column is missing in every row, an unseen label is "other", a value that is no number is
        missing: each is used as defined and reported, never silently.
        """
        findings = Findings()
        if "step" not in frame.columns:
            raise ModelError("the table has no column 'step'; add the number of the decision to each row")
        steps, _ = _serving_numbers(frame["step"])
        outside = steps.is_null() | (steps != steps.floor())
        outside |= (steps < self.first_step) | (steps >= self.first_step + self.campaign_steps)
        if outside.any():
            row = int(outside.arg_true()[0]) + 1
            last = self.first_step + self.campaign_steps - 1
            raise ModelError(
                f"row {row}: step {frame['step'].slice(row - 1, 1).to_list()[0]} is not a step of the campaign "
                f"({self.first_step} to {last}); remove the {int(outside.sum())} row(s) outside it"
            )
        numeric = [_serving_number(frame, number.name, findings) for number in self.numbers]
        codes = [_serving_codes(frame, category, findings) for category in self.categories]
        table = FeatureTable(
            numeric_names=tuple(number.name for number in self.numbers),
            numeric=np.stack(numeric, axis=1) if numeric else np.zeros((len(frame), 0), np.float32),
            category_names=tuple(category.name for category in self.categories),
            codes=np.stack(codes, axis=1) if codes else np.zeros((len(frame), 0), np.int32),
            labels=tuple((*category.labels, _UNSEEN) for category in self.categories),
            static=frozenset(),
        )
        return self.encode_table(table, steps.cast(pl.Int32).to_numpy()), findings.sorted()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Encoder:
        """The encoder that `as_dict` wrote."""
        return cls(
            numbers=tuple(NumberEncoding(**number) for number in content["numbers"]),
            categories=tuple(
                CategoryEncoding(**category | {"labels": tuple(category["labels"])})
                for category in content["categories"]
            ),
            first_step=int(content["first_step"]),
            campaign_steps=int(content["campaign_steps"]),
        )


def _fit_number(name: str, values: NDArray[np.float32], static: bool) -> NumberEncoding:
    missing = np.isnan(values)
    seen = values[~missing] if missing.any() else values
    if not len(seen):
        return NumberEncoding(name, 0.0, 1.0, static, binary=False, missing_seen=False)
    binary = bool(((seen == 0) | (seen == 1)).all())
    mean = float(seen.mean(dtype=np.float64))
    scale = float(seen.std(dtype=np.float64))
    if not np.isfinite(scale) or scale <= 1e-12 * max(1.0, abs(mean)):
        scale = 1.0
    # A binary keeps its own scale, so that a predicted probability is a state like any other.
    if binary and not static:
        mean, scale = 0.0, 1.0
    return NumberEncoding(name, mean, scale, static, binary and not static, bool(missing.any()))


def _fit_category(name: str, codes: NDArray[np.int32], labels: tuple[str, ...], static: bool) -> CategoryEncoding:
    counts = np.bincount(codes[codes >= 0], minlength=len(labels))
    return CategoryEncoding(
        name,
        tuple(label for label, count in zip(labels, counts, strict=True) if count >= _RARE_ROWS),
        static,
    )


def _standardise(
    encoding: NumberEncoding, values: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    missing = np.isnan(values)
    # In float64: an outlier near the largest float32 would overflow on its way to being clipped.
    scaled = (values.astype(np.float64) - encoding.mean) / encoding.scale
    scaled = np.clip(scaled, -_LARGEST_DEVIATION, _LARGEST_DEVIATION)
    return np.where(missing, 0.0, scaled).astype(np.float32), missing


def _numeric_column(features: FeatureTable, name: str, rows: int) -> NDArray[np.float32]:
    if name in features.numeric_names:
        return features.numeric[:, features.numeric_names.index(name)]
    return np.full(rows, np.nan, dtype=np.float32)


def _category_codes(encoding: CategoryEncoding, features: FeatureTable, rows: int) -> NDArray[np.int64]:
    if encoding.name not in features.category_names:
        return np.full(rows, MISSING, dtype=np.int64)
    column = features.category_names.index(encoding.name)
    place = {label: code for code, label in enumerate(encoding.labels, start=2)}
    lookup = np.array([place.get(label, OTHER) for label in features.labels[column]] + [MISSING])
    return lookup[features.codes[:, column]]  # a missing code is −1: the last entry


def _serving_number(frame: pl.DataFrame, name: str, findings: Findings) -> NDArray[np.float32]:
    if name not in frame.columns:
        findings.add("serving_column_missing", column=name, count=len(frame))
        return np.full(len(frame), np.nan, dtype=np.float32)
    numbers, lost = _serving_numbers(frame[name])
    values = numbers.cast(pl.Float32, strict=False)
    lost |= values.is_infinite().fill_null(False)
    if lost.any():
        rows = lost.arg_true()
        findings.add(
            "serving_not_a_number",
            column=name,
            count=len(rows),
            rows=[int(row) + 1 for row in rows[:5]],
            examples=frame[name].gather(rows[:5]).to_list(),
        )
        values = values.set(lost, None)
    return values.fill_null(float("nan")).to_numpy()


def _serving_numbers(values: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Values as float64, read as a log's are, and which of them are no numbers though they are not missing."""
    kind = kind_of(values.dtype)
    if kind == "nested":
        return pl.Series(values.name, [None] * len(values), dtype=pl.Float64), values.is_not_null()
    values = plain(values)
    if kind in TEMPORAL:
        return days(values), values.is_null() & False
    return to_numbers(values), ~is_number(values)


def _serving_text(values: pl.Series) -> pl.Series:
    kind = kind_of(values.dtype)
    if kind == "nested" or kind in TEMPORAL:
        return pl.Series(values.name, [None if value is None else str(value) for value in values], dtype=pl.String)
    return plain(values).cast(pl.String)


def _serving_codes(frame: pl.DataFrame, encoding: CategoryEncoding, findings: Findings) -> NDArray[np.int32]:
    if encoding.name not in frame.columns:
        findings.add("serving_column_missing", column=encoding.name, count=len(frame))
        return np.full(len(frame), -1, dtype=np.int32)
    values = _serving_text(frame[encoding.name])
    known = {label: code for code, label in enumerate(encoding.labels)}
    codes = values.replace_strict(known, default=None, return_dtype=pl.Int32)
    unseen = codes.is_null() & values.is_not_null()
    if unseen.any():
        rows = unseen.arg_true()
        findings.add(
            "serving_unseen_label",
            column=encoding.name,
            count=len(rows),
            rows=[int(row) + 1 for row in rows[:5]],
            examples=values.gather(rows).unique(maintain_order=True)[:5].to_list(),
        )
    # An unseen label must become "other", not "missing": give it the code of `_UNSEEN`.
    return codes.fill_null(-1).set(unseen, len(encoding.labels)).to_numpy()
