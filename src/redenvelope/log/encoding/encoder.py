"""Encoding features and steps as states: fitted on training users only, and defined for unseen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.log.cleaning.dates import dates_of, with_relative, with_relative_row
from redenvelope.log.encoding.history import HistoryEncoding, history_of_frame, history_of_row
from redenvelope.log.encoding.layout import CategoryEncoding, NumberEncoding, StateLayout, fit_category, fit_number
from redenvelope.log.encoding.row import RowEncoder
from redenvelope.log.encoding.table import serving_steps, serving_table, write_states
from redenvelope.log.findings import Finding, Findings
from redenvelope.log.log import FeatureTable, Log
from redenvelope.log.schema.statistics import number_sums


@dataclass(frozen=True)
class Encoder:
    """Turns features and steps into states [rows, layout.width] of float32."""

    numbers: tuple[NumberEncoding, ...]
    categories: tuple[CategoryEncoding, ...]
    first_step: int
    campaign_steps: int
    history: HistoryEncoding | None = None
    """The encoding of a user's history; None if states do not contain it."""

    @classmethod
    def fit(cls, log: Log) -> Encoder:
        """Learn means, scales and labels from the (training) users of a log."""
        features = log.features
        within = np.ones(len(log), dtype=bool)
        within[log.starts[:-1]] = False
        person: NDArray[np.int64] = np.repeat(np.cumsum(log.begins, dtype=np.int64), log.lengths)
        return cls(
            numbers=tuple(
                fit_number(name, number_sums(features.numeric[:, place], within), name in features.static)
                for place, name in enumerate(features.numeric_names)
            ),
            categories=tuple(
                fit_category(
                    name, labels, _label_users(features.codes[:, place], len(labels), person), name in features.static
                )
                for place, (name, labels) in enumerate(zip(features.category_names, features.labels, strict=True))
            ),
            first_step=log.first_step,
            campaign_steps=log.campaign_steps,
        )

    def with_history(self, log: Log) -> Encoder:
        """The same encoder with the history in its states, scaled by the (training) users of a log."""
        return replace(self, history=HistoryEncoding.fit(log))

    @cached_property
    def layout(self) -> StateLayout:
        """The layout of the states."""
        indicators = [number for number in self.numbers if number.missing_seen]
        return StateLayout(
            static_categories=tuple(category.size for category in self.categories if category.static),
            static_numbers=sum(number.static for number in self.numbers) + sum(number.static for number in indicators),
            dynamic_numbers=sum(not number.static and not number.binary for number in self.numbers),
            dynamic_binaries=sum(not number.static and number.binary for number in self.numbers)
            + sum(not number.static for number in indicators),
            dynamic_categories=tuple(category.size for category in self.categories if not category.static),
            step_change=1.0 / max(self.campaign_steps - 1, 1),
            history_actions=0 if self.history is None else len(self.history.labels),
            history_outcomes=0 if self.history is None else len(self.history.outcomes),
        )

    def encode(self, log: Log) -> NDArray[np.float32]:
        """The states of a log's rows, [rows, width]; the history comes from the log itself."""
        history = None if self.history is None else self.history.columns(log)
        return self.encode_table(log.features, log.step, history)

    def encode_table(
        self, features: FeatureTable, step: NDArray[np.int32], history: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """The states of a feature table, [rows, width]; a feature that it lacks is missing in every row.

        `history` [rows, columns] has the history columns, if states contain them; None is an empty history.
        """
        steps = (step - self.first_step).astype(np.float64) * self.layout.step_change
        states = write_states(features, steps, self.numbers, self.categories, self.layout)
        if history is not None:
            states[:, self.layout.history] = history
        return states

    def encode_frame(
        self, frame: pl.DataFrame, past: pl.DataFrame | None = None
    ) -> tuple[NDArray[np.float32], tuple[Finding, ...]]:
        """The states of a table of users to decide for (`step` and the features), and findings about unusual values.

        A missing column is missing in every row, an unseen label is "other", and a value that is not a number is
        missing; each is reported. `past` is needed if states contain the history and users are past the first step:
        `user`, `step`, `action`, `reward` and `cost` of their earlier steps.
        """
        findings = Findings()
        steps = serving_steps(frame, self.first_step, self.first_step + self.campaign_steps - 1)
        frame = with_relative(frame, self.of_dates)
        table = serving_table(frame, self.numbers, self.categories, findings)
        history = None
        if self.history is not None:
            history = history_of_frame(self.history, frame, steps, past, self.first_step)
        return self.encode_table(table, steps, history), findings.sorted()

    def encode_row(
        self,
        row: Mapping[str, object],
        past: Sequence[Mapping[str, object]] | None = None,
        unfamiliar: list[str] | None = None,
    ) -> NDArray[np.float32]:
        """The state [width] of one user to decide for; see `encode_rows`."""
        state: NDArray[np.float32] = self.encode_rows([row], [past], unfamiliar)[0]
        return state

    def encode_rows(
        self,
        rows: Sequence[Mapping[str, object]],
        pasts: Sequence[Sequence[Mapping[str, object]] | None],
        unfamiliar: list[str] | None = None,
    ) -> NDArray[np.float32]:
        """The states [rows, width] of a few users to decide for, given `step` and the features as plain values by name.

        The same states as from `encode_frame`, but fast. The names of features with values that training did not see
        are added to `unfamiliar`.
        """
        if self.of_dates:
            rows = [with_relative_row(row, self.of_dates) for row in rows]
        states = self._row_encoder.encode(rows, unfamiliar)
        if self.history is not None:
            for state, past in zip(states, pasts, strict=True):
                step = round(float(state[self.layout.step]) / self.layout.step_change) + self.first_step
                state[self.layout.history] = history_of_row(self.history, step, past, self.first_step)
        return states

    def missing_in(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """The features that a row does not have."""
        given = with_relative_row(row, self.of_dates) if self.of_dates else row
        return tuple(name for name in self._names if name not in given)

    @property
    def _names(self) -> list[str]:
        return [*(number.name for number in self.numbers), *(category.name for category in self.categories)]

    @cached_property
    def of_dates(self) -> tuple[str, ...]:
        """Features that can be derived from dates if a row has these."""
        return tuple(name for name in self._names if dates_of(name))

    @cached_property
    def _row_encoder(self) -> RowEncoder:
        last = self.first_step + self.campaign_steps - 1
        return RowEncoder(self.numbers, self.categories, self.layout, self.first_step, last)


def _label_users(codes: NDArray[np.int32], labels: int, person: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many users ever had each label, [labels], given the code and the user of each row, [rows]."""
    pairs = person * (labels + 1) + codes + 1
    first = np.ones(len(pairs), dtype=bool)
    first[1:] = pairs[1:] != pairs[:-1]  # a cheap first pass: most labels stay the same within a user
    return np.bincount(np.unique(pairs[first]) % (labels + 1), minlength=labels + 1)[1:]
