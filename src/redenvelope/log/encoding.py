"""Features into states: fitted on training users only, saved as data, defined for what it never saw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.log.encode_table import write_states
from redenvelope.log.encodings import MISSING, OTHER, CategoryEncoding, NumberEncoding, fit_category, fit_number
from redenvelope.log.feature_sums import FeatureSums, feature_sums, merge_features
from redenvelope.log.findings import Finding, Findings
from redenvelope.log.layout import StateLayout
from redenvelope.log.log import FeatureTable, Log
from redenvelope.log.serving_frame import serving_steps, serving_table
from redenvelope.log.serving_row import RowEncoder

__all__ = ["MISSING", "OTHER", "CategoryEncoding", "Encoder", "NumberEncoding"]


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
        return cls.from_sums([feature_sums(log)])

    @classmethod
    def from_sums(cls, parts: Iterable[FeatureSums]) -> Encoder:
        """The same from the sums of a log's parts, merged in their order."""
        sums = merge_features(tuple(parts))
        return cls(
            numbers=tuple(
                fit_number(name, number, name in sums.static)
                for name, number in zip(sums.numeric_names, sums.numbers, strict=True)
            ),
            categories=tuple(
                fit_category(name, labels, rows, name in sums.static)
                for name, labels, rows in zip(sums.category_names, sums.labels, sums.label_rows, strict=True)
            ),
            first_step=sums.first_step,
            campaign_steps=sums.last_step - sums.first_step + 1,
        )

    @cached_property
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
        steps = (step - self.first_step).astype(np.float64) * self.layout.step_change
        return write_states(features, steps, self.numbers, self.categories, self.layout)

    def encode_frame(self, frame: pl.DataFrame) -> tuple[NDArray[np.float32], tuple[Finding, ...]]:
        """The states of a table of users to decide for (`step` and the features), and what was odd about it.

        A missing column is missing in every row, an unseen label is "other", a value that is no number is
        missing: each is used as defined and reported, never silently.
        """
        findings = Findings()
        steps = serving_steps(frame, self.first_step, self.first_step + self.campaign_steps - 1)
        table = serving_table(frame, self.numbers, self.categories, findings)
        return self.encode_table(table, steps), findings.sorted()

    def encode_row(self, row: Mapping[str, object]) -> NDArray[np.float32]:
        """The state [width] of one user to decide for: `step` and the features by name, as plain values.

        The same as `encode_frame` gives for a table of this row, but fast, and without a word on what is odd.
        """
        return self._row_encoder.encode(row)

    @cached_property
    def _row_encoder(self) -> RowEncoder:
        last = self.first_step + self.campaign_steps - 1
        return RowEncoder(self.numbers, self.categories, self.layout, self.first_step, last)

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
