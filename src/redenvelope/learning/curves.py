"""Few curves over the prices that most of what is to be learned is made of: the targets' principal components."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from redenvelope.models.value_network import ValueNetwork

__all__ = ["Aim", "aim_at"]

_LEAST_VARIANCE = 1e-6  # share of all variance below which a curve is rounding


class Aim(NamedTuple):
    """Networks ready for their targets, and the targets as the networks learn them."""

    networks: ValueNetwork
    """They say about the same as before, in the centre, scale and curves of the new targets."""
    target: NDArray[np.float32]
    """Height of every curve, [rows, curves]."""
    lost: float
    """Share of the targets' variance that no curve holds."""


def aim_at(networks: ValueNetwork, target: NDArray[np.float32], taught: NDArray[np.bool_]) -> Aim:
    """Aim networks (leading axis [folds]) at targets [rows, heads, components]; `taught` [rows] are not held out."""
    lessons = target[taught]
    centre = lessons.mean(axis=0, dtype=np.float64)
    scale = lessons.std(axis=0, dtype=np.float64)
    # A target that hardly varies (no cost left to go, say) is its mean; dividing by its scale would blow up noise.
    scale = np.where(scale > 1e-6 * (1.0 + np.abs(centre)), scale, 1.0)
    standard = ((target - centre.astype(np.float32)) / scale.astype(np.float32)).reshape(len(target), -1)
    curves = networks.basis.shape[1]
    if curves == standard.shape[1]:
        return Aim(_set(networks, np.asarray(networks.basis[0]), centre, scale), standard, 0.0)
    lessons = standard[taught]
    variances, directions = np.linalg.eigh((lessons.T @ lessons).astype(np.float64) / len(lessons))
    kept, directions = variances[::-1][:curves], directions[:, ::-1][:, :curves]
    # Curves of variance one, so that all are learned equally fast; but one that hardly moves is left at zero, for
    # the same reason as above.
    moves = kept > _LEAST_VARIANCE * variances.sum()
    heights = np.where(moves, np.sqrt(np.where(moves, kept, 1.0)), 0.0)
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
    """The networks in other curves: old heights times `turn` [curves, curves] are new heights."""
    curves = len(turn)

    def outputs(array: Any) -> Any:
        # [folds, inputs, curves * (1 + rank)]: the outputs of a curve lie side by side.
        parts = np.asarray(array, np.float64).reshape(*array.shape[:2], curves, -1)
        return np.einsum("fikj,kl->filj", parts, turn).reshape(array.shape).astype(np.float32)

    def last_layers(network: ValueNetwork) -> list[Any]:
        inner = network.network
        return [network.level, inner.wide_weights, inner.deep_weights, inner.wide_tables]

    level, *layers = last_layers(networks)
    level = np.einsum("fka,kl->fla", np.asarray(level, np.float64), turn).astype(np.float32)
    turned: ValueNetwork = eqx.tree_at(last_layers, networks, [level, *jax.tree.map(outputs, layers)])
    return turned
