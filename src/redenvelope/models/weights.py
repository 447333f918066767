"""Trees of arrays as arrays by name, and back: how anything learned is stored."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.log.layout import StateLayout

__all__ = ["named_arrays", "read_layout", "restored", "written_layout"]


def named_arrays(parts: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    """The arrays of every part under a name that tells where in the part they stand."""
    return {name: np.asarray(leaf) for name, leaf in _named_leaves(parts)}


def restored(skeletons: dict[str, Any], arrays: dict[str, NDArray[np.float32]]) -> dict[str, Any]:
    """Parts like these, with the arrays that `named_arrays` gave; anything missing, odd or too much is refused."""
    expected = _named_leaves(skeletons)
    names = [name for name, _ in expected]
    if set(names) != set(arrays):
        odd = min(set(names) ^ set(arrays))
        raise ModelError(f"the weights do not fit the model: {odd!r} is missing or too much; save the plan anew")
    for name, leaf in expected:
        if arrays[name].shape != leaf.shape:
            raise ModelError(
                f"the weights do not fit the model: {name!r} has shape {arrays[name].shape}, "
                f"not {leaf.shape}; save the plan anew"
            )
    leaves = [jnp.asarray(arrays[name]) for name in names]
    whole: dict[str, Any] = jax.tree.unflatten(jax.tree.structure(skeletons), leaves)
    return whole


def written_layout(layout: StateLayout) -> dict[str, Any]:
    """A layout as plain data; a history that it does not have is not mentioned, so that plans keep their hash."""
    return {name: value for name, value in asdict(layout).items() if value or not name.startswith("history")}


def read_layout(content: dict[str, Any]) -> StateLayout:
    """A layout from plain data, where tuples have become lists."""
    layout = dict(content)
    for name in ("static_categories", "dynamic_categories"):
        layout[name] = tuple(layout[name])
    return StateLayout(**layout)


def _named_leaves(parts: dict[str, Any]) -> list[tuple[str, Any]]:
    """In the order in which jax flattens them."""
    return [
        (f"{path[0].key}{jax.tree_util.keystr(path[1:])}", leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(parts)[0]
    ]
