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

from redenvelope.arrays import FloatArray
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.dataset import Examples, Rows
from redenvelope.models.environment import bucket, filled
from redenvelope.models.networks import OutcomeNetwork, TransitionNetwork, event_count
from redenvelope.models.neural_model import Architecture
from redenvelope.models.responses import STRUCTURES
from redenvelope.models.targets import STRUCTURE
from redenvelope.models.training import NeuralSettings, Task, new_task

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


# Do outcomes go with what was done before, once the state is known? A score test, which needs no network.
#
# Within every step and action, outcomes and histories are both freed of what the state's columns and their products
# tell. If the state tells all, what is left of the two has nothing in common, whatever the networks manage to learn;
# if a habit grows that no column shows, they go together. A trial of networks sees the same only where the past helps
# by more than learning it costs, and misses habits that are plain here: in a campaign of 8,000 users where every
# envelope adds 12 to 20 % to the chance that the next is redeemed, the score is 29 standard errors or more where a
# trial saw 0.7.


_MOST_ROWS = 50_000  # asked: a past that matters is plain on fewer
_MOST_CODES = 30  # of a static category; rarer ones are taken together
_ROWS_A_COLUMN = 5  # that a step and action must have to be asked
_MOST_PRODUCTS = 150  # of two columns: what groups or bends do must not look like a trace of the past
_PLAIN_ERRORS, _PLAIN_SHARE = 10.0, 0.004
_RIDGE = 1e-3  # of the columns' own spread: keeps columns that say the same apart from nothing


@dataclass(frozen=True)
class PastScore:
    """How an outcome goes with the past beyond the state."""

    errors: float
    """The common score of all columns in standard errors: (χ² − columns) / √(2 · columns)."""
    share: float
    """Of what the state leaves of the outcome, so much goes with the past, about."""

    @property
    def is_plain(self) -> bool:
        """Whether the past matters beyond doubt, and beyond what the products leave of a state that bends.

        The two limits were chosen on eight campaigns or fewer of each of nine families. On others (benchmarks/past.py)
        hidden habits and late costs are plain in 60 of 60. Where the state tells all, none of 180 campaigns of six
        families is, and 1 of 12 with envelopes, whose state bends more than products tell: its plan is then told a past
        that it does not need.
        """
        return self.errors > _PLAIN_ERRORS and self.share > _PLAIN_SHARE


def past_scores(examples: Examples) -> tuple[PastScore, ...]:
    """One for each outcome, [outcomes]; the states of the examples tell the history. Users are the units of chance."""
    # Whole users, from the first: a log is sorted by users, who have nothing to do with each other.
    users = int(np.searchsorted(examples.starts, min(len(examples), _MOST_ROWS), side="right")) - 1
    starts = examples.starts[: users + 1]
    rows = slice(0, int(starts[-1]))
    states = np.asarray(examples.states[rows], dtype=np.float64)
    columns, past = _columns(states, examples.layout), states[:, examples.layout.history]
    left = np.concatenate([examples.outcomes[:, rows].T, past], axis=1)
    step = np.rint(states[:, examples.layout.step] / examples.layout.step_change).astype(np.int64)
    cell = step * examples.actions + examples.action[rows]
    for own in np.unique(cell):
        _free_of(columns, left, np.flatnonzero(cell == own))
    outcomes = len(examples.outcomes)
    return tuple(_score(left[:, outcome], left[:, outcomes:], starts) for outcome in range(outcomes))


def _columns(states: FloatArray, layout: StateLayout) -> FloatArray:
    """What the state tells but for the history, categories as one column a label, and products, [rows, columns]."""
    categories = len(layout.static_categories)
    parts = [states[:, categories : layout.history.start]]
    for place in range(categories):
        codes, counts = np.unique(states[:, place], return_counts=True)
        kept = codes[np.argsort(-counts, kind="stable")][:_MOST_CODES]
        parts.append((states[:, place, None] == kept).astype(np.float64))
    plain = np.concatenate(parts, axis=1)
    # Changing columns first: their products with each other and with what never changes.
    order = np.argsort(np.arange(plain.shape[1]) < layout.static_numbers, kind="stable")
    first, second = np.triu_indices(plain.shape[1])
    pairs = np.stack([order[first], order[second]])[:, :_MOST_PRODUCTS]
    return np.concatenate([np.ones((len(plain), 1)), plain, plain[:, pairs[0]] * plain[:, pairs[1]]], axis=1)


def _free_of(columns: FloatArray, left: FloatArray, rows: NDArray[np.intp]) -> None:
    """Take out of `left` [all rows, anything] what the columns tell of it linearly at some rows, in place."""
    own = columns[rows]
    if len(rows) < _ROWS_A_COLUMN * own.shape[1]:
        left[rows] = 0.0
        return
    squares = own.T @ own
    squares[np.diag_indices_from(squares)] += _RIDGE * (1 + squares.diagonal() / len(rows))
    left[rows] -= own @ np.linalg.solve(squares, own.T @ left[rows])


def _score(outcome: FloatArray, past: FloatArray, starts: NDArray[np.int64]) -> PastScore:
    """Of what is left of an outcome [rows] and of the past [rows, columns]."""
    spread = float((outcome**2).sum())
    told = (past**2).sum(axis=0)
    kept = told > 1e-6 * max(float(told.max(initial=0.0)), 1e-12)
    if not spread or not kept.any():
        return PastScore(0.0, 0.0)
    past = past[:, kept] / np.sqrt(told[kept])
    scores = np.add.reduceat(past * outcome[:, None], starts[:-1], axis=0)
    # Directions that several columns share count once.
    sizes, directions = np.linalg.eigh(scores.T @ scores)
    sure = sizes > 1e-8 * sizes[-1]
    if not sure.any():  # where the past tells something, nothing is left to be told
        return PastScore(0.0, 0.0)
    along = directions[:, sure].T @ scores.sum(axis=0)
    square, count = float((along**2 / sizes[sure]).sum()), int(sure.sum())
    weights, axes = np.linalg.eigh(past.T @ past)
    firm = weights > 1e-8 * weights[-1]
    explained = float(((axes[:, firm].T @ (past.T @ outcome)) ** 2 / weights[firm]).sum())
    return PastScore(float((square - count) / np.sqrt(2 * count)), explained / spread)
