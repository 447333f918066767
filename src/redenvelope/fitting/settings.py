"""What a user may ask of a fit, with defaults that suit most logs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from redenvelope.dual.solvers import SOLVERS
from redenvelope.errors import UsageError
from redenvelope.learning.settings import LearningSettings
from redenvelope.models.fit import NeuralSettings

__all__ = ["FitSettings", "Method"]

Method = Literal["auto", "planned", "learned", "bandit"]


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
    solver: str = "newton"
    safety: bool = True
    """Aim below the budget, by as much as the uncertainty on the search fold asks for."""
    confidence: float = 0.95
    """Of the certificate's bounds."""
    seed: int = 0
    parts: tuple[float, float, float] = (0.7, 0.15, 0.15)
    """Shares of users who train the models, find the price, and certify."""
    neural: NeuralSettings = field(default_factory=NeuralSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise UsageError(f"method must be auto, planned, learned or bandit, not {self.method!r}")
        if self.solver not in SOLVERS:
            raise UsageError(f"there is no solver {self.solver!r}; choose among {', '.join(SOLVERS)}")
        if self.horizon is not None and self.horizon < 1:
            raise UsageError(f"the horizon must be at least 1 step, not {self.horizon}")
        if self.temperature is not None and not 0 <= self.temperature < float("inf"):
            raise UsageError(f"the temperature must be zero or a positive number, not {self.temperature}")
        if not 0.5 < self.confidence < 1:
            raise UsageError(f"the confidence is a share between 0.5 and 1, such as 0.95, not {self.confidence}")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)
