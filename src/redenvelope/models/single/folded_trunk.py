"""Wide & Deep networks of a loaded plan as trunks: what is constant is multiplied out in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.log.layout import StateLayout
from redenvelope.models.single.trunk import Inputs, Trunk
from redenvelope.models.wide_deep import WideDeep, number_width

__all__ = ["double", "single", "single_inputs", "single_trunk"]

FloatArray = NDArray[np.float64]


def single_inputs(layout: StateLayout) -> Inputs:
    """Where networks find their inputs in states of a layout."""
    hats = number_width(layout) - _tail_width(layout) - layout.static_numbers
    return Inputs(len(layout.static_categories), layout.step, np.arange(hats, dtype=np.float32))


def single_trunk(
    network: WideDeep, over: FloatArray | None = None, level: FloatArray | None = None, onto: FloatArray | None = None
) -> Trunk:
    """A network whose arrays have a leading axis [members], its raw outputs turned into others.

    These are raw @ `over` [members, raw outputs, outputs] + `level` [members, outputs] + tail @ `onto` [tail, outputs].
    """
    layout, wide, deep = network.layout, double(network.wide_weights), double(network.deep_weights)
    members, _, raw = wide.shape
    over = np.broadcast_to(np.eye(raw), (members, raw, raw)) if over is None else over
    outputs = over.shape[2]
    known = number_width(layout) - _tail_width(layout)
    first, units = _first_layer(network, over)
    # The rows are those of numbers, embeddings and the wide tables' rows; the columns hidden units, then outputs.
    embedded = first.shape[1] - wide.shape[1]
    weights = np.zeros((members, first.shape[1] + raw, units + outputs))
    weights[:, : first.shape[1], : first.shape[2]] = first
    weights[:, : wide.shape[1], units:] += wide @ over
    weights[:, first.shape[1] :, units:] = over
    static, tail = layout.static_numbers, weights[:, known : wide.shape[1]].copy()
    if onto is not None:
        tail[:, :, units:] += onto
    coded = weights[:, wide.shape[1] :] if embedded else weights[:, :0]
    bias = np.zeros((members, 1, units + outputs))
    if units:
        bias[:, 0, :units] = -double(network.trunk_biases[0])
    if level is not None:
        bias[:, 0, units:] = level
    return Trunk(
        embeddings=tuple(single(table) for table in network.embedding_tables),
        wide_tables=tuple(single(table) for table in network.wide_tables),
        static_weights=single(np.concatenate([weights[:, :static], coded], axis=1)),
        bias=single(bias),
        hat_weights=single(weights[:, static:known]),
        tail_weights=single(tail),
        layers=tuple(
            (single(weights), single(-double(biases)[:, None]))
            for weights, biases in zip(network.trunk_weights[1:], network.trunk_biases[1:], strict=True)
        ),
        last=single(-deep @ over) if units else np.zeros((members, 0, outputs), np.float32),
        units=units,
    )


def _tail_width(layout: StateLayout) -> int:
    """Number of columns after the step."""
    return layout.width - layout.step - 1


def _first_layer(network: WideDeep, over: FloatArray) -> tuple[FloatArray, int]:
    """Turned weights of numbers and embeddings [members, inputs, units] and the number of units.

    Without hidden layers, what the deep part makes of them, [members, inputs, outputs], and 0.
    """
    if network.trunk_weights:
        weights = -double(network.trunk_weights[0])
        return weights, weights.shape[2]
    return double(network.deep_weights) @ over, 0


def double(array: Any) -> NDArray[np.float64]:
    """An array in double precision."""
    return np.asarray(array, dtype=np.float64)


def single(array: Any) -> NDArray[np.float32]:
    """An array in single precision, its last axis contiguous; refused where its numbers are beyond all bounds."""
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(found).all():
        raise ModelError(
            "what the plan learned holds numbers beyond all bounds; fit the plan again, or ask who made it"
        )
    return found
