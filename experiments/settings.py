"""How large the experiments are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from redenvelope.errors import UsageError
from redenvelope.models.training import NeuralSettings, TrainingSettings

__all__ = ["ReproduceSettings", "quick_settings"]


@dataclass(frozen=True)
class ReproduceSettings:
    """Sizes of all experiments; the defaults take a few minutes on two cores."""

    seeds: int = 5
    """Logs drawn for each experiment that has intervals."""
    seed: int = 0
    """Of the first log; the others follow."""
    two_step_users: int = 20_000
    envelope_users: int = 10_000
    population: int = 200
    """Users of the envelopes campaign on whom the truth is taken."""
    budgets: int = 9
    duals: int = 51
    """Prices of the curves against λ."""
    horizon: int = 3
    """Steps planned ahead on the envelopes campaign, as `fit` does there."""
    neural: NeuralSettings = field(default_factory=NeuralSettings)

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise UsageError(f"an interval needs at least 2 seeds, not {self.seeds}")

    @property
    def log_seeds(self) -> tuple[int, ...]:
        """The seed of each log."""
        return tuple(range(self.seed, self.seed + self.seeds))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def quick_settings(seeds: int = 2, seed: int = 0) -> ReproduceSettings:
    """Small enough to try the command: the shapes are there, the figures are rough."""
    plain = NeuralSettings()
    return replace(
        ReproduceSettings(seeds=seeds, seed=seed),
        two_step_users=3_000,
        envelope_users=1_500,
        population=40,
        budgets=5,
        duals=15,
        horizon=2,
        # One structure given: trying all of them is most of the time.
        neural=replace(
            plain,
            members=1,
            reward_structure="independent",
            cost_structure="independent",
            training=replace(TrainingSettings(), steps=400, epochs_most=20),
        ),
    )
