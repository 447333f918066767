"""Fitted Q-iteration for a finite campaign, from the last step to the first: training code of `learning/soft_q.py`.

`learn_immediate` learns what does not depend on the price (outcomes of a step, behaviour policy), `fit_backward` the
values to go of each step from those of the next. `UserFolds` are the folds, `LearningSettings` the settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import IntArray
from redenvelope.errors import ModelError, UsageError
from redenvelope.models.dataset import Examples, Rows
from redenvelope.models.networks import (
    Folded,
    Immediate,
    OutcomeNetwork,
    ValueNetwork,
    WideDeep,
    networks_at,
    new_value_networks,
    slots,
    stack,
)
from redenvelope.models.responses import STRUCTURES, allowed_structures, falls, ties
from redenvelope.models.targets import (
    CostTarget,
    OutcomeTargets,
    RewardTarget,
    cost_target,
    reward_target,
    starting_scores,
    training_labels,
)
from redenvelope.models.training import ChunkSource, Training, TrainingSettings, train
from redenvelope.randomness import fold, fraction
from redenvelope.wording import counted

# Fitted Q-iteration from the last step to the first: each step's values are a regression on the next step's.
#
# A campaign ends, so Q-learning needs no fixed point: the finished network of the next step is the target network. No
# network learns from its own estimates, and one pass over the steps suffices.
#
# Many prices are learned as few curves, the principal components of the targets (`aim_at`).


Targets = Callable[[ValueNetwork | None, NDArray[np.int64]], NDArray[np.float32]]
"""(networks of the next step, rows of a step) -> targets of the rows' values to go, [rows, heads, components].

The networks have a leading axis [folds]; they are None where the next step is the last.
"""

# Targets have variance one: a constant has a loss of 0.5, and a loss this large means divergence.
_DIVERGED_LOSS = 20.0


@dataclass(frozen=True, eq=False)
class Futures:
    """The networks of all steps but the last, and how their training went."""

    networks: ValueNetwork | None
    """Every array with leading axes [steps - 1, folds]; None in a campaign of one step."""
    bellman_error: NDArray[np.float64]
    """[steps - 1], see LearningReport."""
    epochs: tuple[int, ...]
    """[steps - 1]"""


def fit_backward(
    examples: Examples,
    folds: UserFolds,
    targets: Targets,
    heads: int,
    components: int,
    settings: LearningSettings,
    seed: int,
    warm: ValueNetwork | None = None,
    progress: StageProgress | None = None,
) -> Futures:
    """Learn the values to go after an action at every step but the last.

    `warm` [steps - 1, folds] are networks for the same heads to start from; without them, a step starts from the next
    one. After a user's last row the value to go is zero; a row before a gap in the log is not used.
    """
    stages = folds.steps - 1
    usable = examples.continues | examples.is_last
    networks = new_value_networks(
        examples.layout, examples.actions, heads, components, settings.hidden, settings.advantage_rank,
        settings.most_curves, folds.count, seed,
    )  # fmt: skip
    found: list[ValueNetwork] = []
    errors, epochs = [], []
    for stage in reversed(range(stages)):
        rows = np.flatnonzero(usable & (folds.step == stage))
        target = targets(found[-1] if found else None, rows)
        aim = aim_at(networks_at(warm, stage) or networks, target, folds.fold[rows] >= 0)
        training, held_out = folds.split(rows, f"step {stage + 1} of the campaign")
        result = train(
            {"future": aim.networks},
            None,
            future_loss,
            always(gather(examples, training, aim.target[np.searchsorted(rows, training)])),
            len(training),
            gather(examples, held_out, aim.target[np.searchsorted(rows, held_out)]),
            settings.future,
            [(seed, 1 + stage, fold) for fold in range(folds.count)],
        )
        _require_sane(result, stage)
        networks = jax.tree.map(np.asarray, result.networks["future"])
        found.append(networks)
        errors.append(float(np.sqrt(2 * np.mean(result.best["future"]) + aim.lost)))
        epochs.append(result.epochs)
        if progress is not None:
            progress(1 + len(found), 1 + stages)
    stacked = stack(found[::-1]) if found else None
    return Futures(stacked, np.array(errors[::-1]), tuple(epochs[::-1]))


def future_loss(networks: Any, constants: Any, rows: Any) -> dict[str, jax.Array]:
    """Bellman loss of every row under one fold's value network, on FoldedRows (a training `Loss`)."""
    return {"future": _squared_error(networks["future"], rows)}


def _squared_error(network: ValueNetwork, rows: FoldedRows) -> jax.Array:
    """Half the squared error of the logged action's curves, in units of the heads' own variance, [rows]."""
    states, action, target = (pick(column, network.slot) for column in (rows.states, rows.action, rows.target))
    raw = network.network(states).reshape(len(states), network.level.shape[0], 1 + network.shapes.shape[0])
    taken = jax.nn.one_hot(action, network.level.shape[1])
    # Only the logged action's score is needed and computed.
    score = raw[..., 0] + taken @ network.level.T
    # Sums of products are fused into one loop; a small matrix product per row would not be.
    score = score + (raw[..., 1:] * (taken @ network.advantages().T)[:, None]).sum(axis=-1)
    # The share of the heads' variance in each curve.
    weight = jnp.square(jax.lax.stop_gradient(network.basis)).mean(axis=(1, 2))
    return 0.5 * (jnp.square(target - score) @ weight)


def _require_sane(training: Training, stage: int) -> None:
    """Raise ModelError if the held-out Bellman error diverged."""
    last = np.asarray(training.held_out["future"][-1])
    if np.isfinite(last).all() and (last < _DIVERGED_LOSS).all():
        return
    raise ModelError(
        f"learning diverged at step {stage + 1} of the campaign: after {counted(training.epochs, 'epoch')} the "
        f"held-out Bellman error is {np.sqrt(2 * np.max(last)):.3g} standard deviations of the targets; lower the "
        "learning rate, or check the log for extreme rewards or costs"
    )


_LEAST_VARIANCE = 1e-6  # share of all variance below which a curve is only rounding


class Aim(NamedTuple):
    """Networks and targets expressed in the same centre, scale and curves."""

    networks: ValueNetwork
    """Networks with about the same predictions as before."""
    target: NDArray[np.float32]
    """Coefficient of every curve, [rows, curves]."""
    lost: float
    """Share of the targets' variance outside the curves."""


def aim_at(networks: ValueNetwork, target: NDArray[np.float32], training: NDArray[np.bool_]) -> Aim:
    """Express networks (leading axis [folds]) in curves of targets [rows, heads, components].

    `training` [rows] marks the rows that are not held out, which centre, scale and curves are computed from.
    """
    used = target[training]
    centre = used.mean(axis=0, dtype=np.float64)
    scale = used.std(axis=0, dtype=np.float64)
    # A target that hardly varies (such as no cost to go) is its mean; dividing by its scale would amplify noise.
    scale = np.where(scale > 1e-6 * (1.0 + np.abs(centre)), scale, 1.0)
    standard = ((target - centre.astype(np.float32)) / scale.astype(np.float32)).reshape(len(target), -1)
    curves = networks.basis.shape[1]
    if curves == standard.shape[1]:
        return Aim(_set(networks, np.asarray(networks.basis[0]), centre, scale), standard, 0.0)
    used = standard[training]
    variances, directions = np.linalg.eigh((used.T @ used).astype(np.float64) / len(used))
    largest, directions = variances[::-1][:curves], directions[:, ::-1][:, :curves]
    # Curves have variance one, so that all are learned equally fast; one that hardly varies is left at zero, for the
    # same reason as above.
    moves = largest > _LEAST_VARIANCE * variances.sum()
    heights = np.where(moves, np.sqrt(np.where(moves, largest, 1.0)), 0.0)
    inwards = directions * np.where(moves, 1.0 / np.where(moves, heights, 1.0), 0.0)
    turn = np.asarray(networks.basis[0], np.float64).reshape(curves, -1) @ inwards
    basis = (directions * heights).T.reshape(networks.basis.shape[1:])
    lost = max(0.0, 1.0 - float(np.square(heights).sum() / max(variances.sum(), 1e-12)))
    return Aim(_set(_turned(networks, turn), basis, centre, scale), standard @ inwards.astype(np.float32), lost)


def _set(
    networks: ValueNetwork, basis: NDArray[np.floating], centre: NDArray[np.float64], scale: NDArray[np.float64]
) -> ValueNetwork:
    folds = len(networks.slot)
    arrays = tuple(np.repeat(np.asarray(array, np.float32)[None], folds, axis=0) for array in (basis, centre, scale))
    done: ValueNetwork = eqx.tree_at(lambda network: (network.basis, network.centre, network.scale), networks, arrays)
    return done


def _turned(networks: ValueNetwork, turn: NDArray[np.float64]) -> ValueNetwork:
    """The networks in a new basis of curves: new coefficients are the old ones times `turn` [curves, curves]."""
    curves = len(turn)

    def outputs(array: Any) -> Any:
        # [folds, inputs, curves * (1 + rank)]: the outputs of a curve are adjacent.
        parts = np.asarray(array, np.float64).reshape(*array.shape[:2], curves, -1)
        return np.einsum("fikj,kl->filj", parts, turn).reshape(array.shape).astype(np.float32)

    def last_layers(network: ValueNetwork) -> list[Any]:
        inner = network.network
        return [network.level, inner.wide_weights, inner.deep_weights, inner.wide_tables]

    level, *layers = last_layers(networks)
    level = np.einsum("fka,kl->fla", np.asarray(level, np.float64), turn).astype(np.float32)
    turned: ValueNetwork = eqx.tree_at(last_layers, networks, [level, *jax.tree.map(outputs, layers)])
    return turned


# What does not depend on the price: the outcomes of a step, and the behaviour policy.


def learn_immediate(examples: Examples, folds: UserFolds, settings: LearningSettings, seed: int) -> Immediate:
    """Learn the outcomes of a step and the behaviour policy from all rows of a log.

    They are separate from the values to go: they need not be learned again at every price, and rows of all steps
    train them together, with targets of their own (a probability, an amount).
    """
    training, held_out = folds.split(np.arange(len(examples)), "anything")
    rows = np.unique(training)
    (reward, cost), action = examples.outcomes[:, rows], examples.action[rows]
    rewarding: RewardTarget = reward_target(reward)
    costing: CostTarget = cost_target(cost, reward, action, examples.actions)
    propensity = examples.propensity[rows]
    structures = tuple(
        settings.structure or _structure(target, value, (reward, cost), action, propensity)
        for target, value in ((rewarding, reward), (costing, cost))
    )
    networks = []
    for own in range(folds.count):
        generator = np.random.default_rng([seed, 0, own])
        outcome = OutcomeNetwork(
            examples.layout, examples.actions, settings.hidden, (structures[0], structures[1]), generator
        )
        # It only has to detect rare actions: one hidden layer suffices.
        behaviour = WideDeep(examples.layout, settings.hidden[-1:], examples.actions, generator)
        networks.append(
            {"outcome": _started(outcome, examples, training[:, own], rewarding, costing), "behaviour": behaviour}
        )
    stacked = stack(networks)
    result = train(
        {part: Folded(stacked[part], jax.device_put(slots(folds.count))) for part in stacked},
        (rewarding, costing),
        immediate_loss,
        always(gather(examples, training)),
        len(training),
        gather(examples, held_out),
        settings.immediate,
        [(seed, 0, fold) for fold in range(folds.count)],
    )
    if not np.isfinite([losses[-1] for losses in result.held_out.values()]).all():
        raise ModelError(
            "learning the outcomes of a step diverged: the held-out loss is not a number; lower "
            "the learning rate, or check the log for extreme rewards or costs"
        )
    parts = result.networks
    return Immediate(parts["outcome"], parts["behaviour"], rewarding, costing, examples.actions)


def immediate_loss(networks: Any, constants: Any, rows: Any) -> dict[str, jax.Array]:
    """Losses of every row under one fold's outcome and behaviour networks, on FoldedRows (a training `Loss`)."""
    rewarding, costing = constants
    slot = networks["outcome"].slot
    states, action, reward, cost = (pick(column, slot) for column in rows[:4])
    own = Rows(states, action, jnp.stack([reward, cost], axis=1), next_tail=states, continues=reward)
    losses = networks["outcome"].network.losses(own, OutcomeTargets(rewarding, (costing,)))
    scores = networks["behaviour"].network(states)
    taken = (scores * jax.nn.one_hot(action, scores.shape[1])).sum(axis=1)
    behaviour_loss = jax.scipy.special.logsumexp(scores, axis=1) - taken
    return {"outcome": losses.sum(axis=0), "behaviour": behaviour_loss}


def _started(
    network: OutcomeNetwork, examples: Examples, rows: NDArray[np.int64], rewarding: RewardTarget, costing: CostTarget
) -> OutcomeNetwork:
    """The network, starting from the means of its own fold's rows [any]: folds stay independent."""
    (reward, cost), action = examples.outcomes[:, rows], examples.action[rows]
    scores = [
        starting_scores(target, value, reward, action, examples.actions)
        for target, value in ((rewarding, reward), (costing, cost))
    ]
    return network.start(np.stack(scores))


def _structure(
    target: RewardTarget | CostTarget,
    value: NDArray[np.float64],
    both: tuple[NDArray[np.float64], NDArray[np.float64]],
    action: NDArray[np.int32],
    propensity: NDArray[np.float64],
) -> str:
    """The most restrictive structure that the log, whose rewards and costs are `both`, does not contradict."""
    used, labels = training_labels(target, value, both[0], action)
    actions = int(action.max()) + 1
    found = falls(labels[used], action[used], propensity[used], actions) + ties(both[1], action, propensity, actions)
    return allowed_structures(found, STRUCTURES)[0]


# Training data (users in folds, rows by step) and settings.


_HELD_OUT = -1


class FoldedRows(NamedTuple):
    """Rows of all folds side by side; the network of a fold reads its own column."""

    states: Any
    """[rows, folds, width]"""
    action: Any
    """[rows, folds]"""
    reward: Any
    """[rows, folds]"""
    cost: Any
    """[rows, folds]"""
    target: Any
    """Targets of the values to go, [rows, folds, curves]; None where only the step itself is learned."""


@dataclass(frozen=True, eq=False)
class UserFolds:
    """Which fold every row of a log belongs to."""

    fold: NDArray[np.int8]
    """[rows]; −1 is held out."""
    step: NDArray[np.int64]
    """Steps before this one, [rows]."""
    count: int
    """Number of folds."""
    steps: int
    """Steps of the campaign."""
    held_out_rows: int
    """Most held-out rows per split."""

    def unseen_weights(self, rows: IntArray) -> NDArray[np.float32]:
        """Weights [rows, folds] of the estimates that leave one fold out: 1 for the one that leaves out the user's own
        fold, or equal weights for a held-out user."""
        own = self.fold[rows][:, None] == np.arange(self.count)
        return np.where(own.any(axis=1, keepdims=True), own, 1.0 / self.count).astype(np.float32)

    def split(self, rows: IntArray, what: str) -> tuple[IntArray, IntArray]:
        """Training rows and held-out rows, both [.., folds], of some rows [any].

        A shorter fold repeats a few rows, so that all have equal length. Held-out rows are the same for all folds.
        """
        if not len(rows):
            raise ModelError(f"the log has no row of {what}; log users who reach it")
        parts = [rows[self.fold[rows] == fold] for fold in range(self.count)]
        parts = [part if len(part) else rows for part in parts]
        held = rows[self.fold[rows] == _HELD_OUT]
        held = held if len(held) else rows
        # Spread over the log, because the first users may differ from the last.
        held = held[:: -(-len(held) // self.held_out_rows)]
        longest = max(len(part) for part in parts)
        training = np.stack([np.resize(part, longest) for part in parts], axis=1)
        return training, np.repeat(held[:, None], self.count, axis=1)


def new_folds(examples: Examples, settings: LearningSettings, seed: int) -> UserFolds:
    """Assign users to folds by the hash of their ids, and hold out a share of them."""
    count, share = settings.folds, settings.held_out_share
    dealt = fold(examples.keys, count, "learning fold", seed).astype(np.int8)
    places = fraction(examples.keys, "learning held out", seed)
    # In a very small log the share may hold out nobody: then the user with the smallest hash is held out.
    dealt[places <= max(share, places.min(initial=1.0))] = _HELD_OUT
    if not 0 < share < 1 or examples.users < count + 1 or (dealt == _HELD_OUT).all():
        raise ModelError(
            f"cannot divide {counted(examples.users, 'user')} into {counted(count, 'fold')} and hold out {share:.0%}; "
            "log more users"
        )
    by_row = np.repeat(dealt, np.diff(examples.starts))
    return UserFolds(by_row, examples.step, count, examples.campaign_steps, settings.held_out_rows)


def gather(examples: Examples, rows: IntArray, target: NDArray[np.float32] | None = None) -> Any:
    """FoldedRows of rows [rows, folds]; `target` is [rows, folds, curves]."""
    return jax.device_put(
        FoldedRows(
            states=examples.states[rows],
            action=examples.action[rows].astype(np.int32),
            reward=examples.reward[rows].astype(np.float32),
            cost=examples.cost[rows].astype(np.float32),
            target=target,
        )
    )


def pick(column: jax.Array, slot: jax.Array) -> jax.Array:
    """One fold's part of a column: [rows, folds, ...] and a one-hot row [folds] -> [rows, ...]."""
    # A sum of products is fused with what follows; a gather would not be.
    shape = (1, -1) + (1,) * (column.ndim - 2)
    return (column * jax.lax.stop_gradient(slot).reshape(shape).astype(column.dtype)).sum(axis=1, dtype=column.dtype)


def always(chunk: Any) -> ChunkSource:
    """A source of the same rows at every epoch."""
    return lambda epoch: [chunk]


StageProgress = Callable[[int, int], None]
"""Called with (fits done, all fits): first the immediate outcomes, then one fit per step but the last."""


def _future_training() -> TrainingSettings:
    return TrainingSettings(
        learning_rate=3e-3, weight_decay=1e-2, batch_rows=512, steps=400, epochs_least=3, epochs_most=20, patience=3
    )


def _immediate_training() -> TrainingSettings:
    return TrainingSettings(batch_rows=1_024, steps=1_000, epochs_least=4, epochs_most=20, patience=4)


@dataclass(frozen=True)
class LearningSettings:
    """Settings of learning values; the defaults suit ten steps and 20,000 to 100,000 users."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of every network."""
    advantage_rank: int | None = 3
    """Rank of the dueling advantages over the actions; None is full rank."""
    most_curves: int = 6
    """Most curves over the prices in a value network. Values at neighbouring prices are correlated: in the envelopes
    campaign, six curves explain 96 to 99 % of the variance of rewards and costs to go at 13 prices, and noise leaves
    10 to 20 % that no network can learn."""
    knots: int = 13
    """Prices at which values for all prices are learned; in between they are interpolated."""
    structure: str | None = None
    """Response structure of the immediate outcomes; None chooses by the log (see models.responses)."""
    folds: int = 2
    """Folds of users, each with its own networks: one chooses the next action, another values it, which removes the
    upward bias of a maximum (double Q-learning). 1 is the plain, biased estimate."""
    held_out_share: float = 0.1
    """Share of held-out users, whose Bellman error decides when to stop."""
    held_out_rows: int = 20_000
    """Most held-out rows: the noise of a mean over this many is small."""
    least_chance: float = 0.005
    """Least estimated probability under the behaviour policy: an action that is rarer in a state is neither valued nor
    chosen there. 0 admits all actions."""
    lags: int = 3
    """Largest lag of an effect that the next state does not show: effects that held-out users confirm become part of
    the targets (see late_effects). 0 relies on the states alone."""
    discount: float = 1.0
    immediate: TrainingSettings = field(default_factory=_immediate_training)
    """Training of the immediate outcomes."""
    future: TrainingSettings = field(default_factory=_future_training)
    """Training of the values to go, once for each step but the last."""

    def __post_init__(self) -> None:
        for name, least in (("folds", 1), ("knots", 2), ("most_curves", 1), ("held_out_rows", 1), ("lags", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 0 <= self.least_chance < 1:
            raise UsageError(f"least_chance must be a probability below 1, not {self.least_chance}")
        if not 0 < self.discount <= 1:
            raise UsageError(f"discount must be above 0 and at most 1, not {self.discount}")
