"""What ratios of states are regressed on: the state, and its products with what never changes about a user.

A plan that treats groups differently takes them to different states, so the ratio of a state depends on the group *and*
the state: no sum of their effects describes it. Alone, a static column says nothing (no plan changes who is in it), but
its products with dynamic columns, those of the history among them, do. The columns are nested sets, from the plain
state to all products; the regression chooses among them on held-out users.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.layout import StateLayout

__all__ = ["MOST_CODES", "MOST_COLUMNS", "RatioFeatures"]

States = NDArray[np.float32]

MOST_COLUMNS = 72
"""Columns of the largest set, as far as products go: 30,000 users, five steps and 64 prices then take seconds."""
MOST_CODES = 12
"""Codes of a static category that gets columns of its own; of larger ones, no code has enough users to tell."""


@dataclass(frozen=True)
class RatioFeatures:
    """Columns made of states [rows, width] of one layout."""

    layout: StateLayout

    @property
    def plain(self) -> slice:
        """Columns of a state that are numbers: static, the step, dynamic."""
        return slice(len(self.layout.static_categories), self.layout.width)

    @property
    def dynamic(self) -> slice:
        """Columns that change, without the step: at one position of users it is hardly a column."""
        return slice(self.layout.step + 1, self.layout.width)

    @cached_property
    def _codes(self) -> tuple[tuple[int, int], ...]:
        """Column and code of each indicator, small categories first, as far as they and their products fit in."""
        sizes = self.layout.static_categories
        order = sorted(range(len(sizes)), key=lambda column: sizes[column])
        wanted = [(column, code) for column in order if sizes[column] <= MOST_CODES for code in range(sizes[column])]
        return tuple(wanted[: self._room // (1 + self._changing)])

    @cached_property
    def _scaled(self) -> int:
        """How many static numbers get products, in what room indicators leave."""
        left = self._room - len(self._codes) * (1 + self._changing)
        return min(self.layout.static_numbers, left // max(self._changing, 1)) if self._changing else 0

    @property
    def _changing(self) -> int:
        return self.layout.width - self.layout.step - 1

    @property
    def _numbers(self) -> int:
        return self.layout.width - len(self.layout.static_categories)

    @property
    def _room(self) -> int:
        return max(MOST_COLUMNS - self._numbers, 0)

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """Widths of the nested sets: the state; with indicators and their products; with products of numbers."""
        parts = (
            self._numbers,
            len(self._codes) * (1 + self._changing),
            self._scaled * self._changing,
        )
        return tuple(dict.fromkeys(accumulate(parts)))

    def of(self, states: States) -> States:
        """The columns of the largest set, [rows, width] -> [rows, blocks[-1]]."""
        plain, changing = states[:, self.plain], states[:, self.dynamic]
        if len(self.blocks) == 1:
            return plain
        columns = np.array([column for column, _ in self._codes], dtype=np.intp)
        codes = np.array([code for _, code in self._codes], dtype=np.float32)
        is_code = (states[:, columns] == codes).astype(np.float32)
        numbers = states[:, len(self.layout.static_categories) :][:, : self._scaled]
        made = [plain, is_code, _products(is_code, changing), _products(numbers, changing)]
        return np.concatenate(made, axis=1)


def _products(static: States, changing: States) -> States:
    """All products of columns, [rows, first] and [rows, second] -> [rows, first · second]."""
    return np.asarray((static[:, :, None] * changing[:, None, :]).reshape(len(static), -1))
