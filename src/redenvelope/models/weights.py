"""Trees of arrays as arrays by name, and back: how anything learned is stored."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError

__all__ = ["named_arrays", "require_sizes", "restored"]

# What is built for a moment while weights are read may be so many times as large as they are.
_SLACK = 64


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
        given = arrays[name]
        if given.shape != leaf.shape or given.dtype != leaf.dtype:
            raise ModelError(
                f"the weights do not fit the model: {name!r} is {given.dtype} of shape {given.shape}, "
                f"not {leaf.dtype} of shape {leaf.shape}; save the plan anew"
            )
        if not np.isfinite(given).all():
            raise ModelError(f"the weights are damaged: {name!r} holds what is not a number; save the plan anew")
    leaves = [jnp.asarray(arrays[name]) for name in names]
    whole: dict[str, Any] = jax.tree.unflatten(jax.tree.structure(skeletons), leaves)
    return whole


def require_sizes(sizes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a description of a model, by the sizes of what it needs, that its weights cannot possibly fill.

    Asked before anything of these sizes is made: a description from a stranger may say a thousand million.
    """
    held = sum(array.size for array in arrays.values())
    for name, size in sizes.items():
        if min(size, default=0) < 0 or prod(size) > _SLACK * max(held, 1):
            raise ModelError(f"the weights do not fit the model: {held:,} numbers cannot hold {name} of {size}")


def _named_leaves(parts: dict[str, Any]) -> list[tuple[str, Any]]:
    """In the order in which jax flattens them."""
    return [
        (f"{path[0].key}{jax.tree_util.keystr(path[1:])}", leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(parts)[0]
    ]
