"""What of a next state is known, not predicted: the history that an action makes, whatever the networks say."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from redenvelope.log.history import HistoryMoves
from redenvelope.log.layout import StateLayout

__all__ = ["KnownMoves", "known_moves", "moved"]


class KnownMoves(eqx.Module):
    """See HistoryMoves; in single precision."""

    keep: jax.Array
    """[actions, columns]"""
    jump: jax.Array
    """[actions, columns]"""
    gain: jax.Array
    """[outcomes, columns]"""


def known_moves(moves: HistoryMoves | None, layout: StateLayout) -> KnownMoves | None:
    """The moves of a layout's history (zeros where they are not given); None where it has none."""
    if not layout.history_actions:
        return None
    width = layout.history.stop - layout.history.start
    shapes = ((layout.history_actions, width),) * 2 + ((layout.history_outcomes, width),)
    arrays = moves if moves is not None else [np.zeros(shape) for shape in shapes]
    return KnownMoves(*(jnp.asarray(np.asarray(array).astype(np.float32)) for array in arrays))


def moved(known: KnownMoves, history: jax.Array, outcomes: Sequence[jax.Array]) -> jax.Array:
    """Histories after every action, [n, actions, columns], of histories [n, columns] and the expected outcomes of
    each, [n, actions] (there may be more than the history tells of)."""
    following = known.keep * history[:, None] + known.jump
    for gain, outcome in zip(known.gain, outcomes, strict=False):
        following = following + gain * outcome[..., None]
    return following
