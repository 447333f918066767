"""Learned values as plain data and weights by name, and back: what a plan folder holds of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.networks import Folded, Immediate, OutcomeNetwork, WideDeep, new_value_networks, slots, stack
from redenvelope.models.neural_model import named_arrays, require_sizes, restored
from redenvelope.models.responses import STRUCTURES, Response, new_response
from redenvelope.models.targets import WrittenTarget, new_target, written_target
from redenvelope.planning.q_values import LearnedValues, LearningReport
from redenvelope.planning.temperature import is_temperature
from redenvelope.serialization import from_plain, to_plain


@dataclass(frozen=True)
class _WrittenReport:
    """How learning went, as plain data."""

    bellman_error: tuple[float, ...]
    epochs: tuple[int, ...]
    excluded: tuple[float, ...]
    late: tuple[str, ...]


@dataclass(frozen=True)
class _WrittenValues:
    """Learned values as plain data, beside their weights."""

    layout: StateLayout
    actions: int
    hidden: tuple[int, ...]
    structures: tuple[str, str]
    folds: int
    rank: int | None
    """None where the campaign has a single step."""
    reward_target: WrittenTarget
    cost_target: WrittenTarget
    duals: tuple[float, ...]
    temperature: float
    unit: float
    steps: int
    least_chance: float
    report: _WrittenReport

    def __post_init__(self) -> None:
        if min(self.actions, self.folds, self.steps, len(self.duals), *self.hidden) < 1:
            raise ValueError("at least one action, fold, step, price and unit in every layer are needed")
        if (self.rank is None) != (self.steps == 1) or (self.rank is not None and self.rank < 1):
            raise ValueError("values of later steps are there where there are later steps")
        if any(structure not in STRUCTURES for structure in self.structures):
            raise ValueError(f"there is no structure among {self.structures}")
        rising = all(later > earlier for earlier, later in pairwise(self.duals))  # infinities have no difference
        if not (self.duals and min(self.duals) >= 0 and rising and np.isfinite(self.duals[:-1]).all()):
            raise ValueError("the prices must rise from 0 on")
        numbers = (self.temperature, self.unit, self.least_chance)
        if not (all(map(is_temperature, numbers)) and self.unit > 0 and self.least_chance <= 1):
            raise ValueError("temperature, unit and least chance must be numbers to compute with")

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Sizes of what the networks need at least, by name."""
        layers = {
            f"layer {place}": (self.folds, units, following)
            for place, (units, following) in enumerate(zip(self.hidden, (*self.hidden, 1)[1:], strict=True))
        }
        return layers | {
            "actions": (self.folds, self.actions),
            "columns of a state": (self.folds, self.layout.width),
            "codes of static categories": (self.folds, sum(self.layout.static_categories)),
            "values of later steps": (self.steps - 1, self.folds, self.rank or 0, self.actions),
        }


def learned_state(values: LearnedValues) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Plain data for JSON, and the weights by name."""
    immediate = values.immediate
    network: OutcomeNetwork = immediate.outcome.network
    report = values.report
    written = _WrittenValues(
        layout=values.layout,
        actions=values.actions,
        hidden=tuple(int(weights.shape[-1]) for weights in network.network.trunk_weights),
        structures=(
            _structure(network.responses[0], values.actions),
            _structure(network.responses[1], values.actions),
        ),
        folds=int(immediate.outcome.slot.shape[0]),
        rank=None if values.futures is None else int(values.futures.shapes.shape[-2]),
        reward_target=written_target(immediate.rewarding),
        cost_target=written_target(immediate.costing),
        duals=tuple(float(dual) for dual in values.duals),
        temperature=float(values.temperature),
        unit=float(values.unit),
        steps=values.steps,
        least_chance=float(values.least_chance),
        report=_WrittenReport(
            tuple(report.bellman_error.tolist()), tuple(report.epochs), tuple(report.excluded.tolist()), report.late
        ),
    )
    return to_plain(written), named_arrays(_parts(immediate, values.futures))


def learned_from_state(config: dict[str, Any], arrays: dict[str, NDArray[np.float32]]) -> LearnedValues:
    """The values that `learned_state` wrote; whatever does not fit together is refused before it is built."""
    written = from_plain(_WrittenValues, config, "what was learned")
    require_sizes(written.sizes, arrays)
    parts = restored(_skeleton(written, _curves(arrays)), arrays)
    targets = (new_target(written.reward_target, written.actions), new_target(written.cost_target, written.actions))
    report = written.report
    return LearnedValues(
        immediate=Immediate(parts["outcome"], parts["behaviour"], *targets, written.actions),
        futures=parts.get("futures"),
        duals=np.array(written.duals),
        temperature=written.temperature,
        unit=written.unit,
        steps=written.steps,
        layout=written.layout,
        least_chance=written.least_chance,
        report=LearningReport(np.array(report.bellman_error), report.epochs, np.array(report.excluded), report.late),
    )


def _parts(immediate: Immediate, futures: Any) -> dict[str, Any]:
    parts = {"outcome": immediate.outcome, "behaviour": immediate.behaviour}
    return parts if futures is None else parts | {"futures": futures}


def _skeleton(written: _WrittenValues, curves: int) -> dict[str, Any]:
    """Untrained parts of the right shapes."""
    layout, actions, folds, hidden = written.layout, written.actions, written.folds, written.hidden
    generator = np.random.default_rng(0)
    outcome = stack([OutcomeNetwork(layout, actions, hidden, written.structures, generator)] * folds)
    behaviour = stack([WideDeep(layout, hidden[-1:], actions, generator)] * folds)
    places = jnp.asarray(slots(folds))
    parts = {"outcome": Folded(outcome, places), "behaviour": Folded(behaviour, places)}
    if written.rank is None:
        return parts
    heads, components = len(written.duals), 3 if written.temperature > 0 else 2
    network = new_value_networks(layout, actions, heads, components, hidden, written.rank, curves, folds, 0)
    return parts | {"futures": stack([network] * (written.steps - 1))}


def _curves(arrays: dict[str, NDArray[np.float32]]) -> int:
    """Curves of the value networks, which only the weights tell; 1 where there are none."""
    level = arrays.get("futures.level")
    return 1 if level is None or level.ndim < 2 else level.shape[-2]


def _structure(response: Response, actions: int) -> str:
    """The name of a response structure."""
    return next(name for name in STRUCTURES if type(new_response(name, actions)) is type(response))
