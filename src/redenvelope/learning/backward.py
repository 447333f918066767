"""Fitted iterations from the last step to the first: each step's values are a plain regression on the next's.

A campaign ends, so that Q-learning needs no fixed point: the network of a step learns from the finished
network of the next, which therefore is its target network. Nothing chases its own estimates, errors are not
fed back, and one pass over the steps does what a network with the step as input needs as many sweeps for as
there are steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.learning.curves import aim_at
from redenvelope.learning.folds import FoldedRows, UserFolds, always, gather, pick
from redenvelope.learning.settings import LearningSettings, StageProgress
from redenvelope.models.examples import Examples
from redenvelope.models.stacked import stack
from redenvelope.models.training import Training, train
from redenvelope.models.value_network import ValueNetwork, networks_at, new_value_networks

__all__ = ["Futures", "Targets", "fit_backward", "future_loss"]

Targets = Callable[[ValueNetwork | None, NDArray[np.int64]], NDArray[np.float32]]
"""(networks of the next step, rows of a step) -> what their futures are learned from, [rows, heads, components].

The networks have a leading axis [folds]; they are None where the next step is the last.
"""

# Losses are relative to targets of variance one: a constant has 0.5, and nothing sane is so much worse.
_DIVERGED_LOSS = 20.0


@dataclass(frozen=True, eq=False)
class Futures:
    """The networks of all steps but the last, and how each was learned."""

    networks: ValueNetwork | None
    """Every array with leading axes [steps - 1, folds]; None in a campaign of one step."""
    bellman_error: NDArray[np.float64]
    """[steps - 1], see LearningReport."""
    epochs: tuple[int, ...]
    """[steps - 1]"""


def fit_backward(
    examples: Examples,
    folds: UserFolds,
    targets: Targets,
    heads: int,
    components: int,
    settings: LearningSettings,
    seed: int,
    warm: ValueNetwork | None = None,
    progress: StageProgress | None = None,
) -> Futures:
    """Learn what follows an action at every step but the last.

    `warm` [steps - 1, folds] are networks for the same heads to start from; without, a step starts from the
    step after it. A user's last row is followed by nothing; a row whose successor is missing from the log
    (a gap) teaches nothing.
    """
    stages = folds.steps - 1
    teaches = examples.continues | examples.is_last
    networks = new_value_networks(
        examples.layout, examples.actions, heads, components, settings.hidden, settings.advantage_rank,
        settings.most_curves, folds.count, seed,
    )  # fmt: skip
    found: list[ValueNetwork] = []
    errors, epochs = [], []
    for stage in reversed(range(stages)):
        rows = np.flatnonzero(teaches & (folds.step == stage))
        target = targets(found[-1] if found else None, rows)
        aim = aim_at(networks_at(warm, stage) or networks, target, folds.fold[rows] >= 0)
        training, held_out = folds.split(rows, f"step {stage + 1} of the campaign")
        result = train(
            {"future": aim.networks},
            None,
            future_loss,
            always(gather(examples, training, aim.target[np.searchsorted(rows, training)])),
            len(training),
            gather(examples, held_out, aim.target[np.searchsorted(rows, held_out)]),
            settings.future,
            [(seed, 1 + stage, fold) for fold in range(folds.count)],
        )
        _require_sane(result, stage)
        networks = jax.tree.map(np.asarray, result.networks["future"])
        found.append(networks)
        errors.append(float(np.sqrt(2 * np.mean(result.best["future"]) + aim.lost)))
        epochs.append(result.epochs)
        if progress is not None:
            progress(1 + len(found), 1 + stages)
    stacked = stack(found[::-1]) if found else None
    return Futures(stacked, np.array(errors[::-1]), tuple(epochs[::-1]))


def future_loss(networks: Any, constants: Any, rows: Any) -> dict[str, jax.Array]:
    """Mean Bellman loss of one fold's value network on FoldedRows, as training takes it."""
    return {"future": _squared_error(networks["future"], rows)}


def _squared_error(network: ValueNetwork, rows: FoldedRows) -> jax.Array:
    """Half the squared error of the logged action's curves, in units of the heads' own variance, []."""
    states, action, target = (pick(column, network.slot) for column in (rows.states, rows.action, rows.target))
    raw = network.network(states).reshape(len(states), network.level.shape[0], 1 + network.shapes.shape[0])
    taken = jax.nn.one_hot(action, network.level.shape[1])
    # Only the logged action's score is needed: the others are never computed.
    score = raw[..., 0] + taken @ network.level.T
    # Products that are summed fuse into one loop; a product of small matrices a row would not.
    score = score + (raw[..., 1:] * (taken @ network.advantages().T)[:, None]).sum(axis=-1)
    # The share of the heads' variance that a curve makes up.
    weight = jnp.square(jax.lax.stop_gradient(network.basis)).mean(axis=(1, 2))
    return 0.5 * (jnp.square(target - score) @ weight).mean()


def _require_sane(training: Training, stage: int) -> None:
    """Raise ModelError when the held-out Bellman error ran away instead of settling."""
    last = np.asarray(training.held_out["future"][-1])
    if np.isfinite(last).all() and (last < _DIVERGED_LOSS).all():
        return
    raise ModelError(
        f"learning diverged at step {stage + 1} of the campaign: after {training.epochs} epoch(s) the held-out "
        f"Bellman error is {np.sqrt(2 * np.max(last)):.3g} standard deviations of what was to be learned; lower the "
        "learning rate, or check the log for extreme rewards or costs"
    )
