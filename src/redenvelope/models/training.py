"""Mini-batch training, compiled end to end: all members of an ensemble at once, no Python inside a pass over a chunk.

`train` runs Adam with weight decay and early stopping on held-out rows. `Task` holds the training data of a neural
model: rows, held-out rows, targets and initial scores. `NeuralSettings` and `TrainingSettings` are the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from redenvelope.engine.programs import kept
from redenvelope.errors import ModelError
from redenvelope.models.dataset import Examples, Rows, column_weights
from redenvelope.models.environment import bucket, filled
from redenvelope.models.networks import StatePieces, TailScale, state_pieces, tail_scale
from redenvelope.models.targets import OutcomeTargets, Survival, outcome_targets, starting_odds, starting_scores

Networks = Any
"""A dictionary of equinox modules, one per part of the model; every array has a leading axis [members]."""
Loss = Callable[[Networks, Any, Rows], dict[str, jax.Array]]
"""(networks of one member, constants, rows) -> loss of every row, [rows], of each part. A module-level function."""
ChunkSource = Callable[[int], Iterable[Rows]]
"""Epoch -> the training rows in chunks: from memory, a memory map or a stream."""


class MemberFolds(NamedTuple):
    """Cross-fitting within an ensemble: the fold of users of each row; member k is trained without fold k."""

    rows: NDArray[np.int64]
    """Folds of the training rows, [rows]."""
    held_out: NDArray[np.int64]
    """Folds of the held-out rows, [held-out rows]: a member is evaluated on those of its own fold."""


Progress = Callable[[int, int], None]
"""Called with (epochs done, most epochs) after every epoch."""

_EVALUATION_ROWS = 1_024  # a block of this size stays in the cache
_DECAYED = ("weights", "tables")
_WARM_UP_SHARE = 0.05


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of training; the defaults are the shortest training that earns as much as a longer one on logs of the
    envelopes campaign (docs/guides/horizon-and-temperature.md has the curve)."""

    learning_rate: float = 1e-2
    """Peak of the learning rate, which warms up and then decays to zero along a cosine."""
    weight_decay: float = 0.3
    batch_rows: int = 1_024
    steps: int = 2_500
    """Planned steps, rounded to whole epochs between `epochs_least` and `epochs_most`."""
    epochs_least: int = 4
    epochs_most: int = 30
    patience: int = 10
    """Training stops after this many epochs without a better held-out loss in any part."""
    chunk_rows: int = 1_000_000
    """Rows in memory at once; rows are shuffled within a chunk."""

    def epochs(self, rows: int) -> int:
        """Epochs for a number of rows."""
        return int(np.clip(round(self.steps * self.batch_rows / rows), self.epochs_least, self.epochs_most))

    def suited(self, rows: int) -> TrainingSettings:
        """The same if there are enough rows for the planned steps, else with half the epochs of half as large batches:
        as many steps, which matter most on a small log. On large logs the noise of small batches costs reward."""
        if self.steps * self.batch_rows <= self.epochs_most * rows:
            return self
        batch_rows, epochs = max(1, min(self.batch_rows, rows) // 2), max(self.epochs_least, self.epochs_most // 2)
        return replace(self, batch_rows=batch_rows, epochs_most=epochs)


@dataclass(frozen=True, eq=False)
class Training:
    """Trained networks, and how training went."""

    networks: Networks
    """For every part and member, the parameters with the lowest held-out loss."""
    epochs: int
    """Epochs run."""
    held_out: dict[str, list[list[float]]] = field(default_factory=dict)
    """Held-out loss of each part, [epochs][members]."""
    best: dict[str, list[float]] = field(default_factory=dict)
    """Lowest held-out loss of each part, [members]."""


def train(
    networks: Networks,
    constants: Any,
    loss: Loss,
    source: ChunkSource,
    rows: int,
    held_out: Rows,
    settings: TrainingSettings,
    seeds: Sequence[tuple[int, ...]],
    progress: Progress | None = None,
    fill: Fill | None = None,
    folds: MemberFolds | None = None,
) -> Training:
    """Train every member on `rows` rows from `source`, in an order given by its entry of `seeds`.

    With `folds`, the source must have one chunk, and a member learns from all rows outside its own fold. The learning
    rate is scheduled over all epochs; training stops earlier when the held-out loss no longer falls. Trainings on the
    same rows can share `fill`, which then holds the rows once.
    """
    own = None if folds is None else [np.flatnonzero(folds.rows != member) for member in range(len(seeds))]
    rows = rows if own is None else min(map(len, own))
    epochs = settings.epochs(rows)
    steps = max(1, epochs * (rows // min(settings.batch_rows, rows)))
    moments, structure = _first_moments(networks), jax.tree.structure(networks)
    rates = np.asarray([settings.learning_rate, settings.weight_decay, steps], np.float32)
    evaluation = _Filled.of(held_out)
    counted = None if folds is None else np.arange(len(seeds))[:, None] == folds.held_out
    best_networks, best = _on_host(networks), _evaluate(loss, networks, constants, evaluation, counted)
    history: dict[str, list[list[float]]] = {part: [] for part in best}
    fill = fill or Fill()
    waited, epoch = 0, 0
    for epoch in range(1, epochs + 1):
        for number, chunk in enumerate(source(epoch)):
            filled_chunk = fill(chunk)
            order = _batches(filled_chunk.real, settings.batch_rows, [(*seed, epoch, number) for seed in seeds], own)
            arrays, found = _train_chunk(
                loss, networks, moments, constants, filled_chunk.rows, *_filled_order(order, filled_chunk), rates
            )
            # As numpy arrays, like the first call's; for jax arrays another program would be compiled.
            networks = jax.tree.unflatten(structure, _on_host(arrays))
            moments = optax.ScaleByAdamState(*_on_host(found))
        losses = _evaluate(loss, networks, constants, evaluation, counted)
        improved = {part: losses[part] < best[part] for part in losses}
        best_networks = {part: _choose(improved[part], networks[part], best_networks[part]) for part in best_networks}
        best = {part: np.minimum(best[part], losses[part]) for part in losses}
        for part, values in losses.items():
            history[part].append([float(value) for value in values])
        waited = 0 if any(value.any() for value in improved.values()) else waited + 1
        if progress is not None:
            progress(epoch, epochs)
        if waited >= settings.patience:
            break
    if not all(np.isfinite(values).all() for values in best.values()):
        raise ModelError("training did not settle on finite numbers; check the log for extreme rewards or costs")
    return Training(
        jax.device_put(best_networks), epoch, history, {part: values.tolist() for part, values in best.items()}
    )


class _Filled(NamedTuple):
    """Rows padded to one of few shapes, because every new shape has to be compiled."""

    rows: Rows
    """On the device, padded with zeros."""
    real: int
    """Number of rows before padding."""

    @classmethod
    def of(cls, rows: Rows) -> _Filled:
        """Pad rows to their bucket."""
        count = len(rows.action)
        return cls(jax.device_put(filled(rows, bucket(count))), count)


class Fill:
    """Pads chunks to few shapes; a chunk that comes again, in another epoch or thread, is padded only once."""

    def __init__(self) -> None:
        self._last: tuple[Rows, _Filled] | None = None
        self._lock = Lock()

    def __call__(self, chunk: Rows) -> _Filled:
        """The padded chunk."""
        with self._lock:
            if self._last is None or self._last[0] is not chunk:
                self._last = (chunk, _Filled.of(chunk))
            return self._last[1]


def _on_host(networks: Networks) -> Networks:
    return jax.tree.map(np.asarray, networks)


def _adam() -> optax.GradientTransformation:
    return optax.scale_by_adam(b2=0.99)


def _first_moments(networks: Networks) -> optax.ScaleByAdamState:
    """Adam's state before the first step, every array with a leading axis [members]."""
    # In numpy: outside a compiled function, jax would compile a program for every shape.
    leaves = jax.tree.leaves(networks)
    members = len(leaves[0])
    zeros = np.zeros((members, sum(leaf.size for leaf in leaves) // members), np.float32)
    return optax.ScaleByAdamState(count=np.zeros(members, np.int32), mu=zeros, nu=zeros)


def _decayed(network: Networks) -> jax.Array:
    """1 for parameters with weight decay (weights, tables), 0 for others (levels, biases, shapes), [parameters]."""

    def mark(path: tuple[Any, ...], value: jax.Array) -> jax.Array:
        names = (str(getattr(entry, "name", getattr(entry, "key", ""))) for entry in path)
        decayed = any(name.endswith(_DECAYED) for name in names)
        return jnp.full_like(value, float(decayed))

    return ravel_pytree(jax.tree_util.tree_map_with_path(mark, network))[0]


def _rate(step: jax.Array, rates: NDArray[np.float32]) -> jax.Array:
    """Learning rate at a step: a short warm-up, then a cosine to zero."""
    progress = step / rates[2]
    warm = jnp.minimum(1.0, (progress + 1.0 / rates[2]) / _WARM_UP_SHARE)
    rate: jax.Array = rates[0] * warm * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(progress, 1.0)))
    return rate


def _batches(
    rows: int, batch_rows: int, seeds: Sequence[tuple[int, ...]], own: Sequence[NDArray[np.int64]] | None = None
) -> NDArray[np.int32]:
    """Rows of every batch of every member, [batches, members, batch rows], drawn from all rows or each member's `own`.

    Rows that do not fill a batch are left out of this pass.
    """
    among = own or [np.arange(rows)] * len(seeds)
    least = min(map(len, among))
    size = min(batch_rows, least)
    orders = [
        np.random.default_rng(seed).permutation(each)[: least // size * size]
        for seed, each in zip(seeds, among, strict=True)
    ]
    return np.stack([order.reshape(-1, size) for order in orders], axis=1).astype(np.int32)


def _filled_order(order: NDArray[np.int32], chunk: _Filled) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """An order padded to the number of batches in the chunk's bucket, and the number of batches before padding."""
    batches = len(chunk.rows.action) // order.shape[2]
    return filled(order, max(batches, len(order))), np.asarray(len(order), np.int32)


def _chunk_trained(
    loss: Loss,
    networks: Networks,
    moments: Any,
    constants: Any,
    chunk: Rows,
    order: NDArray[np.int32],
    batches: NDArray[np.int32],
    rates: NDArray[np.float32],
) -> tuple[list[jax.Array], Any]:
    """The networks' arrays and Adam's moments after one pass over a chunk: the first `batches` of `order` [batches at
    most, members, batch rows]."""
    # The optimiser sees the parameters as one vector: one fused loop instead of one per matrix.
    one_member = jax.tree.map(lambda array: array[0], networks)
    unravel = ravel_pytree(one_member)[1]
    decayed = _decayed(one_member)

    def member(flat: jax.Array, moment: Any, taken: jax.Array) -> tuple[jax.Array, Any]:
        batch = jax.tree.map(lambda column: column[taken], chunk)
        gradient = jax.grad(lambda trained: _mean_loss(loss(unravel(trained), constants, batch)))(flat)
        rate = _rate(moment.count.astype(jnp.float32), rates)
        update, moment = _adam().update(gradient, moment)
        return flat - rate * (update + rates[1] * decayed * flat), moment

    def one_step(position: jax.Array, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        stepped: tuple[jax.Array, Any] = jax.vmap(member)(*carry, jnp.asarray(order)[position])
        return stepped

    start = jax.vmap(lambda network: ravel_pytree(network)[0])(networks)
    flat, moments = jax.lax.fori_loop(0, batches, one_step, (start, moments))
    return jax.tree.leaves(jax.vmap(unravel)(flat)), tuple(moments)


_train_chunk = kept(_chunk_trained, static=1)


def _mean_loss(losses: dict[str, jax.Array]) -> jax.Array:
    """The loss of a batch: the mean over its rows, summed over the parts."""
    return jnp.stack([rows.mean() for rows in losses.values()]).sum()


def _evaluate(
    loss: Loss, networks: Networks, constants: Any, held_out: _Filled, counted: NDArray[np.bool_] | None = None
) -> dict[str, np.ndarray]:
    """Mean loss of each part for each member, [members], over all held-out rows or those `counted` [members, rows];
    blocks of rows are summed in float64."""
    members = len(jax.tree.leaves(networks)[0])
    counted = np.ones((members, held_out.real), np.bool_) if counted is None else counted
    padded = np.pad(counted, ((0, 0), (0, len(held_out.rows.action) - held_out.real)))
    sums = _block_losses(loss, networks, constants, held_out.rows, padded)
    return {part: np.asarray(values, np.float64).sum(axis=0) / counted.sum(axis=1) for part, values in sums.items()}


def _losses_by_block(
    loss: Loss, networks: Networks, constants: Any, rows: Rows, counted: NDArray[np.bool_]
) -> dict[str, jax.Array]:
    """Sums of the losses of each part over the `counted` rows [members, rows] of each block, [blocks, members]."""
    length = len(rows.action)
    size = min(_EVALUATION_ROWS, length)

    def by_block(column: jax.Array) -> jax.Array:
        return column.reshape(length // size, size, *column.shape[1:])

    def block(part: tuple[Rows, jax.Array]) -> dict[str, jax.Array]:
        losses = jax.vmap(lambda network: loss(network, constants, part[0]))(networks)
        added: dict[str, jax.Array] = jax.tree.map(lambda values: jnp.where(part[1].T, values, 0.0).sum(axis=1), losses)
        return added

    sums: dict[str, jax.Array] = jax.lax.map(block, jax.tree.map(by_block, (rows, jnp.asarray(counted).T)))
    return sums


_block_losses = kept(_losses_by_block, static=1)


def _choose(improved: NDArray[np.bool_], new: Any, old: Any) -> Any:
    """The new parameters of members that improved [members], the old ones of the others; in numpy."""

    def choose(one: Any, other: NDArray[Any]) -> NDArray[Any]:
        chosen = np.array(other)
        chosen[improved] = np.asarray(one)[improved]
        return chosen

    return jax.tree.map(choose, new, old) if improved.any() else old


@dataclass(frozen=True)
class NeuralSettings:
    """The networks of a neural model and their training; the defaults suit a thousand users as well as a million."""

    outcome_hidden: tuple[int, ...] = (64, 64)
    transition_hidden: tuple[int, ...] = (64,)
    pieces: int = 8
    """Most pieces of a number (see `Pieces`); 0 leaves numbers whole."""
    pieces_in_all: int = 96
    """Most pieces of all numbers."""
    members: int | None = None
    """Size of the ensemble; None is `ensemble`, or fewer from `enough_rows` rows on."""
    ensemble: int = 4
    """Members on small logs: their mean averages out noise, and each is trained without a fold of users, which then
    serves for calibration."""
    few_decisions: int = 10_000
    """In a campaign of one step, there are twice as many below this many rows: each learns from more of the users."""
    enough_rows: int = 40_000
    """From this many rows on, one member earns as much as four, and trains and decides four times as fast."""
    enough_decisions: int = 160_000
    """In a campaign of one step, there are two members below this many rows, so that each one's held-out fold can
    measure how users differ."""
    reward_structure: str | None = None
    """How the actions share strength for the reward; None chooses on held-out users."""
    cost_structure: str | None = None
    """The same for every cost."""
    held_out_share: float = 0.1
    """Share of held-out users, who decide when to stop and which structure is chosen."""
    held_out_rows: int = 30_000
    """Most held-out rows: the noise of a mean over this many is small."""
    trial_rows: int = 50_000
    """Most rows of a trial: with more, structures differ too little to matter."""
    trial_share: float = 0.15
    """Share of the training steps that a trial takes, in at most half of the epochs: it only ranks structures."""
    trial_batch_rows: int = 512
    """Most rows of a trial's batch."""
    calibration_rows: int = 100_000
    """Most rows of each fold that outcomes are calibrated on."""
    disagreement_rows: int = 8_192
    """Most held-out rows that the disagreement between members is measured on."""
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def members_for(self, rows: int, steps: int) -> int:
        """Members of a model learned from `rows` rows of a campaign of `steps` steps."""
        if self.members:
            return self.members
        if rows < self.enough_rows:
            return self.ensemble * (2 if steps == 1 and rows < self.few_decisions else 1)
        return 2 if steps == 1 and rows < self.enough_decisions else 1


@dataclass(frozen=True, eq=False)
class Task:
    """The training data and settings of the networks."""

    examples: Examples
    rows: NDArray[np.int64]
    held_out: Rows
    held_rows: NDArray[np.int64]
    """Indices of the held-out rows, [held-out rows]."""
    targets: OutcomeTargets
    scale: TailScale
    starts: NDArray[np.float64]
    """Initial scores of the outcomes and, if users leave, of survival, [responses, actions]."""
    pieces: StatePieces
    """Pieces of the numbers in states."""
    columns: NDArray[np.float32]
    """Weight of each column of a state as an input of the outcome network, [width]."""
    settings: NeuralSettings
    seed: int
    fill: Fill = field(default_factory=Fill)
    """Shared by all trainings on the same rows."""
    folds: MemberFolds | None = None
    """Folds of users, if every member is trained without one."""

    def cross_fitted(self, members: int) -> Task:
        """The task with cross-fitting: each of several members learns from all users outside its own fold."""
        fold = member_folds(self.examples, self.settings, members, self.seed)
        if fold is None:
            return self
        rows = np.arange(len(self.examples))
        held = thinned(rows, self.settings.held_out_rows)
        folds = MemberFolds(fold, fold[held])
        return replace(self, rows=rows, held_rows=held, held_out=self.examples.gather(held), folds=folds, fill=Fill())

    def shorter(self) -> Task:
        """A trial that learns the outcomes alone, without survival."""
        targets = OutcomeTargets(self.targets.reward, self.targets.costs)
        return replace(self.of_trial(), targets=targets, starts=self.starts[: len(targets.all)])

    def of_trial(self) -> Task:
        """A trial: fewer rows and fewer steps."""
        training = self.settings.training
        steps = round(self.settings.trial_share * training.steps)
        batch_rows = min(training.batch_rows, self.settings.trial_batch_rows)
        epochs = max(training.epochs_least, training.epochs_most // 2)
        shorter = replace(training, steps=steps, batch_rows=batch_rows, epochs_most=epochs)
        settings = replace(self.settings, training=shorter)
        return replace(self, rows=thinned(self.rows, settings.trial_rows), settings=settings, fill=Fill())

    def train(
        self, networks: Any, loss: Loss, seeds: Sequence[tuple[int, ...]], progress: Progress | None = None
    ) -> Training:
        """Train networks, whose arrays have a leading axis [members], with one seed per member."""
        constants = (self.targets, self.scale, self.columns)
        settings = self.settings.training
        source, rows = self._source, len(self.rows)
        return train(
            networks, constants, loss, source, rows, self.held_out, settings, seeds, progress, self.fill, self.folds
        )

    @cached_property
    def _source(self) -> ChunkSource:
        size = self.settings.training.chunk_rows
        if len(self.rows) <= size:
            everything = self.examples.gather(self.rows)
            return lambda epoch: [everything]

        # Chunks of about equal length: the last one must fill at least one batch.
        even = -(-len(self.rows) // -(-len(self.rows) // size))

        def chunks(epoch: int) -> Iterator[Rows]:
            return self.examples.chunks(self.rows, even)

        return chunks


_FOLDS = 4
"""Least number of folds of users: a member learns from at least three quarters of the users."""


def member_folds(examples: Examples, settings: NeuralSettings, members: int, seed: int) -> NDArray[np.int64] | None:
    """The fold of users of each row, [rows]: member k learns without fold k, and all learn from folds that belong to no
    member. None without cross-fitting, when all members learn from the same rows."""
    if members < 2 or len(examples) > settings.training.chunk_rows:
        return None
    count = max(_FOLDS, members)
    found = examples.folds(count, seed)
    return found if len(np.unique(found)) == count else None


def new_task(examples: Examples, settings: NeuralSettings, seed: int) -> Task:
    """Hold out users, and derive targets, scale and initial scores from the others."""
    rows, held_out = examples.split_users(settings.held_out_share, seed)
    held_rows = thinned(held_out, settings.held_out_rows)
    outcomes, action = examples.outcomes[:, rows], examples.action[rows]
    targets = outcome_targets(outcomes, action, examples.actions)
    starts = [
        starting_scores(target, value, outcomes[0], action, examples.actions)
        for target, value in zip(targets.all, outcomes, strict=True)
    ]
    if examples.leaves:
        targets = OutcomeTargets(targets.reward, targets.costs, Survival())
        starts.append(starting_odds(examples.stays[rows], action, examples.actions))
    return Task(
        examples=examples,
        rows=rows,
        held_out=examples.gather(held_rows),
        held_rows=held_rows,
        targets=targets,
        scale=tail_scale(examples, rows),
        starts=np.stack(starts),
        pieces=state_pieces(examples, rows, settings.pieces, settings.pieces_in_all),
        columns=column_weights(examples, thinned(rows, settings.trial_rows)),
        settings=replace(settings, training=settings.training.suited(len(rows))),
        seed=seed,
    )


def outcome_loss(networks: Any, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """Loss of every row under one member's outcome network, summed over the outcomes."""
    targets: OutcomeTargets = constants[0]
    return {"outcome": networks["outcome"].weighted(constants[2]).losses(rows, targets).sum(axis=0)}


def transition_loss(networks: Any, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """Loss of every row under one member's transition network."""
    scale: TailScale = constants[1]
    return {"transition": networks["transition"].loss(rows, scale)}


def thinned(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """About `most` of the rows, spread over the log, because the first users may differ from the last."""
    return rows[:: max(1, round(len(rows) / most))]
