"""Fitting a neural model to a log: the response structure of each outcome, the ensemble, and its calibration.

`fit_neural` chooses how actions share strength by short trials and trains the outcome and transition networks;
`calibrated` calibrates the result on held-out users; `try_history` tests whether states need the users' history.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.engine.programs import kept
from redenvelope.models.calibration import CalibrationRows, TargetingChoice, calibrate
from redenvelope.models.dataset import Examples, Rows
from redenvelope.models.environment import bucket, filled
from redenvelope.models.networks import (
    OutcomeNetwork,
    TransitionNetwork,
    event_count,
    hat_count,
    outcome_names,
    piece_counts,
)
from redenvelope.models.neural_model import Architecture, NeuralModel, known_moves
from redenvelope.models.past_effects import PastScore, past_scores
from redenvelope.models.responses import (
    STRUCTURES,
    TRIAL,
    StructureChoice,
    allowed_structures,
    choose_structure,
    falls,
    ties,
    tried_structures,
)
from redenvelope.models.targets import STRUCTURE, OutcomeTargets, training_labels
from redenvelope.models.training import (
    NeuralSettings,
    Progress,
    Task,
    member_folds,
    new_task,
    outcome_loss,
    thinned,
    transition_loss,
)


@dataclass(frozen=True, eq=False)
class NeuralFit:
    """A trained model and the record of its training."""

    model: NeuralModel
    structures: tuple[StructureChoice, ...]
    """Response structure of the reward, then of each cost, [outcomes]."""
    epochs: int
    held_out_loss: dict[str, float]
    """Smallest held-out loss of each part, averaged over members."""
    disagreement: dict[str, float]
    """By outcome, the standard deviation between members of an action's effect relative to the cheapest action,
    averaged over held-out rows."""
    targeting: TargetingChoice | None = None
    """How much of the effects is kept; None without calibration."""

    def as_dict(self) -> dict[str, Any]:
        """All but the weights, as plain data for JSON."""
        structures = {f"{choice.outcome.replace(' ', '_')}_structure": asdict(choice) for choice in self.structures}
        return {
            "members": self.model.architecture.members,
            **structures,
            "epochs": self.epochs,
            "held_out_loss": self.held_out_loss,
            "disagreement": self.disagreement,
            "targeting": None if self.targeting is None else asdict(self.targeting),
        }


def fit_neural(
    examples: Examples, settings: NeuralSettings | None = None, seed: int = 0, progress: Progress | None = None
) -> NeuralFit:
    """Learn reward, costs and transition from the rows of a log and, if users leave, survival.

    Rows are not weighted by inverse propensity: the networks condition on everything the behaviour policy saw, so
    weights would only add noise (they matter to estimates that do not condition on the state).
    """
    settings = settings or NeuralSettings()
    task = new_task(examples, settings, seed)
    architecture = Architecture(
        layout=examples.layout,
        actions=examples.actions,
        events=event_count(task.targets),
        members=settings.members_for(len(examples), examples.campaign_steps),
        outcome_hidden=settings.outcome_hidden,
        transition_hidden=settings.transition_hidden,
        reward_structure=STRUCTURES[0],
        cost_structures=(STRUCTURES[0],) * examples.budgets,
        survival_structure=STRUCTURE if examples.leaves else None,
        attributes=0 if examples.attributes is None else len(examples.attributes),
        pieces=piece_counts(task.pieces),
    )
    seeds = [(seed, member) for member in range(architecture.members)]
    # The outcome and transition networks share nothing, so they are trained in parallel.
    with ThreadPoolExecutor(max_workers=1) as beside:
        untrained = architecture.networks(seed, task.starts, task.pieces)["transition"]
        moving = beside.submit(task.train, {"transition": untrained}, transition_loss, seeds)
        structures = choose_structures(task, architecture)
        reward, *costs = (choice.structure for choice in structures)
        architecture = replace(architecture, reward_structure=reward, cost_structures=tuple(costs))
        chosen = architecture.networks(seed, task.starts, task.pieces, examples.attributes)["outcome"]
        crossed = task.cross_fitted(architecture.members)
        earning = crossed.train({"outcome": chosen}, outcome_loss, seeds, progress)
    trained = (earning, moving.result())
    outcome = weighted(earning.networks["outcome"], task.columns)
    transition = trained[1].networks["transition"]
    known = known_moves(examples.history, examples.layout)
    model = NeuralModel(outcome, transition, task.targets, task.scale, architecture, known)
    return NeuralFit(
        model=model,
        structures=structures,
        epochs=earning.epochs,
        held_out_loss={part: float(np.mean(best)) for each in trained for part, best in each.best.items()},
        disagreement=_disagreement(model, np.asarray(task.held_out.states[: settings.disagreement_rows])),
    )


def calibrated(fit: NeuralFit, train: Examples, tune: Examples, settings: NeuralSettings, seed: int) -> NeuralFit:
    """The fit with its outcomes calibrated on its training users and on tune users."""
    if fit.model.actions < 2:
        return fit
    model, members = fit.model, fit.model.architecture.members
    fold = member_folds(train, settings, members, seed)

    def told(examples: Examples, some: NDArray[np.int64], by: NeuralModel = model) -> CalibrationRows:
        some = thinned(some, settings.calibration_rows)
        return CalibrationRows.of(by.predict(np.ascontiguousarray(examples.states[some])), examples, some)

    tuned = told(tune, np.arange(len(tune)))
    if fold is None:
        rows, held = train.split_users(settings.held_out_share, seed)
        untrained = told(train, held).beside(tuned)
        everyone = untrained.beside(told(train, rows))
    else:
        untrained = tuned
        for member in range(members):
            untrained = untrained.beside(told(train, np.flatnonzero(fold == member), model.of_member(member)))
        everyone = tuned.beside(told(train, np.arange(len(train))))
    calibration, targeting = calibrate(everyone, untrained, hat_count(train.layout))
    return replace(fit, model=replace(model, calibration=calibration), targeting=targeting)


def _disagreement(model: NeuralModel, states: NDArray[np.float32]) -> dict[str, float]:
    predicted = np.stack([model.of_member(member).predict(states) for member in range(model.architecture.members)])
    added = predicted[..., 1:] - predicted[..., :1]
    spread = added.std(axis=0).mean(axis=(1, 2)) if added.shape[-1] else np.zeros(added.shape[1])
    return dict(zip(outcome_names(model.budgets), spread.tolist(), strict=True))


def choose_structures(task: Task, architecture: Architecture) -> tuple[StructureChoice, ...]:
    """The structure of each outcome, [outcomes]: the given one, or one chosen by a trial on held-out users."""
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
        allowed = allowed_structures(_contradictions(task, place), tuple(tried[name]))
        choices.append(choose_structure(name, {known: tried[name][known] for known in allowed}))
    return tuple(choices)


def trial_losses(task: Task, architecture: Architecture) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Loss of every held-out row [rows], of each outcome, after training with each structure."""
    names = outcome_names(task.examples.budgets)
    costs = (TRIAL,) * len(names[1:])
    trial = replace(architecture, members=1, reward_structure=TRIAL, cost_structures=costs, survival_structure=None)
    attributes = task.examples.attributes
    untrained = trial.networks(task.seed, task.starts, task.pieces, attributes)["outcome"]
    structures = tried_structures(architecture.actions, attributes)
    members = [_on_trial(untrained, place) for place in range(len(structures))]
    networks = jax.tree.map(lambda *arrays: np.concatenate([np.asarray(array) for array in arrays]), *members)
    # All trials use the same order of rows, so that they differ only in the structure.
    seeds = [(task.seed, 0)] * len(structures)
    trained = weighted(task.train({"outcome": networks}, outcome_loss, seeds).networks["outcome"], task.columns)
    count = len(task.held_out.action)
    losses = np.asarray(row_losses(trained, task.targets, filled(task.held_out, bucket(count))), np.float64)
    return {
        outcome: {name: losses[place, number, :count] for place, name in enumerate(structures)}
        for number, outcome in enumerate(names)
    }


def weighted(networks: OutcomeNetwork, columns: NDArray[np.float32]) -> OutcomeNetwork:
    """Networks (arrays with a leading axis [members]) with the weights of the columns, as in training, built in."""
    found: OutcomeNetwork = jax.tree.map(np.asarray, _weighted(networks, columns))
    return found


@kept
def _weighted(networks: OutcomeNetwork, columns: NDArray[np.float32]) -> OutcomeNetwork:
    found: OutcomeNetwork = jax.vmap(lambda member: member.weighted(columns))(networks)
    return found


@kept
def row_losses(network: OutcomeNetwork, targets: OutcomeTargets, rows: Rows) -> jax.Array:
    """Loss of every row and outcome under every member, [members, outcomes, rows]."""
    losses: jax.Array = jax.vmap(lambda member: member.losses(rows, targets))(network)
    return losses


def _on_trial(network: OutcomeNetwork, place: int) -> OutcomeNetwork:
    """The network (arrays with a leading axis [1]) with the structure at index `place` active."""
    slot = np.eye(network.responses[0].slot.shape[-1], dtype=np.float32)[None, place]  # type: ignore[attr-defined]

    def slots(part: Any) -> list[Any]:
        return [response.slot for response in part.responses]

    chosen: OutcomeNetwork = eqx.tree_at(slots, network, [slot] * len(network.responses))
    return chosen


def _contradictions(task: Task, place: int) -> list[tuple[int, int]]:
    """Pairs of actions that contradict a monotone response of the outcome at index `place`."""
    examples, rows = task.examples, task.rows
    outcomes, action = examples.outcomes[:, rows], examples.action[rows]
    used, labels = training_labels(task.targets.all[place], outcomes[place], outcomes[0], action)
    propensity = examples.propensity[rows]
    fallen = falls(labels[used], action[used], propensity[used], examples.actions)
    return fallen + ties(outcomes[1], action, propensity, examples.actions)


# Should states contain the history? A trial of networks on held-out users, and a score test on all of them.
#
# The trial trains two members that differ only in seeing the history, which helps only if it gains more than learning
# it costs. The score test needs no network: within steps and actions, outcomes and history are regressed on the state's
# columns and their products; if the state is complete, the residuals are uncorrelated.

_TRIED = STRUCTURES[2]  # the most flexible that shares strength, so that its restrictions do not look like history
_ERRORS = 3.0
"""Standard errors by which the loss must fall; for two losses, chance does this about once in several hundred cases."""
_MATERIAL = 0.001
"""Share of the loss before training by which a loss must change to matter: with a certain next state, the last digits
of two networks can differ by hundreds of standard errors."""
_HARM = 1.0
"""Standard errors by which the outcomes' loss may rise while the transition's falls: a larger rise means that the
transition is merely approximated better, not that history matters."""


@dataclass(frozen=True)
class HistoryChoice:
    """Whether states contain the history, and why."""

    included: bool
    gains: dict[str, float]
    """Fall of each network's held-out loss with the history, in standard errors."""
    scores: tuple[PastScore, ...] = ()
    """How strongly the reward and each cost depend on the history beyond the state."""

    @property
    def reason(self) -> str:
        """The reason in one sentence."""
        falls = ", ".join(f"{gain:.1f} standard errors for the {name}" for name, gain in self.gains.items())
        plain = max((score for score in self.scores if score.is_plain), key=lambda score: score.errors, default=None)
        if plain is not None:
            return (
                f"the history matters beyond the state: outcomes depend on it by {plain.errors:.0f} standard errors, "
                f"{plain.share:.1%} of what the state does not explain (with it, the loss of networks falls by {falls})"
            )
        verdict = "helps" if self.included else "does not help"
        return (
            f"the history {verdict} on held-out users: with it, the loss of networks falls by {falls} "
            f"({_ERRORS:g} are required)"
        )


class Sighted(eqx.Module):
    """Outcome and transition networks, with or without sight of the history."""

    outcome: OutcomeNetwork
    transition: TransitionNetwork
    sight: jax.Array
    """1 sees the history, 0 does not, []; not learned."""

    def losses(self, rows: Rows, constants: Any) -> dict[str, jax.Array]:
        """Loss of every row, [rows], of each network."""
        targets, scale, _ = constants
        layout = self.transition.layout
        seen = jnp.ones(layout.width).at[layout.history].set(jax.lax.stop_gradient(self.sight))
        own = rows._replace(states=jnp.asarray(rows.states) * seen)
        found = {"outcome": self.outcome.losses(own, targets).sum(axis=0)}
        if layout.predicted_width:
            found["transition"] = self.transition.loss(own, scale)
        return found


def try_history(examples: Examples, settings: NeuralSettings, seed: int) -> HistoryChoice:
    """Test whether states need the history: by a trial on held-out users, and by a score test on all users.

    Either suffices: estimators that check a plan need a history that matters even if networks gain nothing by it.
    """
    task = new_task(examples, settings, seed).of_trial()
    architecture = Architecture(
        layout=examples.layout,
        actions=examples.actions,
        events=event_count(task.targets),
        members=1,
        outcome_hidden=settings.outcome_hidden,
        transition_hidden=settings.transition_hidden,
        reward_structure=_TRIED,
        cost_structures=(_TRIED,) * examples.budgets,
        survival_structure=STRUCTURE if examples.leaves else None,
        pieces=piece_counts(task.pieces),
    )
    one = architecture.networks(seed, task.starts, task.pieces)
    both = {name: jax.tree.map(lambda array: np.repeat(np.asarray(array), 2, axis=0), one[name]) for name in one}
    networks = Sighted(both["outcome"], both["transition"], jax.device_put(np.array([0.0, 1.0], np.float32)))
    trained = task.train({"sighted": networks}, sighted_loss, [(seed, 0)] * 2).networks["sighted"]
    gains = _gains(task, networks, trained)
    scores = past_scores(examples)
    helps = _helps(gains["outcome"], gains.get("transition", 0.0))
    return HistoryChoice(helps or any(score.is_plain for score in scores), gains, scores)


def _helps(outcome: float, transition: float) -> bool:
    """Whether gains, in standard errors, favour the history; outcomes count most, because plans are made for them."""
    return (outcome > _ERRORS and transition > -outcome) or (transition > _ERRORS and outcome > -_HARM)


def sighted_loss(networks: Any, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """Loss of every row under one member, summed over its networks (a training `Loss`)."""
    losses = networks["sighted"].losses(rows, constants)
    return {"sighted": jnp.stack(list(losses.values())).sum(axis=0)}


@kept
def _row_losses(networks: Sighted, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """Loss of every row, [members, rows], of each network."""
    losses: dict[str, jax.Array] = jax.vmap(lambda member: member.losses(rows, constants))(networks)
    return losses


def _gains(task: Task, untrained: Sighted, trained: Sighted) -> dict[str, float]:
    """Fall of each network's held-out loss with the history, in standard errors clustered by user; 0 if the change is
    immaterial."""
    count, constants = len(task.held_out.action), (task.targets, task.scale, task.columns)
    held = filled(task.held_out, bucket(count))
    before, after = (_row_losses(networks, constants, held) for networks in (untrained, trained))
    users = np.searchsorted(task.examples.starts, task.held_rows, side="right")
    gains = {}
    for name, rows in after.items():
        losses, start = np.asarray(rows, np.float64)[:, :count], float(np.asarray(before[name])[0, :count].mean())
        fall = float((losses[0] - losses[1]).mean())
        gains[name] = 0.0 if abs(fall) <= _MATERIAL * abs(start) else _errors(losses, users)
    return gains


def _errors(losses: NDArray[np.float64], users: NDArray[np.intp]) -> float:
    """The fall between losses [without and with history, rows] in standard errors, clustered by users [rows]."""
    fall = np.bincount(users, losses[0] - losses[1])[np.bincount(users) > 0]
    error = fall.std() * np.sqrt(len(fall))
    return float(fall.sum() / error) if error > 0 else 0.0
