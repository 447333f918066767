"""What to train, with defaults that suit logs of a thousand users and of a million."""

from __future__ import annotations

from dataclasses import dataclass, field

from redenvelope.models.training import TrainingSettings

__all__ = ["NeuralSettings"]


@dataclass(frozen=True)
class NeuralSettings:
    """The networks of a neural model, and how they are learned."""

    outcome_hidden: tuple[int, ...] = (64, 64)
    transition_hidden: tuple[int, ...] = (64,)
    members: int | None = None
    """Networks whose mean is the model; None takes `ensemble`, and one where there are users enough."""
    ensemble: int = 4
    """Members where users are few: what their mean averages out is the noise of small logs."""
    enough_users: int = 100_000
    """From so many users on one member earns as much as four, and decides four times as fast."""
    reward_structure: str | None = None
    """How the actions share strength for the reward; None chooses on held-out users."""
    cost_structure: str | None = None
    """The same for every cost."""
    held_out_share: float = 0.1
    """Share of the users that decide when to stop and which structure to use."""
    held_out_rows: int = 30_000
    """Rows of these users, at most: the noise of a mean over so many is small."""
    trial_rows: int = 50_000
    """Rows that the structures are tried on, at most: with more they differ too little to be worth the wait."""
    trial_share: float = 0.25
    """Share of the training steps that a trial takes: it has to rank the structures, not to be used."""
    disagreement_rows: int = 8_192
    """Held-out rows on which the members are compared, at most."""
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def members_for(self, users: int) -> int:
        """Members of a model learned from so many users."""
        return self.members or (self.ensemble if users < self.enough_users else 1)
