"""The columns that conditions look at, read back from encoded states: of nodes of trees, whose states are predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.campaign.conditions import Texts
from redenvelope.campaign.rows import STEP
from redenvelope.log.encode_table import state_places
from redenvelope.log.encoding import Encoder

__all__ = ["StateDecoder", "StateRows"]

_FIRST_LABEL = 2  # codes 0 and 1 are of other labels and of missing ones


class StateDecoder:
    """Where each feature stands in a state. Numbers are unscaled, flags rounded, categories those of most weight."""

    def __init__(self, encoder: Encoder) -> None:
        self.layout, self.first_step = encoder.layout, encoder.first_step
        places = state_places(encoder.numbers, encoder.categories, encoder.layout)
        self.numbers = {
            number.name: (number, int(column)) for number, column in zip(encoder.numbers, places.numbers, strict=True)
        }
        watched = (encoder.numbers[int(place)].name for place in places.watched)
        self.indicators = dict(zip(watched, (int(column) for column in places.indicators), strict=True))
        self.categories = {
            category.name: (category, column)
            for category, column in zip(encoder.categories, places.categories, strict=True)
        }

    def is_static(self, name: str) -> bool:
        """Whether a column never changes within a user."""
        found = self.numbers.get(name) or self.categories.get(name)
        return found is not None and found[0].static


@dataclass(frozen=True, eq=False)
class StateRows:
    """States [rows, width] as columns."""

    decoder: StateDecoder
    states: NDArray[np.float32]

    def numbers(self, name: str) -> NDArray[np.float32]:
        """See RowColumns."""
        decoder = self.decoder
        if name == STEP:
            steps = self.states[:, decoder.layout.step] / decoder.layout.step_change
            return np.asarray(np.round(steps) + decoder.first_step, dtype=np.float32)
        if name not in decoder.numbers:
            return np.full(len(self.states), np.nan, np.float32)
        number, place = decoder.numbers[name]
        values = self.states[:, place] * np.float32(number.scale) + np.float32(number.mean)
        if number.binary:
            values = np.round(values)
        if name in decoder.indicators:
            values = np.where(self.states[:, decoder.indicators[name]] > 0.5, np.float32(np.nan), values)
        return np.asarray(values, dtype=np.float32)

    def texts(self, name: str) -> Texts:
        """See RowColumns."""
        if name not in self.decoder.categories:
            return Texts(np.full(len(self.states), -1), ())
        category, place = self.decoder.categories[name]
        if category.static:
            codes = np.round(self.states[:, place]).astype(np.int64)
        else:
            codes = self.states[:, place : place + category.size].argmax(axis=1)
        # −2 is a label that is not among them, −1 a missing one, as conditions want it.
        return Texts(codes - _FIRST_LABEL, category.labels)

    def missing(self, name: str) -> NDArray[np.bool_]:
        """See RowColumns."""
        if name in self.decoder.categories:
            return np.asarray(self.texts(name).codes == -1)
        return np.isnan(self.numbers(name))
