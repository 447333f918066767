"""Fitted Q-iteration from the last step to the first: each step's values are a regression on the next step's.

A campaign ends, so Q-learning needs no fixed point: the finished network of the next step is the target network. No
network learns from its own estimates, and one pass over the steps suffices.

Many prices are learned as few curves, the principal components of the targets (`aim_at`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.learning.folds import FoldedRows, LearningSettings, StageProgress, UserFolds, always, gather, pick
from redenvelope.models.dataset import Examples
from redenvelope.models.networks import ValueNetwork, networks_at, new_value_networks, stack
from redenvelope.models.training import Training, train

Targets = Callable[[ValueNetwork | None, NDArray[np.int64]], NDArray[np.float32]]
"""(networks of the next step, rows of a step) -> targets of their values to go, [rows, heads, components].

The networks have a leading axis [folds]; they are None where the next step is the last.
"""

# Targets have variance one: a constant has a loss of 0.5, and a loss this large means divergence.
_DIVERGED_LOSS = 20.0


@dataclass(frozen=True, eq=False)
class Futures:
    """The networks of all steps but the last, and the course of their training."""

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
    """Learn the values to go after an action at every step but the last.

    `warm` [steps - 1, folds] are networks for the same heads to start from; without them, a step starts from the next
    one. After a user's last row the value to go is zero; a row before a gap in the log is not used.
    """
    stages = folds.steps - 1
    usable = examples.continues | examples.is_last
    networks = new_value_networks(
        examples.layout, examples.actions, heads, components, settings.hidden, settings.advantage_rank,
        settings.most_curves, folds.count, seed,
    )  # fmt: skip
    found: list[ValueNetwork] = []
    errors, epochs = [], []
    for stage in reversed(range(stages)):
        rows = np.flatnonzero(usable & (folds.step == stage))
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
    """Mean Bellman loss of one fold's value network on FoldedRows (a training `Loss`)."""
    return {"future": _squared_error(networks["future"], rows)}


def _squared_error(network: ValueNetwork, rows: FoldedRows) -> jax.Array:
    """Half the squared error of the logged action's curves, in units of the heads' own variance, []."""
    states, action, target = (pick(column, network.slot) for column in (rows.states, rows.action, rows.target))
    raw = network.network(states).reshape(len(states), network.level.shape[0], 1 + network.shapes.shape[0])
    taken = jax.nn.one_hot(action, network.level.shape[1])
    # Only the logged action's score is needed and computed.
    score = raw[..., 0] + taken @ network.level.T
    # Sums of products are fused into one loop; a small matrix product per row would not be.
    score = score + (raw[..., 1:] * (taken @ network.advantages().T)[:, None]).sum(axis=-1)
    # The share of the heads' variance in each curve.
    weight = jnp.square(jax.lax.stop_gradient(network.basis)).mean(axis=(1, 2))
    return 0.5 * (jnp.square(target - score) @ weight).mean()


def _require_sane(training: Training, stage: int) -> None:
    """Raise ModelError where the held-out Bellman error diverged."""
    last = np.asarray(training.held_out["future"][-1])
    if np.isfinite(last).all() and (last < _DIVERGED_LOSS).all():
        return
    raise ModelError(
        f"learning diverged at step {stage + 1} of the campaign: after {training.epochs} epoch(s) the held-out "
        f"Bellman error is {np.sqrt(2 * np.max(last)):.3g} standard deviations of the targets; lower the "
        "learning rate, or check the log for extreme rewards or costs"
    )


_LEAST_VARIANCE = 1e-6  # share of all variance below which a curve is only rounding


class Aim(NamedTuple):
    """Networks and targets in the same centre, scale and curves."""

    networks: ValueNetwork
    """With about the same predictions as before."""
    target: NDArray[np.float32]
    """Coefficient of every curve, [rows, curves]."""
    lost: float
    """Share of the targets' variance outside the curves."""


def aim_at(networks: ValueNetwork, target: NDArray[np.float32], training: NDArray[np.bool_]) -> Aim:
    """Express networks (leading axis [folds]) in curves of targets [rows, heads, components].

    `training` [rows] marks the rows that are not held out, which centre, scale and curves are computed from.
    """
    used = target[training]
    centre = used.mean(axis=0, dtype=np.float64)
    scale = used.std(axis=0, dtype=np.float64)
    # A target that hardly varies (such as no cost to go) is its mean; dividing by its scale would amplify noise.
    scale = np.where(scale > 1e-6 * (1.0 + np.abs(centre)), scale, 1.0)
    standard = ((target - centre.astype(np.float32)) / scale.astype(np.float32)).reshape(len(target), -1)
    curves = networks.basis.shape[1]
    if curves == standard.shape[1]:
        return Aim(_set(networks, np.asarray(networks.basis[0]), centre, scale), standard, 0.0)
    used = standard[training]
    variances, directions = np.linalg.eigh((used.T @ used).astype(np.float64) / len(used))
    largest, directions = variances[::-1][:curves], directions[:, ::-1][:, :curves]
    # Curves have variance one, so that all are learned equally fast; one that hardly varies is left at zero, for the
    # same reason as above.
    moves = largest > _LEAST_VARIANCE * variances.sum()
    heights = np.where(moves, np.sqrt(np.where(moves, largest, 1.0)), 0.0)
    inwards = directions * np.where(moves, 1.0 / np.where(moves, heights, 1.0), 0.0)
    turn = np.asarray(networks.basis[0], np.float64).reshape(curves, -1) @ inwards
    basis = (directions * heights).T.reshape(networks.basis.shape[1:])
    lost = max(0.0, 1.0 - float(np.square(heights).sum() / max(variances.sum(), 1e-12)))
    return Aim(_set(_turned(networks, turn), basis, centre, scale), standard @ inwards.astype(np.float32), lost)


def _set(
    networks: ValueNetwork, basis: NDArray[np.floating], centre: NDArray[np.float64], scale: NDArray[np.float64]
) -> ValueNetwork:
    folds = len(networks.slot)
    arrays = tuple(np.repeat(np.asarray(array, np.float32)[None], folds, axis=0) for array in (basis, centre, scale))
    done: ValueNetwork = eqx.tree_at(lambda network: (network.basis, network.centre, network.scale), networks, arrays)
    return done


def _turned(networks: ValueNetwork, turn: NDArray[np.float64]) -> ValueNetwork:
    """The networks in other curves: old coefficients times `turn` [curves, curves] are the new ones."""
    curves = len(turn)

    def outputs(array: Any) -> Any:
        # [folds, inputs, curves * (1 + rank)]: the outputs of a curve are adjacent.
        parts = np.asarray(array, np.float64).reshape(*array.shape[:2], curves, -1)
        return np.einsum("fikj,kl->filj", parts, turn).reshape(array.shape).astype(np.float32)

    def last_layers(network: ValueNetwork) -> list[Any]:
        inner = network.network
        return [network.level, inner.wide_weights, inner.deep_weights, inner.wide_tables]

    level, *layers = last_layers(networks)
    level = np.einsum("fka,kl->fla", np.asarray(level, np.float64), turn).astype(np.float32)
    turned: ValueNetwork = eqx.tree_at(last_layers, networks, [level, *jax.tree.map(outputs, layers)])
    return turned
