"""What to learn with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from redenvelope.errors import UsageError
from redenvelope.models.training import TrainingSettings

__all__ = ["LearningSettings", "StageProgress"]

StageProgress = Callable[[int, int], None]
"""Told (fits done, fits in all): the immediate outcomes are the first fit, then one a step but the last."""


def _future_training() -> TrainingSettings:
    return TrainingSettings(
        learning_rate=3e-3, weight_decay=1e-2, batch_rows=512, steps=400, epochs_least=3, epochs_most=20, patience=3
    )


def _immediate_training() -> TrainingSettings:
    return TrainingSettings(batch_rows=1_024, steps=1_000, epochs_least=4, epochs_most=20, patience=4)


@dataclass(frozen=True)
class LearningSettings:
    """How values are learned; the defaults suit a campaign of ten steps and 20,000 to 100,000 users."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of every network."""
    advantage_rank: int | None = 3
    """Curves over the actions that the dueling advantages are made of; None gives every action its own."""
    most_curves: int = 6
    """Curves over the prices that a value network is made of, at most. Values at neighbouring prices rise and fall
    together: of 13 prices' rewards and costs to go, six curves hold 96 to 99 % of the variance in the envelopes
    campaign, where its noise leaves 10 to 20 % that no network can learn."""
    knots: int = 13
    """Prices at which values are learned when they are learned for all prices; between, they are interpolated."""
    structure: str | None = None
    """How the actions share strength in the immediate outcomes; None asks the log (see models.selection)."""
    folds: int = 2
    """Parts of the users, each with networks of its own: one chooses the next action, another says what it is
    worth, so that what flattered a choice does not flatter its value. 1 is the plain, flattered estimate."""
    held_out_share: float = 0.1
    """Share of the users on whom the Bellman error decides when to stop."""
    held_out_rows: int = 20_000
    """Rows of theirs at most: more would only cost time, the noise of a mean over so many is small."""
    least_chance: float = 0.005
    """The guard: an action that the logger is estimated to give in a state with less than this probability
    is neither planned with nor chosen there. 0 lets everything through."""
    lags: int = 3
    """Steps by which an effect may show later than the next state tells, at most: those that held-out users confirm
    become part of what is learned (see late_effects). 0 bootstraps through states alone."""
    discount: float = 1.0
    immediate: TrainingSettings = field(default_factory=_immediate_training)
    """Training of the immediate outcomes."""
    future: TrainingSettings = field(default_factory=_future_training)
    """Training of what follows, once for each step but the last."""

    def __post_init__(self) -> None:
        for name, least in (("folds", 1), ("knots", 2), ("most_curves", 1), ("held_out_rows", 1), ("lags", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 0 <= self.least_chance < 1:
            raise UsageError(f"least_chance must be a probability below 1, not {self.least_chance}")
        if not 0 < self.discount <= 1:
            raise UsageError(f"discount must be above 0 and at most 1, not {self.discount}")
