"""Values to go, learned inside the learned model by backward induction, for all prices at once.

States of training users, and states that policies reach from them in the model, are backed up one step at a time from
the end of the campaign: what follows a step is the value to go of its mean successor, by the network of one step less.
Each network is a ridge regression, in closed form, on hidden units that all of them share; the units are trained once,
on what a first pass with random units found.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from redenvelope.arrays import Float32Array, FloatArray, IndexArray, IntArray
from redenvelope.engine.programs import kept
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.dataset import Rows
from redenvelope.models.environment import apply_outcomes, apply_steps, bucket, filled
from redenvelope.models.networks import WideDeep, stack
from redenvelope.models.training import TrainingSettings, train
from redenvelope.planning.leaf_values import LeafValues
from redenvelope.planning.planner import TreePlanner
from redenvelope.planning.tree import NodeMasks
from redenvelope.policies.eligibility_state import EligibilityState, allowed
from redenvelope.policies.policy import Constraint, normalised
from redenvelope.prices import PriceGrid, outcome_weights, unscaled_dual
from redenvelope.randomness import draw


@dataclass(frozen=True)
class ValueSettings:
    """Settings of learning values to go."""

    hidden: tuple[int, ...] = (64,)
    """Units of each hidden layer: one layer costs a decision little, and earned as much as two."""
    states: int = 1_500
    """Logged states, and states reached in the model, of each number of steps left; fewer in long campaigns."""
    states_in_all: int = 15_000
    """At most so many of each over all steps, but for `states_least` of each number of steps left."""
    states_least: int = 300
    knots: tuple[int, ...] = (24, 6, 3, 3)
    """Knots of each budget's prices, for one budget, two, three and four; with more, trees stand alone. As many points
    as programs are compiled for (`planning/choice.py: SOME_PRICES`), or a little fewer."""
    first_knots: tuple[int, ...] = (8, 4, 3, 3)
    """The same while hidden units are trained and states are sampled."""
    penalty: float = 1e-5
    """Of the ridge regression, in units of the columns' mean square."""
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(
            learning_rate=2e-2, weight_decay=0.03, batch_rows=256, steps=1_500, epochs_least=1, epochs_most=60
        )
    )

    def sampled(self, steps: int) -> int:
        """Logged states of each number of steps left, in a campaign of `steps` steps."""
        return min(self.states, max(self.states_least, self.states_in_all // steps))


@dataclass(frozen=True, eq=False)
class KnownStates:
    """States of users, encoded, and what rules know of them."""

    states: Float32Array
    """[rows, width]"""
    steps_left: IntArray
    """[rows]"""
    eligibility: EligibilityState | None = None
    """None where nothing is ruled out."""
    means: Float32Array | None = None
    """The mean states that these were drawn from, [rows, width]; None where they were logged."""

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, rows: IndexArray) -> KnownStates:
        eligibility = None if self.eligibility is None else self.eligibility[rows]
        means = None if self.means is None else self.means[rows]
        return KnownStates(self.states[rows], self.steps_left[rows], eligibility, means)

    @property
    def expected(self) -> Float32Array:
        """The mean states, [rows, width]; logged states are their own."""
        return self.states if self.means is None else self.means

    def joined(self, other: KnownStates) -> KnownStates:
        """These rows, and then others."""
        both = None
        if self.eligibility is not None and other.eligibility is not None:
            both = self.eligibility.joined(other.eligibility)
        states, left = ((self.states, other.states), (self.steps_left, other.steps_left))
        means = np.concatenate([self.expected, other.expected])
        return KnownStates(np.concatenate(states), np.concatenate(left), both, means)


COLD = 1e-9
"""A temperature so low that the best action is taken."""


_GROWTH = 16.0
_PASSES = 4
"""How often, and by how much at most, the scale of prices is corrected."""


def can_learn(planner: TreePlanner, settings: ValueSettings) -> bool:
    """Whether values to go can be learned for a planner: the campaign goes on after a step, with few enough budgets."""
    return planner.steps > 1 and planner.budgets <= len(settings.knots)


@dataclass(frozen=True, eq=False)
class ValueLearner:
    """States of every number of steps left but the most, and the untrained parts of networks for them."""

    pools: dict[int, KnownStates]
    """By steps left, from 1."""
    trunk: WideDeep
    """Hidden units and embeddings."""
    grid: PriceGrid
    masked: bool
    settings: ValueSettings
    first: LeafValues | None = None
    """Of the best policies almost without entropy, on a coarse grid: good enough to choose a temperature by."""
    trees: dict[Hashable, Any] = field(default_factory=dict)
    """Of the states, grown once for all that is learned; see `TreePlanner`."""

    @classmethod
    def prepare(
        cls, planner: TreePlanner, logged: KnownStates, layout: StateLayout, settings: ValueSettings, seed: int
    ) -> ValueLearner:
        """Sample states and train the hidden units, for planners in the model of this one with its rules.

        `layout` is that of the logged states [rows, width].
        """
        generator = np.random.default_rng([seed, 23])
        # As good as without entropy, by the programs that will learn with it.
        planner = replace(planner, horizon=1, leaf_values=None, temperature=COLD)
        sampled = list(_sampled(logged, planner.steps, settings, generator))
        grid = PriceGrid(_units(planner, sampled[0].states), settings.first_knots[planner.budgets - 1])
        pools = _pools(planner, sampled, layout, generator)
        further = _columns(pools[1], planner).shape[1] - layout.width
        extended = replace(layout, dynamic_binaries=layout.dynamic_binaries + further)
        trunk = WideDeep(extended, settings.hidden, 1, np.random.default_rng([seed, 24]))
        learner = cls(pools, trunk, grid, logged.eligibility is not None, settings)
        learner, targets = learner._on_scale(planner)
        learner = replace(learner, trunk=learner._trained(planner, targets, seed))
        # States that good policies reach may be rare in the log.
        first = learner.optimal(planner)
        good = replace(planner, leaf_values=first)
        pools = _pools(good, sampled, layout, generator, learner.grid)
        fine = replace(learner.grid, knots=settings.knots[planner.budgets - 1])
        return replace(learner, pools=pools, grid=fine, first=first, trees={})

    def _on_scale(self, planner: TreePlanner) -> tuple[ValueLearner, list[FloatArray]]:
        """With units at which no more than half of the largest cost is spent, and what a first pass found there.

        Effects that come late are worth far more than a step shows, so that a unit may have to grow several times.
        """
        learner = self
        for _ in range(_PASSES):
            targets = learner._induction(planner, learner._best(planner))[1]
            units = tuple(
                _half_spent(learner.grid, budget, targets[-1][1 + budget].mean(axis=0))
                for budget in range(planner.budgets)
            )
            changed = max(abs(np.log(new / old)) for new, old in zip(units, learner.grid.units, strict=True))
            if changed < np.log(2):
                break
            learner = replace(learner, grid=replace(learner.grid, units=units))
        return learner, targets

    def optimal(self, planner: TreePlanner) -> LeafValues:
        """Of the best policies at the planner's temperature and exploration share, whatever its horizon."""
        return self._induction(planner, self._best(planner))[0]

    def followed(self, planner: TreePlanner) -> LeafValues:
        """Of a planner's own policy, which looks no further than its trees."""
        planner = replace(planner, trees=self.trees)
        ahead = replace(planner, horizon=1)

        def backup(values: LeafValues | None, pool: KnownStates, left: int) -> FloatArray:
            asked = (pool.states, left, self.grid.finite, pool.eligibility)
            to_go = replace(ahead, leaf_values=values).values(*asked).to_go
            return np.asarray(np.einsum("upa,oupa->oup", planner.values(*asked).probabilities, to_go))

        return self._induction(planner, backup)[0]

    def _best(self, planner: TreePlanner) -> _Backup:
        """One step ahead, then by the values to go."""
        ahead = replace(planner, horizon=1, trees=self.trees)

        def backup(values: LeafValues | None, pool: KnownStates, left: int) -> FloatArray:
            own = replace(ahead, leaf_values=values)
            value, *outcomes = own.state_values(pool.states, left, self.grid.finite, pool.eligibility)
            if not planner.temperature:
                return np.stack(outcomes)
            penalised = np.einsum("op,oup->up", outcome_weights(self.grid.finite), outcomes)
            return np.stack([*outcomes, value - penalised])

        return backup

    def _induction(self, planner: TreePlanner, backup: _Backup) -> tuple[LeafValues, list[FloatArray]]:
        """Values from one step left on, and what they were regressed on, [components, states, points] each."""
        stages, values = planner.steps - 1, None
        targets: list[FloatArray] = []
        networks: list[WideDeep] = []
        for left in range(1, stages + 1):
            pool = self.pools[left]
            targets.append(backup(values, pool, left))
            networks.append(self._regression(_columns(pool, planner), targets[-1]))
            # Nobody asks for steps that are not learned yet; the shapes are those of the finished values.
            missing = stages - left
            ends = np.stack([[found.min(axis=1), found.max(axis=1)] for found in targets], axis=1).astype(np.float32)
            least, greatest = np.pad(ends, ((0, 0), (0, missing), (0, 0), (0, 0)))
            stacked = stack([*networks, *networks[-1:] * missing])
            values = LeafValues(stacked, jax.device_put(least), jax.device_put(greatest), self.grid, self.masked)
        assert values is not None
        return values, targets

    def _regression(self, columns: Float32Array, targets: FloatArray) -> WideDeep:
        """The network whose outputs are targets [components, states, points] regressed on its hidden units and inputs,
        of states [states, columns]."""
        padded = _last_inputs(self.trunk, filled(columns, bucket(len(columns))))
        design = np.asarray(padded, np.float64)[: len(columns)]
        outputs = np.moveaxis(targets, 1, 0).reshape(len(columns), -1)
        # A column that is always zero has no scale, and gets no weight.
        size = np.sqrt(np.square(design).mean(axis=0))
        scale = np.where(size > 0, size, 1.0)
        design /= scale
        gram = design.T @ design / len(design) + self.settings.penalty * np.eye(design.shape[1])
        solved = np.linalg.solve(gram, design.T @ outputs / len(design)) / scale[:, None]
        return self.trunk.with_last_layer(solved.astype(np.float32))

    def _trained(self, planner: TreePlanner, targets: list[FloatArray], seed: int) -> WideDeep:
        """The trunk, trained on what a first pass found: [components, states, points] of each number of steps left."""
        columns = np.concatenate([_columns(self.pools[left], planner) for left in range(1, planner.steps)])
        scaled = np.concatenate([_standardised(found) for found in targets])
        order = np.random.default_rng([seed, 25]).permutation(len(columns))
        held_out, training = np.split(order, [len(order) // 20])
        network = WideDeep(self.trunk.layout, self.settings.hidden, scaled.shape[1], np.random.default_rng([seed, 26]))
        rows = _rows(columns[training], scaled[training])
        found = train(
            {"values": stack([network])},
            None,
            _squared_error,
            lambda epoch: [rows],
            len(training),
            _rows(columns[held_out], scaled[held_out]),
            self.settings.training,
            [(seed, 27)],
        )
        trained: WideDeep = jax.tree.map(lambda array: np.asarray(array)[0], found.networks["values"])
        return trained


_Backup = Callable[[LeafValues | None, KnownStates, int], FloatArray]
"""(values to go of fewer steps, None with one left; states; their steps left) -> components [components, states,
points of the grid]."""


def _sampled(
    logged: KnownStates, steps: int, settings: ValueSettings, generator: np.random.Generator
) -> Iterator[KnownStates]:
    """Some of the logged states with each number of steps left, the most first."""
    for left in range(steps, 0, -1):
        rows = np.flatnonzero(logged.steps_left == left)
        most = settings.sampled(steps)
        yield logged[np.sort(generator.choice(rows, most, replace=False)) if len(rows) > most else rows]


def _pools(
    planner: TreePlanner,
    sampled: Sequence[KnownStates],
    layout: StateLayout,
    generator: np.random.Generator,
    grid: PriceGrid | None = None,
) -> dict[int, KnownStates]:
    """Logged states, and those that users reach in the model, by steps left; `sampled` are those with the most left
    first.

    Users walk from their first states to the end of the campaign. Each is led on by shares of actions of their own, so
    that some get hardly anything and others a lot; given a grid of prices, half of them by the planner at a price of
    their own.
    """
    pools, walking = {}, sampled[0]
    shares = generator.dirichlet(np.full(planner.actions, 0.5), len(walking))
    prices = generator.integers(1 if grid is None else len(grid.table), size=len(walking))
    by_price = (generator.uniform(size=(len(walking), 1)) < 0.5) & (grid is not None)
    for left, logged in zip(range(planner.steps, 0, -1), sampled, strict=True):
        pools[left] = logged if left == planner.steps else logged.joined(walking)
        if left == 1 or not len(walking):
            continue
        mask = np.ones((len(walking), planner.actions), dtype=bool)
        if walking.eligibility is not None:
            mask = allowed(walking.eligibility, planner.constraint, walking.states, walking.steps_left)
        chances = normalised(mask * (shares + 1e-6))
        if grid is not None:
            found = planner.values(walking.states, left, grid.finite, walking.eligibility).probabilities
            chances = np.where(by_price, normalised(found[np.arange(len(walking)), prices]), chances)
        walking = _led_on(planner, walking, draw(chances, generator.uniform(size=len(walking))), layout, generator)
    return pools


def _led_on(
    planner: TreePlanner, walking: KnownStates, action: IndexArray, layout: StateLayout, generator: np.random.Generator
) -> KnownStates:
    """Where users come to by an action [users] each: states drawn from the mean states that the model predicts.

    What follows a mean state is the mean of what follows the states that it is a mean of.
    """
    means = apply_steps(planner.model, walking.states)[2][np.arange(len(walking)), action]
    states = layout.drawn(means, generator.uniform(size=(len(means), layout.drawn_parts)))
    after = None
    if walking.eligibility is not None:
        after = walking.eligibility.after(planner.constraint, action)
    return KnownStates(states, walking.steps_left - 1, after, means)


def _columns(pool: KnownStates, planner: TreePlanner) -> Float32Array:
    """The inputs of the networks, [states, columns]."""
    return told_columns(pool.expected, pool.steps_left, pool.eligibility, planner.constraint)


def told_columns(
    states: Float32Array, left: IntArray, eligibility: EligibilityState | None, constraint: Constraint | None
) -> Float32Array:
    """States [rows, width] with steps left [rows], followed by what is eligible and what rules remember, where anything
    is ruled out: [rows, columns]."""
    if eligibility is None:
        return states
    told = NodeMasks(eligibility, left, constraint).told(states[:, :0], states[:, None])
    return np.concatenate([states, *(part[:, 0] for part in told)], axis=1)


def _units(planner: TreePlanner, states: Float32Array) -> tuple[float, ...]:
    """The scale of each budget's prices, [budgets]: the median over states of the price above which the cheapest action
    is the best at a step; 1 where no cost buys anything."""
    reward, *costs = apply_outcomes(planner.model, states).astype(np.float64)
    units = []
    for cost in costs:
        cheapest = np.arange(len(states)), cost.argmin(axis=1)
        gain, extra = reward - reward[cheapest][:, None], cost - cost[cheapest][:, None]
        dearer = extra > 1e-6 * extra.max()
        prices = np.where(dearer, gain / np.where(dearer, extra, 1.0), 0.0).max(axis=1)
        units.append(float(np.median(prices[prices > 0])) if (prices > 0).any() else 1.0)
    return tuple(units)


def _half_spent(grid: PriceGrid, budget: int, cost: FloatArray) -> float:
    """The price of a budget at which its cost [points] is half way between most and least, with the others free, or the
    unit where that is more; far more where nothing but an infinite price spends so little."""
    others = np.delete(grid.table, budget, axis=1)
    own = cost[(others == 0).all(axis=1)]  # by rising price
    spread = own[0] - own[-1]
    if spread <= 1e-9 * max(abs(own[0]), 1e-30):
        return grid.units[budget]
    falling = np.minimum.accumulate(own)
    last = int(np.flatnonzero(falling > own[-1] + spread / 2)[-1])
    if last >= len(own) - 2:
        return grid.units[budget] * _GROWTH
    share = (falling[last] - own[-1] - spread / 2) / (falling[last] - falling[last + 1])
    place = (last + share) / (grid.knots - 1)
    return max(float(unscaled_dual(np.array(place), grid.units[budget])), grid.units[budget])


def _standardised(targets: FloatArray) -> Float32Array:
    """Targets [components, states, points] as [states, components · points], each of mean 0 and variance 1: what
    differs between states is learned, not how much follows in all."""
    flat = np.moveaxis(targets, 1, 0).reshape(targets.shape[1], -1)
    spread = flat.std(axis=0)
    return np.asarray((flat - flat.mean(axis=0)) / np.where(spread > 0, spread, 1.0), np.float32)


def _rows(columns: Float32Array, targets: Float32Array) -> Rows:
    """Rows to train on: states [rows, columns] and targets [rows, outputs]; what else rows have is not used."""
    none = np.zeros(len(columns), np.float32)
    return Rows(columns, none.astype(np.int32), targets, none, none)


def _squared_error(networks: Any, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """Mean squared error of every row (a training `Loss`)."""
    found = networks["values"](jnp.asarray(rows.states))
    return {"values": jnp.square(found - jnp.asarray(rows.outcomes)).mean(axis=1)}


@kept
def _last_inputs(trunk: WideDeep, columns: jax.Array) -> jax.Array:
    """What the last layer of a network is linear in, [states, inputs]."""
    return trunk.last_inputs(columns)
