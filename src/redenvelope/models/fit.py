"""Fit the neural model: held-out users choose the response structures, then an ensemble is trained."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from redenvelope.models.dataset import Examples, Rows
from redenvelope.models.environment import bucket, filled
from redenvelope.models.networks import OutcomeNetwork, event_count, outcome_names
from redenvelope.models.neural_model import Architecture, NeuralModel, known_moves
from redenvelope.models.responses import STRUCTURES, TRIAL, StructureChoice, allowed_structures, choose_structure, falls
from redenvelope.models.targets import STRUCTURE, OutcomeTargets, training_labels
from redenvelope.models.training import NeuralSettings, Progress, Task, new_task, outcome_loss, transition_loss


@dataclass(frozen=True, eq=False)
class NeuralFit:
    """A trained model and the record of its training."""

    model: NeuralModel
    structures: tuple[StructureChoice, ...]
    """Of the reward, then of each cost, [outcomes]."""
    epochs: int
    held_out_loss: dict[str, float]
    """Least held-out loss of each part, mean over members."""
    disagreement: dict[str, float]
    """By outcome, the standard deviation between members of an action's effect against the cheapest action, mean over
    held-out rows."""

    def as_dict(self) -> dict[str, Any]:
        """All but the weights, as plain data for JSON."""
        structures = {f"{choice.outcome.replace(' ', '_')}_structure": choice.as_dict() for choice in self.structures}
        return {
            "members": self.model.architecture.members,
            **structures,
            "epochs": self.epochs,
            "held_out_loss": self.held_out_loss,
            "disagreement": self.disagreement,
        }


def fit_neural(
    examples: Examples,
    settings: NeuralSettings | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> NeuralFit:
    """Learn reward, costs and transition from the rows of a log and, where users leave, survival.

    Rows are not weighted by propensity: the networks see all that the behaviour policy saw, so weights would only add
    noise (they matter to estimates that do not condition on the state).
    """
    settings = settings or NeuralSettings()
    task = new_task(examples, settings, seed)
    architecture = Architecture(
        layout=examples.layout,
        actions=examples.actions,
        events=event_count(task.targets),
        members=settings.members_for(examples.users),
        outcome_hidden=settings.outcome_hidden,
        transition_hidden=settings.transition_hidden,
        reward_structure=STRUCTURES[0],
        cost_structures=(STRUCTURES[0],) * examples.budgets,
        survival_structure=STRUCTURE if examples.leaves else None,
    )
    seeds = [(seed, member) for member in range(architecture.members)]
    # The two networks share nothing, so they are trained in parallel, one per core.
    with ThreadPoolExecutor(max_workers=1) as beside:
        untrained = architecture.networks(seed, task.starts)["transition"]
        moving = beside.submit(task.train, {"transition": untrained}, transition_loss, seeds)
        structures = choose_structures(task, architecture)
        reward, *costs = (choice.structure for choice in structures)
        architecture = replace(architecture, reward_structure=reward, cost_structures=tuple(costs))
        chosen = architecture.networks(seed, task.starts)["outcome"]
        earning = task.train({"outcome": chosen}, outcome_loss, seeds, progress)
    trained = (earning, moving.result())
    outcome, transition = earning.networks["outcome"], trained[1].networks["transition"]
    known = known_moves(examples.history, examples.layout)
    model = NeuralModel(outcome, transition, task.targets, task.scale, architecture, known)
    return NeuralFit(
        model=model,
        structures=structures,
        epochs=earning.epochs,
        held_out_loss={part: float(np.mean(best)) for each in trained for part, best in each.best.items()},
        disagreement=_disagreement(model, np.asarray(task.held_out.states[: settings.disagreement_rows])),
    )


def _disagreement(model: NeuralModel, states: NDArray[np.float32]) -> dict[str, float]:
    predicted = np.stack([model.of_member(member).predict(states) for member in range(model.architecture.members)])
    added = predicted[..., 1:] - predicted[..., :1]
    spread = added.std(axis=0).mean(axis=(1, 2)) if added.shape[-1] else np.zeros(added.shape[1])
    return dict(zip(outcome_names(model.budgets), spread.tolist(), strict=True))


def choose_structures(task: Task, architecture: Architecture) -> tuple[StructureChoice, ...]:
    """The structure of each outcome, [outcomes]: the given one, or the one with the best trial on held-out users."""
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
    # All with the same order of rows, so that they differ only in the structure.
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
    """The network, its arrays with a leading axis [1], with one structure active."""
    slot = np.asarray([[name == structure for name in STRUCTURES]], np.float32)

    def slots(part: Any) -> list[Any]:
        return [response.slot for response in part.responses]

    chosen: OutcomeNetwork = eqx.tree_at(slots, network, [slot] * len(network.responses))
    return chosen


def _contradictions(task: Task, place: int) -> list[tuple[int, int]]:
    """Pairs of actions that contradict a monotone response of the outcome at index `place`."""
    examples, rows = task.examples, task.rows
    outcomes, action = examples.outcomes[:, rows], examples.action[rows]
    used, labels = training_labels(task.targets.all[place], outcomes[place], outcomes[0], action)
    return falls(labels[used], action[used], examples.propensity[rows][used], examples.actions)
