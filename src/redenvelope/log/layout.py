"""Where each part of a state stands in its row of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

__all__ = ["StateLayout"]


@dataclass(frozen=True)
class StateLayout:
    """The columns of an encoded state [width], in this order:

    static category codes | static numbers | step | dynamic numbers | dynamic binaries | dynamic categories | history

    The static head never changes within a user. Everything from `step` on is the dynamic tail. What of it a model
    predicts stands between the step and the history, which follows from what is done (see history.py). Static
    categories are codes (for embeddings, so that ten thousand cities cost one column); dynamic categories are
    one-hot, so that a predicted next state can hold probabilities.
    """

    static_categories: tuple[int, ...]
    """Number of codes of each static category."""
    static_numbers: int
    dynamic_numbers: int
    dynamic_binaries: int
    dynamic_categories: tuple[int, ...]
    """Number of codes of each dynamic category."""
    step_change: float
    """What one step adds to the step's column."""
    history_actions: int = 0
    """Actions that the history tells of; 0 where a state has none."""
    history_outcomes: int = 0
    """Outcomes that it tells of."""

    def __post_init__(self) -> None:
        counts = (self.static_numbers, self.dynamic_numbers, self.dynamic_binaries)
        known = (self.history_actions, self.history_outcomes)
        if min((*counts, *known, *self.static_categories, *self.dynamic_categories)) < 0:
            raise ValueError("a layout counts its columns and codes, which are never fewer than 0")
        if not 0 < self.step_change <= 1:
            raise ValueError(f"a step adds more than 0 and at most 1 to its column, not {self.step_change}")

    @staticmethod
    def history_columns(actions: int, outcomes: int) -> int:
        """Columns of a history: last action, last outcomes, counts, sums, and steps since the last incentive."""
        return 2 * actions + 2 * outcomes + 1 if actions else 0

    @property
    def static_width(self) -> int:
        """Number of columns that never change."""
        return len(self.static_categories) + self.static_numbers

    @property
    def step(self) -> int:
        """The step's column."""
        return self.static_width

    @property
    def numbers(self) -> slice:
        """Dynamic numbers, standardised."""
        return slice(self.step + 1, self.step + 1 + self.dynamic_numbers)

    @property
    def binaries(self) -> slice:
        """Dynamic binaries, each a probability."""
        return slice(self.numbers.stop, self.numbers.stop + self.dynamic_binaries)

    @property
    def categories(self) -> tuple[slice, ...]:
        """One-hot block of each dynamic category."""
        edges = list(accumulate(self.dynamic_categories, initial=self.binaries.stop))
        return tuple(slice(first, last) for first, last in pairwise(edges))

    @property
    def predicted_width(self) -> int:
        """Number of columns that a model predicts."""
        return self.dynamic_numbers + self.dynamic_binaries + sum(self.dynamic_categories)

    @property
    def predicted(self) -> slice:
        """What a model predicts of the next state."""
        return slice(self.step + 1, self.step + 1 + self.predicted_width)

    @property
    def history(self) -> slice:
        """What happened to the user before."""
        return slice(self.predicted.stop, self.width)

    @property
    def width(self) -> int:
        """Number of columns of a state."""
        known = self.history_columns(self.history_actions, self.history_outcomes)
        return self.step + 1 + self.predicted_width + known
