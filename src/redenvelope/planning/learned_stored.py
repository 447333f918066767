"""Learned values as plain data and weights by name, and back: what a plan folder holds of them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.models.immediate import Folded, Immediate
from redenvelope.models.outcome import OutcomeNetwork
from redenvelope.models.response import STRUCTURES, Response, new_response
from redenvelope.models.stacked import slots, stack
from redenvelope.models.targets import new_target, target_as_dict
from redenvelope.models.value_network import new_value_networks
from redenvelope.models.weights import named_arrays, read_layout, restored, written_layout
from redenvelope.models.wide_deep import WideDeep
from redenvelope.planning.learned_values import LearnedValues, LearningReport

__all__ = ["learned_from_state", "learned_state"]


def learned_state(values: LearnedValues) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Plain data for JSON, and the weights by name."""
    immediate = values.immediate
    network: OutcomeNetwork = immediate.outcome.network
    config = {
        "layout": written_layout(values.layout),
        "actions": values.actions,
        "hidden": [int(weights.shape[-1]) for weights in network.network.trunk_weights],
        "structures": [_structure(response, values.actions) for response in network.responses],
        "folds": int(immediate.outcome.slot.shape[0]),
        "rank": None if values.futures is None else int(values.futures.shapes.shape[-2]),
        "reward_target": target_as_dict(immediate.rewarding),
        "cost_target": target_as_dict(immediate.costing),
        "duals": ["infinity" if np.isinf(dual) else float(dual) for dual in values.duals],
        "temperature": float(values.temperature),
        "unit": float(values.unit),
        "steps": values.steps,
        "least_chance": float(values.least_chance),
        "report": {
            "bellman_error": values.report.bellman_error.tolist(),
            "epochs": list(values.report.epochs),
            "excluded": values.report.excluded.tolist(),
            "late": list(values.report.late),
        },
    }
    return config, named_arrays(_parts(immediate, values.futures))


def learned_from_state(config: dict[str, Any], arrays: dict[str, NDArray[np.float32]]) -> LearnedValues:
    """The values that `learned_state` wrote."""
    layout, actions, steps = read_layout(config["layout"]), int(config["actions"]), int(config["steps"])
    temperature = float(config["temperature"])
    duals = np.array([np.inf if dual == "infinity" else float(dual) for dual in config["duals"]])
    parts = restored(_skeleton(config, len(duals), 3 if temperature > 0 else 2, _curves(arrays)), arrays)
    targets = (new_target(config["reward_target"]), new_target(config["cost_target"]))
    report = config["report"]
    return LearnedValues(
        immediate=Immediate(parts["outcome"], parts["behaviour"], *targets, actions),
        futures=parts.get("futures"),
        duals=duals,
        temperature=temperature,
        unit=float(config["unit"]),
        steps=steps,
        layout=layout,
        least_chance=float(config["least_chance"]),
        report=LearningReport(
            np.array(report["bellman_error"]),
            tuple(report["epochs"]),
            np.array(report["excluded"], dtype=np.float64),
            tuple(report.get("late", ())),  # plans of before do not tell
        ),
    )


def _parts(immediate: Immediate, futures: Any) -> dict[str, Any]:
    parts = {"outcome": immediate.outcome, "behaviour": immediate.behaviour}
    return parts if futures is None else parts | {"futures": futures}


def _skeleton(config: dict[str, Any], heads: int, components: int, curves: int) -> dict[str, Any]:
    """Untrained parts of the right shapes."""
    layout, actions, folds = read_layout(config["layout"]), int(config["actions"]), int(config["folds"])
    hidden, generator = tuple(config["hidden"]), np.random.default_rng(0)
    structures = (config["structures"][0], config["structures"][1])
    outcome = stack([OutcomeNetwork(layout, actions, hidden, structures, generator)] * folds)
    behaviour = stack([WideDeep(layout, hidden[-1:], actions, generator)] * folds)
    places = jnp.asarray(slots(folds))
    parts = {"outcome": Folded(outcome, places), "behaviour": Folded(behaviour, places)}
    if config["rank"] is None:
        return parts
    network = new_value_networks(layout, actions, heads, components, hidden, int(config["rank"]), curves, folds, 0)
    return parts | {"futures": stack([network] * (int(config["steps"]) - 1))}


def _curves(arrays: dict[str, NDArray[np.float32]]) -> int:
    """Curves of the value networks, which only the weights tell; 1 where there are none."""
    level = arrays.get("futures.level")
    return 1 if level is None or level.ndim < 2 else level.shape[-2]


def _structure(response: Response, actions: int) -> str:
    """The name of a response structure."""
    return next(name for name in STRUCTURES if type(new_response(name, actions)) is type(response))
