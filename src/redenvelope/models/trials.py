"""Trials: every response structure trained on the outcomes alone, and the one that held-out users choose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from redenvelope.models.buckets import bucket, filled
from redenvelope.models.examples import Rows
from redenvelope.models.neural import Architecture
from redenvelope.models.outcome import OutcomeNetwork, outcome_names
from redenvelope.models.response import STRUCTURES, TRIAL
from redenvelope.models.selection import StructureChoice, allowed_structures, choose_structure, falls
from redenvelope.models.targets import OutcomeTargets, taught
from redenvelope.models.task import Task, outcome_loss

__all__ = ["choose_structures", "trial_losses"]


def choose_structures(task: Task, architecture: Architecture) -> tuple[StructureChoice, ...]:
    """The structure of each outcome [outcomes]: the one given, or the one that held-out users choose."""
    names = outcome_names(task.examples.budgets)
    given = (task.settings.reward_structure, *(task.settings.cost_structure for _ in names[1:]))
    tried: dict[str, dict[str, NDArray[np.float64]]] = {}
    if None in given:
        task = task.shorter()
        tried = trial_losses(task, architecture)
    choices = []
    for place, (name, structure) in enumerate(zip(names, given, strict=True)):
        if structure is not None:
            choices.append(StructureChoice(name, structure, {}, "given"))
            continue
        allowed = allowed_structures(_contradictions(task, place))
        choices.append(choose_structure(name, {known: tried[name][known] for known in allowed}))
    return tuple(choices)


def trial_losses(task: Task, architecture: Architecture) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Loss of every held-out row [rows], of each outcome, after training with each structure."""
    names = outcome_names(task.examples.budgets)
    costs = (TRIAL,) * len(names[1:])
    trial = replace(architecture, members=1, reward_structure=TRIAL, cost_structures=costs, survival_structure=None)
    untrained = trial.networks(task.seed, task.starts)["outcome"]
    members = [_on_trial(untrained, structure) for structure in STRUCTURES]
    networks = jax.tree.map(lambda *arrays: np.concatenate([np.asarray(array) for array in arrays]), *members)
    # All in the same order of rows, so that they differ by nothing but the structure.
    seeds = [(task.seed, 0)] * len(STRUCTURES)
    trained = task.train({"outcome": networks}, outcome_loss, seeds).networks["outcome"]
    count = len(task.held_out.action)
    losses = np.asarray(row_losses(trained, task.targets, filled(task.held_out, bucket(count))), np.float64)
    return {
        outcome: {name: losses[place, number, :count] for place, name in enumerate(STRUCTURES)}
        for number, outcome in enumerate(names)
    }


@jax.jit
def row_losses(network: OutcomeNetwork, targets: OutcomeTargets, rows: Rows) -> jax.Array:
    """Loss of every row and outcome under every member, [members, outcomes, rows]."""
    losses: jax.Array = jax.vmap(lambda member: member.losses(rows, targets))(network)
    return losses


def _on_trial(network: OutcomeNetwork, structure: str) -> OutcomeNetwork:
    """The network, its arrays with a leading axis [1], with one structure on trial."""
    slot = np.asarray([[name == structure for name in STRUCTURES]], np.float32)

    def slots(part: Any) -> list[Any]:
        return [response.slot for response in part.responses]

    chosen: OutcomeNetwork = eqx.tree_at(slots, network, [slot] * len(network.responses))
    return chosen


def _contradictions(task: Task, place: int) -> list[tuple[int, int]]:
    """Pairs of actions that contradict a monotone response of the outcome at that place."""
    examples, rows = task.examples, task.rows
    outcomes, action = examples.outcomes[:, rows], examples.action[rows]
    teaches, lesson = taught(task.targets.all[place], outcomes[place], outcomes[0], action)
    return falls(lesson[teaches], action[teaches], examples.propensity[rows][teaches], examples.actions)
