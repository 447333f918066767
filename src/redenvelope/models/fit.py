"""Log rows -> NeuralModel: choose how the actions share strength on held-out users, then train an ensemble."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.models.events import event_count
from redenvelope.models.examples import Examples
from redenvelope.models.known import known_moves
from redenvelope.models.neural import Architecture, NeuralModel
from redenvelope.models.outcome import outcome_names
from redenvelope.models.response import STRUCTURES
from redenvelope.models.selection import StructureChoice
from redenvelope.models.settings import NeuralSettings
from redenvelope.models.survival import STRUCTURE
from redenvelope.models.task import new_task, outcome_loss, transition_loss
from redenvelope.models.training import Progress
from redenvelope.models.trials import choose_structures

__all__ = ["NeuralFit", "NeuralSettings", "fit_neural"]


@dataclass(frozen=True, eq=False)
class NeuralFit:
    """A trained model and how it came about."""

    model: NeuralModel
    structures: tuple[StructureChoice, ...]
    """Of the reward, then of each cost, [outcomes]."""
    epochs: int
    held_out_loss: dict[str, float]
    """Least held-out loss of each part, mean over members."""
    disagreement: dict[str, float]
    """By outcome, standard deviation between members of what an action adds over the cheapest, mean over held-out
    rows."""

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
    """Learn reward, costs and transition from the rows of a log; where users leave, who stays too.

    Rows count alike whatever their propensity: the networks see all that the logger saw, so that weights
    would only add noise (they matter to estimates that have no state to condition on).
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
    # The two networks share nothing, so that each learns as if alone: one a core.
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
