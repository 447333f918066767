"""Does it help to know what happened before? Two networks, one of which is blind to it, and held-out users decide.

Both are members of one training: the same program, the same start and the same order of rows, so that they differ by
nothing but the sight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.models.buckets import bucket, filled
from redenvelope.models.events import event_count
from redenvelope.models.examples import Examples, Rows
from redenvelope.models.neural import Architecture
from redenvelope.models.outcome import OutcomeNetwork
from redenvelope.models.past_score import PastScore, past_scores
from redenvelope.models.response import STRUCTURES
from redenvelope.models.settings import NeuralSettings
from redenvelope.models.survival import STRUCTURE
from redenvelope.models.task import Task, new_task
from redenvelope.models.transition import TransitionNetwork

__all__ = ["HistoryChoice", "try_history"]

# The most flexible of the structures that share: what a structure forbids must not look like a trace of the past.
_TRIED = STRUCTURES[2]
_ERRORS = 3.0
"""Standard errors by which the loss must fall: with two losses compared, chance goes so far once in some hundred."""
_MATERIAL = 0.001
"""Share of what there was to learn, the loss before training, by which a loss must change to matter: where the next
state is certain, the last digits of two networks differ by hundreds of standard errors."""
_HARM = 1.0
"""Standard errors by which that of the other network may rise: a transition that is told better with further columns,
where the outcomes are told worse, is a network that approximates, not a past that matters."""


@dataclass(frozen=True)
class HistoryChoice:
    """Whether the past is told, and why."""

    told: bool
    gains: dict[str, float]
    """By how many standard errors the held-out loss of each network falls with it."""
    scores: tuple[PastScore, ...] = ()
    """How the reward and each cost go with the past beyond the state."""

    @property
    def reason(self) -> str:
        """In words."""
        falls = ", ".join(f"{gain:.1f} standard errors for the {name}" for name, gain in self.gains.items())
        plain = max((score for score in self.scores if score.is_plain), key=lambda score: score.errors, default=None)
        if plain is not None:
            return (
                f"what happened before matters beyond the state: outcomes go with it by {plain.errors:.0f} standard "
                f"errors, {plain.share:.1%} of what the state leaves open (networks told of it lose less by {falls})"
            )
        verdict = "helps" if self.told else "does not help"
        return (
            f"what happened before {verdict} on held-out users: told of it, networks lose less by {falls} "
            f"({_ERRORS:g} are asked for)"
        )


class Sighted(eqx.Module):
    """Outcome and transition networks that see the history, or do not."""

    outcome: OutcomeNetwork
    transition: TransitionNetwork
    sight: jax.Array
    """1 sees the history, 0 does not, []; not learned."""

    def losses(self, rows: Rows, constants: Any) -> dict[str, jax.Array]:
        """Loss of every row, [rows], of each network."""
        targets, scale = constants
        layout = self.transition.layout
        seen = jnp.ones(layout.width).at[layout.history].set(jax.lax.stop_gradient(self.sight))
        own = rows._replace(states=jnp.asarray(rows.states) * seen)
        found = {"outcome": self.outcome.losses(own, targets).sum(axis=0)}
        if layout.predicted_width:
            found["transition"] = self.transition.loss(own, scale)
        return found


def try_history(examples: Examples, settings: NeuralSettings, seed: int) -> HistoryChoice:
    """Ask held-out users of examples whose states tell the history whether it helps, and all of them whether outcomes
    go with it plainly: what networks fail to make use of must be known to what checks them all the same."""
    task = new_task(examples, settings, seed).of_trial()
    architecture = Architecture(
        layout=examples.layout,
        actions=examples.actions,
        events=event_count(task.targets),
        members=1,
        outcome_hidden=settings.outcome_hidden,
        transition_hidden=settings.transition_hidden,
        reward_structure=_TRIED,
        cost_structures=(_TRIED,) * examples.budgets,
        survival_structure=STRUCTURE if examples.leaves else None,
    )
    one = architecture.networks(seed, task.starts)
    both = {name: jax.tree.map(lambda array: np.repeat(np.asarray(array), 2, axis=0), one[name]) for name in one}
    networks = Sighted(both["outcome"], both["transition"], jnp.asarray(np.array([0.0, 1.0], np.float32)))
    trained = task.train({"sighted": networks}, sighted_loss, [(seed, 0)] * 2).networks["sighted"]
    gains = _gains(task, networks, trained)
    scores = past_scores(examples)
    helps = _helps(gains["outcome"], gains.get("transition", 0.0))
    return HistoryChoice(helps or any(score.is_plain for score in scores), gains, scores)


def _helps(outcome: float, transition: float) -> bool:
    """Whether gains, in standard errors, speak for the past: outcomes first, because plans are made for them."""
    return (outcome > _ERRORS and transition > -outcome) or (transition > _ERRORS and outcome > -_HARM)


def sighted_loss(networks: Any, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """Mean loss of one member, as training takes it."""
    losses = networks["sighted"].losses(rows, constants)
    return {"sighted": sum(own.mean() for own in losses.values())}


@jax.jit
def _row_losses(networks: Sighted, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """[members, rows] of each network."""
    losses: dict[str, jax.Array] = jax.vmap(lambda member: member.losses(rows, constants))(networks)
    return losses


def _gains(task: Task, untrained: Sighted, trained: Sighted) -> dict[str, float]:
    """By how many standard errors sight lowers the held-out loss of each network; users are the units of chance. A fall
    that does not matter counts as none."""
    count, constants = len(task.held_out.action), (task.targets, task.scale)
    held = filled(task.held_out, bucket(count))
    before, after = (_row_losses(networks, constants, held) for networks in (untrained, trained))
    users = np.searchsorted(task.examples.starts, task.held_rows, side="right")
    gains = {}
    for name, rows in after.items():
        losses, start = np.asarray(rows, np.float64)[:, :count], float(np.asarray(before[name])[0, :count].mean())
        fall = float((losses[0] - losses[1]).mean())
        gains[name] = 0.0 if abs(fall) <= _MATERIAL * abs(start) else _errors(losses, users)
    return gains


def _errors(losses: NDArray[np.float64], users: NDArray[np.intp]) -> float:
    """The fall of losses [blind and sighted, rows] in standard errors, by user [rows]."""
    fall = np.bincount(users, losses[0] - losses[1])[np.bincount(users) > 0]
    error = fall.std() * np.sqrt(len(fall))
    return float(fall.sum() / error) if error > 0 else 0.0
