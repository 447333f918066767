"""Untrained networks with every weight drawn: what they say is no matter, only that it is said alike everywhere."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.networks import (
    Folded,
    Immediate,
    OutcomeNetwork,
    TailScale,
    WideDeep,
    event_count,
    new_value_networks,
    slots,
    stack,
)
from redenvelope.models.neural_model import Architecture, NeuralModel
from redenvelope.models.targets import (
    BinaryReward,
    ConsumedCost,
    NumberCost,
    NumberReward,
    OutcomeTargets,
    RewardedCost,
    Survival,
)
from redenvelope.planning.q_values import LearnedValues, LearningReport
from redenvelope.prices import unscaled_dual

WIDE = StateLayout((5, 8), 10, 6, 2, (), step_change=1 / 9)
"""Twenty features and ten steps: 10 static numbers, 2 static categories, 6 dynamic numbers, 2 binaries."""
MIXED = StateLayout((4, 100), 3, 2, 1, (3, 4), step_change=1 / 20)
"""A category too large for one-hot rows, more steps than hats, dynamic categories."""
BARE = StateLayout((), 0, 3, 0, (), step_change=1 / 2)
"""Dynamic numbers alone."""
LAYOUTS = {"wide": WIDE, "mixed": MIXED, "bare": BARE}


def target(name: str, actions: int) -> Any:
    """A target by its name; the cheapest action is free."""
    amounts = jnp.asarray(np.arange(actions, dtype=np.float32))
    number = (jnp.float32(0.4), jnp.float32(1.7))
    known = {
        "binary": BinaryReward,
        "number reward": lambda: NumberReward(*number),
        "number cost": lambda: NumberCost(*number),
        "consumed": lambda: ConsumedCost(amounts),
        "rewarded": lambda: RewardedCost(amounts),
    }
    return known[name]()


def random_model(
    layout: StateLayout = WIDE,
    actions: int = 6,
    members: int = 1,
    structures: tuple[str, str] = ("dose", "dose"),
    targets: tuple[str, str] = ("binary", "rewarded"),
    hidden: tuple[tuple[int, ...], tuple[int, ...]] = ((64, 64), (64,)),
    seed: int = 0,
    leaves: bool = False,
) -> NeuralModel:
    generator = np.random.default_rng(seed)
    rewarding, costing = (target(name, actions) for name in targets)
    meaning = OutcomeTargets(rewarding, (costing,), Survival() if leaves else None)
    shape = (layout, actions, event_count(meaning), members, *hidden)
    architecture = Architecture(*shape, structures[0], structures[1:], "low_rank" if leaves else None)
    start = np.sort(generator.normal(size=actions))
    networks = drawn(architecture.networks(seed, np.stack([start] * len(architecture.structures))), generator)
    numbers = np.abs(generator.normal(size=(3, layout.dynamic_numbers))).astype(np.float32)
    scale = TailScale(jnp.asarray(numbers[0]), jnp.asarray(-1 - numbers[1]), jnp.asarray(1 + numbers[2]))
    return NeuralModel(networks["outcome"], networks["transition"], meaning, scale, architecture)


def random_values(layout: StateLayout = WIDE, temperature: float = 0.0, seed: int = 0, **changes: Any) -> LearnedValues:
    """Learned values of ten steps and six actions, unless said otherwise, at seven prices, of two folds."""
    generator, folds, hidden, duals = np.random.default_rng(seed), 2, (16, 8), 7
    actions, steps = changes.pop("actions", 6), changes.pop("steps", 10)
    start = np.sort(generator.normal(size=actions))
    outcome = OutcomeNetwork(layout, actions, hidden, ("dose", "cumulative"), generator).start(np.stack([start, start]))
    behaviour = WideDeep(layout, hidden[-1:], actions, generator)
    places = jnp.asarray(slots(folds))
    components = 3 if temperature > 0 else 2
    future = new_value_networks(layout, actions, duals, components, hidden, 3, 6, folds, seed)
    networks = drawn({"outcome": stack([outcome] * folds), "behaviour": stack([behaviour] * folds)}, generator)
    known = {
        "immediate": Immediate(
            Folded(networks["outcome"], places),
            Folded(networks["behaviour"], places),
            target("binary", actions),
            target("rewarded", actions),
            actions,
        ),
        "futures": drawn(stack([future] * (steps - 1)), generator),
        "duals": unscaled_dual(np.linspace(0.0, 1.0, duals), 0.5),
        "temperature": temperature,
        "unit": 0.5,
        "steps": steps,
        "layout": layout,
        "least_chance": 0.05,
        "report": LearningReport(np.zeros(steps - 1), (0,) * (steps - 1), np.zeros(actions)),
    }
    return LearnedValues(**known | changes)


def drawn(networks: Any, generator: np.random.Generator) -> Any:
    """The networks with something added to every weight, the less the more of them are summed."""

    def add(array: Any) -> Any:
        summed = array.shape[-2] if array.ndim > 2 else 1
        return (np.asarray(array) + 0.3 * generator.normal(size=array.shape) / np.sqrt(summed)).astype(np.float32)

    return jax.tree.map(add, networks)


def random_states(layout: StateLayout, users: int, step: int | None = None, seed: int = 1) -> np.ndarray:
    """[users, width], at one step of the campaign or at any."""
    generator = np.random.default_rng(seed)
    states = generator.normal(size=(users, layout.width)).astype(np.float32)
    for column, codes in enumerate(layout.static_categories):
        states[:, column] = generator.integers(0, codes, users)
    steps = generator.integers(0, round(1 / layout.step_change) + 1, users) if step is None else step
    states[:, layout.step] = layout.step_change * steps
    states[:, layout.binaries] = generator.random((users, layout.dynamic_binaries))
    for block in layout.categories:
        weights = np.exp(states[:, block])
        states[:, block] = weights / weights.sum(axis=1, keepdims=True)
    return states
