"""Log rows -> NeuralModel: choose how the actions share strength on held-out users, then train an ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from redenvelope.models.buckets import bucket, filled
from redenvelope.models.events import event_count
from redenvelope.models.examples import Examples, Rows
from redenvelope.models.neural import Architecture, NeuralModel
from redenvelope.models.outcome import OutcomeNetwork
from redenvelope.models.response import STRUCTURES, TRIAL
from redenvelope.models.selection import StructureChoice, allowed_structures, choose_structure, falls
from redenvelope.models.targets import (
    CostTarget,
    RewardTarget,
    cost_target,
    reward_target,
    starting_scores,
    taught,
)
from redenvelope.models.training import ChunkSource, Progress, Training, TrainingSettings, train
from redenvelope.models.transition import TailScale, tail_scale

__all__ = ["NeuralFit", "NeuralSettings", "fit_neural", "members_for"]

_HELD_OUT_ROWS = 100_000  # more would only cost time: the noise of a mean over so many rows is small
_TRIAL_ROWS = 100_000  # with more rows than this, the structures differ too little to be worth the wait
_DISAGREEMENT_ROWS = 8_192
_MEMBERS, _ENOUGH_USERS = 4, 100_000


@dataclass(frozen=True)
class NeuralSettings:
    """What to train; the defaults suit logs of a thousand users and of a million."""

    outcome_hidden: tuple[int, ...] = (64, 64)
    transition_hidden: tuple[int, ...] = (64,)
    members: int | None = None
    """Networks whose mean is the model; None takes four, and one where there are users enough (see `members_for`)."""
    reward_structure: str | None = None
    """How the actions share strength for the reward; None chooses on held-out users."""
    cost_structure: str | None = None
    """The same for the cost."""
    held_out_share: float = 0.1
    """Share of the users that decide when to stop and which structure to use."""
    training: TrainingSettings = field(default_factory=TrainingSettings)


@dataclass(frozen=True, eq=False)
class NeuralFit:
    """A trained model and how it came about."""

    model: NeuralModel
    reward_structure: StructureChoice
    cost_structure: StructureChoice
    epochs: int
    held_out_loss: dict[str, float]
    """Least held-out loss of each part, mean over members."""
    disagreement: dict[str, float]
    """Standard deviation between members of what an action adds over the cheapest, mean over held-out rows."""

    def as_dict(self) -> dict[str, Any]:
        """All but the weights, as plain data for JSON."""
        return {
            "members": self.model.architecture.members,
            "reward_structure": self.reward_structure.as_dict(),
            "cost_structure": self.cost_structure.as_dict(),
            "epochs": self.epochs,
            "held_out_loss": self.held_out_loss,
            "disagreement": self.disagreement,
        }


@dataclass(frozen=True, eq=False)
class _Task:
    """What is learned from, however many networks are trained on it."""

    examples: Examples
    rows: NDArray[np.int64]
    held_out: Rows
    rewarding: RewardTarget
    costing: CostTarget
    scale: TailScale
    starts: tuple[NDArray[np.float64], NDArray[np.float64]]
    """Scores to start from, of reward and of cost, [actions] each."""
    settings: TrainingSettings
    seed: int


def members_for(users: int) -> int:
    """Members of an ensemble learned from so many users: what their mean averages out is the noise of small logs.

    From 80,000 users on one earns as much as four, and decides four times as fast.
    """
    return _MEMBERS if users < _ENOUGH_USERS else 1


def fit_neural(
    examples: Examples,
    settings: NeuralSettings | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> NeuralFit:
    """Learn reward, cost and transition from the rows of a log.

    Rows count alike whatever their propensity: the networks see all that the logger saw, so that weights
    would only add noise (they matter to estimates that have no state to condition on).
    """
    settings = settings or NeuralSettings()
    task = _new_task(examples, settings, seed)
    architecture = Architecture(
        layout=examples.layout,
        actions=examples.actions,
        events=event_count(task.rewarding, task.costing),
        members=settings.members or members_for(examples.users),
        outcome_hidden=settings.outcome_hidden,
        transition_hidden=settings.transition_hidden,
        reward_structure=settings.reward_structure or STRUCTURES[0],
        cost_structure=settings.cost_structure or STRUCTURES[0],
    )
    reward_choice, cost_choice = _choose_structures(task, architecture, settings)
    architecture = replace(architecture, reward_structure=reward_choice.structure, cost_structure=cost_choice.structure)
    training, model = _train_model(task, architecture, progress)
    return NeuralFit(
        model=model,
        reward_structure=reward_choice,
        cost_structure=cost_choice,
        epochs=training.epochs,
        held_out_loss={part: float(np.mean(values)) for part, values in training.best.items()},
        disagreement=_disagreement(model, np.asarray(task.held_out.states)),
    )


def outcome_loss(networks: Any, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """Mean loss of one member's outcome network."""
    rewarding, costing, _ = constants
    reward, cost = networks["outcome"].losses(rows, rewarding, costing)
    return {"outcome": reward.mean() + cost.mean()}


def model_loss(networks: Any, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """Mean losses of one member's two networks; they share nothing, so that each learns as if alone."""
    scale: TailScale = constants[2]
    moved = networks["transition"].loss(rows, scale)
    return outcome_loss(networks, constants, rows) | {"transition": moved.mean()}


def _new_task(examples: Examples, settings: NeuralSettings, seed: int) -> _Task:
    rows, held_out = examples.split_users(settings.held_out_share, seed)
    reward, cost, action = examples.reward[rows], examples.cost[rows], examples.action[rows]
    rewarding = reward_target(reward)
    costing = cost_target(cost, reward, action, examples.actions)
    return _Task(
        examples=examples,
        rows=rows,
        held_out=examples.gather(_thinned(held_out, _HELD_OUT_ROWS)),
        rewarding=rewarding,
        costing=costing,
        scale=tail_scale(examples, rows),
        starts=(
            starting_scores(rewarding, reward, reward, action, examples.actions),
            starting_scores(costing, cost, reward, action, examples.actions),
        ),
        settings=settings.training,
        seed=seed,
    )


def _choose_structures(
    task: _Task, architecture: Architecture, settings: NeuralSettings
) -> tuple[StructureChoice, StructureChoice]:
    """Train one member with each structure on the outcomes alone, and let held-out users choose."""
    given = {"reward": settings.reward_structure, "cost": settings.cost_structure}
    fixed = {
        outcome: StructureChoice(outcome, structure, {}, "given")
        for outcome, structure in given.items()
        if structure is not None
    }
    if len(fixed) == 2:
        return fixed["reward"], fixed["cost"]
    # A trial has to rank the structures, not to be used: half of the training tells them apart.
    shorter = replace(task.settings, steps=task.settings.steps // 2)
    task = replace(task, rows=_thinned(task.rows, _TRIAL_ROWS), settings=shorter)
    tried = _trial_losses(task, architecture)
    losses = {
        outcome: {name: tried[outcome][name] for name in allowed_structures(_contradictions(task, outcome))}
        for outcome in given
        if outcome not in fixed
    }
    found = {outcome: choose_structure(outcome, rows) for outcome, rows in losses.items()}
    chosen = found | fixed
    return chosen["reward"], chosen["cost"]


def _trial_losses(task: _Task, architecture: Architecture) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Loss of every held-out row [rows], of reward and of cost, after training with each structure."""
    trial = replace(architecture, members=1, reward_structure=TRIAL, cost_structure=TRIAL)
    untrained = trial.networks(task.seed, *task.starts)["outcome"]
    members = [_on_trial(untrained, structure) for structure in STRUCTURES]
    networks = jax.tree.map(lambda *arrays: np.concatenate([np.asarray(array) for array in arrays]), *members)
    # All in the same order of rows, so that they differ by nothing but the structure.
    seeds = [(task.seed, 0)] * len(STRUCTURES)
    trained = _train({"outcome": networks}, task, outcome_loss, seeds, None).networks["outcome"]
    rows = filled(task.held_out, bucket(len(task.held_out.action)))
    losses = jax.device_get(_row_losses(trained, (task.rewarding, task.costing, task.scale), rows))
    count = len(task.held_out.action)
    return {
        outcome: {name: values[place, :count].astype(np.float64) for place, name in enumerate(STRUCTURES)}
        for outcome, values in losses.items()
    }


def _on_trial(network: OutcomeNetwork, structure: str) -> OutcomeNetwork:
    """The network, its arrays with a leading axis [1], with one structure on trial."""
    slot = np.asarray([[name == structure for name in STRUCTURES]], np.float32)
    chosen: OutcomeNetwork = eqx.tree_at(
        lambda part: (part.reward_response.slot, part.cost_response.slot), network, (slot, slot)
    )
    return chosen


def _contradictions(task: _Task, outcome: str) -> list[tuple[int, int]]:
    """Pairs of actions that contradict a monotone response of the reward or the cost."""
    examples, rows = task.examples, task.rows
    reward, cost, action = examples.reward[rows], examples.cost[rows], examples.action[rows]
    target, value = (task.rewarding, reward) if outcome == "reward" else (task.costing, cost)
    teaches, lesson = taught(target, value, reward, action)
    return falls(lesson[teaches], action[teaches], examples.propensity[rows][teaches], examples.actions)


@jax.jit
def _row_losses(network: OutcomeNetwork, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """Reward and cost loss of every row under every member, [members, rows] each."""
    rewarding, costing, _ = constants
    losses = jax.vmap(lambda member: member.losses(rows, rewarding, costing))(network)
    return dict(zip(("reward", "cost"), losses, strict=True))


def _train_model(task: _Task, architecture: Architecture, progress: Progress | None) -> tuple[Training, NeuralModel]:
    untrained = architecture.networks(task.seed, *task.starts)
    seeds = [(task.seed, member) for member in range(architecture.members)]
    training = _train(untrained, task, model_loss, seeds, progress)
    networks = training.networks
    model = NeuralModel(
        outcome=networks["outcome"],
        transition=networks["transition"],
        reward_target=task.rewarding,
        cost_target=task.costing,
        scale=task.scale,
        architecture=architecture,
    )
    return training, model


def _train(
    networks: Any, task: _Task, loss: Any, seeds: Sequence[tuple[int, ...]], progress: Progress | None
) -> Training:
    constants = (task.rewarding, task.costing, task.scale)
    rows = len(task.rows)
    return train(networks, constants, loss, _chunk_source(task), rows, task.held_out, task.settings, seeds, progress)


def _chunk_source(task: _Task) -> ChunkSource:
    size = task.settings.chunk_rows
    if len(task.rows) <= size:
        everything = task.examples.gather(task.rows)
        return lambda epoch: [everything]

    def chunks(epoch: int) -> Iterator[Rows]:
        return task.examples.chunks(task.rows, size)

    return chunks


def _thinned(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """About `most` of the rows, from all over the log: the first users may not be like the last."""
    return rows[:: max(1, round(len(rows) / most))]


def _disagreement(model: NeuralModel, states: NDArray[np.float32]) -> dict[str, float]:
    members = [model.of_member(member) for member in range(model.architecture.members)]
    predicted = [member.predict(states[:_DISAGREEMENT_ROWS]) for member in members]
    spread = {}
    for name, values in zip(("reward", "cost"), zip(*predicted, strict=True), strict=True):
        added = np.stack([rows[:, 1:] - rows[:, :1] for rows in values])
        spread[name] = float(added.std(axis=0).mean()) if added.shape[-1] else 0.0
    return spread
