"""What networks are trained on: rows, held-out rows, what scores mean, and where they start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from redenvelope.models.examples import Examples, Rows
from redenvelope.models.settings import NeuralSettings
from redenvelope.models.survival import Survival, starting_odds
from redenvelope.models.targets import OutcomeTargets, outcome_targets, starting_scores
from redenvelope.models.training import ChunkSource, Fill, Loss, Progress, Training, train
from redenvelope.models.transition import TailScale, tail_scale

__all__ = ["Task", "new_task", "outcome_loss", "transition_loss"]


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned from, however many networks are trained on it."""

    examples: Examples
    rows: NDArray[np.int64]
    held_out: Rows
    held_rows: NDArray[np.int64]
    """Which rows these are, [held-out rows]."""
    targets: OutcomeTargets
    scale: TailScale
    starts: NDArray[np.float64]
    """Scores to start from, [responses, actions]: of the outcomes, and where users leave of who stays."""
    settings: NeuralSettings
    seed: int
    fill: Fill = field(default_factory=Fill)
    """Shared by all that are trained on the same rows."""

    def shorter(self) -> Task:
        """The task of a trial of the outcomes alone."""
        targets = OutcomeTargets(self.targets.reward, self.targets.costs)
        return replace(self.of_trial(), targets=targets, starts=self.starts[: len(targets.all)])

    def of_trial(self) -> Task:
        """The task of a trial: fewer rows and fewer steps."""
        training = self.settings.training
        steps = round(self.settings.trial_share * training.steps)
        settings = replace(self.settings, training=replace(training, steps=steps))
        return replace(self, rows=_thinned(self.rows, settings.trial_rows), settings=settings, fill=Fill())

    def train(
        self, networks: Any, loss: Loss, seeds: Sequence[tuple[int, ...]], progress: Progress | None = None
    ) -> Training:
        """Train networks, whose arrays have a leading axis [members], one seed a member."""
        constants = (self.targets, self.scale)
        settings = self.settings.training
        return train(
            networks, constants, loss, self._source, len(self.rows), self.held_out, settings, seeds, progress, self.fill
        )

    @cached_property
    def _source(self) -> ChunkSource:
        size = self.settings.training.chunk_rows
        if len(self.rows) <= size:
            everything = self.examples.gather(self.rows)
            return lambda epoch: [everything]

        # Chunks of about equal length: the last must not be so short that it fills no batch.
        even = -(-len(self.rows) // -(-len(self.rows) // size))

        def chunks(epoch: int) -> Iterator[Rows]:
            return self.examples.chunks(self.rows, even)

        return chunks


def new_task(examples: Examples, settings: NeuralSettings, seed: int) -> Task:
    """Split the users and look at what their rows call for."""
    rows, held_out = examples.split_users(settings.held_out_share, seed)
    held_rows = _thinned(held_out, settings.held_out_rows)
    outcomes, action = examples.outcomes[:, rows], examples.action[rows]
    targets = outcome_targets(outcomes, action, examples.actions)
    starts = [
        starting_scores(target, value, outcomes[0], action, examples.actions)
        for target, value in zip(targets.all, outcomes, strict=True)
    ]
    if examples.leaves:
        targets = OutcomeTargets(targets.reward, targets.costs, Survival())
        starts.append(starting_odds(examples.stays[rows], action, examples.actions))
    return Task(
        examples=examples,
        rows=rows,
        held_out=examples.gather(held_rows),
        held_rows=held_rows,
        targets=targets,
        scale=tail_scale(examples, rows),
        starts=np.stack(starts),
        settings=settings,
        seed=seed,
    )


def outcome_loss(networks: Any, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """Mean loss of one member's outcome network."""
    targets: OutcomeTargets = constants[0]
    return {"outcome": networks["outcome"].losses(rows, targets).mean(axis=1).sum()}


def transition_loss(networks: Any, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """Mean loss of one member's transition network."""
    scale: TailScale = constants[1]
    return {"transition": networks["transition"].loss(rows, scale).mean()}


def _thinned(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """About `most` of the rows, from all over the log: the first users may not be like the last."""
    return rows[:: max(1, round(len(rows) / most))]
