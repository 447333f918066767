"""What a user may ask of a fit, with defaults that suit most logs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from redenvelope.errors import UsageError
from redenvelope.evaluation.estimators import Estimator
from redenvelope.learning.folds import LearningSettings
from redenvelope.log.limits import TINY_PROPENSITY
from redenvelope.log.log import SHARES
from redenvelope.models.training import NeuralSettings
from redenvelope.planning.temperature import is_temperature
from redenvelope.serialization import to_plain

EXPLORE = 0.02
"""Share of decisions left to chance unless said otherwise (see docs/guides/rules-and-budgets.md)."""

_LEAST_CHANCE = 1.02 * TINY_PROPENSITY
"""That every action must have for the audit to accept the next log without a word; a little more, for rounding."""


def usual_share(actions: int) -> float:
    """The share to explore with so many actions: more only where else some would be drawn too rarely."""
    return min(max(EXPLORE, _LEAST_CHANCE * actions), 1.0)


Method = Literal["auto", "planned", "learned", "bandit"]
History = Literal["auto", "none"]


@dataclass(frozen=True)
class SearchSettings:
    """How prices are chosen to be checked. The numbers trade time for precision."""

    rungs: int = 24
    """Prices of the ladder, about: the plans between two rungs are mixtures of theirs."""
    compared_rungs: int = 8
    """Prices of the ladder of a policy that is only compared with."""
    scouts: int = 500
    """Users whose first steps tell where the prices of interest lie, and how warm to plan."""
    scout_prices: int = 8
    scout_passes: int = 8
    """Passes in which plans for several budgets are looked for."""
    frontier_points: int = 10
    """Of the frontier along each of several budgets, about."""
    agreement_users: int = 15_000
    """Check users on whom estimates are compared that know more of the past, at most."""
    walkers: int = 1_000
    """Users whose walk through the model tells what comes after trees that end before the campaign."""
    largest_tree: int = 128
    """Nodes at the deepest level of a user's tree: a horizon with more is worth little and slows every decision."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            if not getattr(self, entry.name) >= 0:
                raise UsageError(f"search: {entry.name} must not be negative, and is {getattr(self, entry.name)}")


@dataclass(frozen=True)
class FitSettings:
    """How to make a plan."""

    method: Method = "auto"
    """Plan ahead with the model, learn without one, or one step at a time; auto plans if the model can be trusted
    with sequences, and learns if not."""
    horizon: int | None = None
    """Steps to plan ahead; None takes as many as a tree of moderate size allows."""
    temperature: float | None = None
    """Weight of entropy; None takes what costs little reward and keeps the plan checkable."""
    confidence: float = 0.95
    """Of the certificate's bounds."""
    seed: int = 0
    parts: tuple[float, float, float] = SHARES
    """Shares of users who train the models, who are kept from that to choose method, temperature and prices on, and who
    check the plan."""
    history: History = "auto"
    """Whether states may tell what happened to a user before; auto asks held-out users whether it helps."""
    explore: float | None = None
    """Share of the decisions that is drawn evenly among what is eligible, planned, priced and certified with; None is
    the campaign's, or else that of `usual_share`."""
    known_before: tuple[str, ...] = ()
    """Features that were known when the action was chosen, although they tell so much that the audit asks."""
    shown_users: int = 5_000
    """Users on whom it is shown who gets what: shares are then known to a percent or so, which a picture needs."""
    estimator: Estimator | None = None
    """What estimates costs and rewards off-policy; None is doubly robust with marginalised ratios."""
    search: SearchSettings = field(default_factory=SearchSettings)
    neural: NeuralSettings = field(default_factory=NeuralSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise UsageError(f"method must be auto, planned, learned or bandit, not {self.method!r}")
        if self.history not in get_args(History):
            raise UsageError(f"history must be auto or none, not {self.history!r}")
        if self.horizon is not None and self.horizon < 1:
            raise UsageError(f"the horizon must be at least 1 step, not {self.horizon}")
        if self.temperature is not None and not is_temperature(self.temperature):
            raise UsageError(f"the temperature must be zero or a number from 1e-30 to 1e30, not {self.temperature}")
        if self.explore is not None and not 0 <= self.explore <= 1:
            raise UsageError(f"explore is a share of the decisions from 0 to 1, such as 0.02, not {self.explore}")
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"the seed is a whole number from 0 to {2**32 - 1:,}, not {self.seed}")
        if not 0.5 < self.confidence < 1:
            raise UsageError(f"the confidence is a share between 0.5 and 1, such as 0.95, not {self.confidence}")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; an estimator by its name."""
        named = {"estimator": None if self.estimator is None else self.estimator.name}
        plain = {entry.name: to_plain(getattr(self, entry.name)) for entry in fields(self) if entry.name not in named}
        return plain | named
