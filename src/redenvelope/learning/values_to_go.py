"""Values to go, learned in the learned model by backward induction (fitted value iteration), for all prices at once.

States of training users, and states that policies reach from them in the model, are backed up one step at a time from
the end of the campaign: the outcomes of a step plus the value to go of its mean successor, by the network for one step
fewer. Each network is a ridge regression in closed form on hidden units that all of them share; the units are trained
once, on the values that a first pass with random units found. `ValueLearner` does it; the result is a `LeafValues`.
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
    """Logged states, and as many reached in the model, per number of steps left; fewer in long campaigns."""
    states_in_all: int = 15_000
    """Most logged states over all steps, unless that leaves fewer than `states_least` per number of steps left."""
    states_least: int = 300
    knots: tuple[int, ...] = (24, 6, 3, 3)
    """Knots per budget of the price grid with one, two, three and four budgets; with more budgets there are no leaf
    values. The grid has as many points as programs are compiled for (`planning/choice.py: SOME_PRICES`), or slightly
    fewer."""
    first_knots: tuple[int, ...] = (8, 4, 3, 3)
    """The same while hidden units are trained and states are sampled."""
    penalty: float = 1e-5
    """Ridge penalty, in units of the columns' mean square."""
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(
            learning_rate=2e-2, weight_decay=0.03, batch_rows=256, steps=1_500, epochs_least=1, epochs_most=60
        )
    )

    def sampled(self, steps: int) -> int:
        """Logged states per number of steps left, in a campaign of `steps` steps."""
        return min(self.states, max(self.states_least, self.states_in_all // steps))


@dataclass(frozen=True, eq=False)
class KnownStates:
    """Encoded states of users, with their eligibility states."""

    states: Float32Array
    """[rows, width]"""
    steps_left: IntArray
    """[rows]"""
    eligibility: EligibilityState | None = None
    """None if nothing is ruled out."""
    means: Float32Array | None = None
    """The predicted mean states that these were drawn from, [rows, width]; None if they were logged."""

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, rows: IndexArray) -> KnownStates:
        eligibility = None if self.eligibility is None else self.eligibility[rows]
        means = None if self.means is None else self.means[rows]
        return KnownStates(self.states[rows], self.steps_left[rows], eligibility, means)

    @property
    def expected(self) -> Float32Array:
        """The mean states, [rows, width]; the mean of a logged state is itself."""
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
"""A temperature so low that practically always the best action is taken."""


_GROWTH = 16.0
_PASSES = 4
"""The price scale is corrected in at most `_PASSES` passes, and grows by `_GROWTH` where it is far too small."""


def can_learn(planner: TreePlanner, settings: ValueSettings) -> bool:
    """Whether values to go can be learned for a planner: more than one step, and not too many budgets."""
    return planner.steps > 1 and planner.budgets <= len(settings.knots)


@dataclass(frozen=True, eq=False)
class ValueLearner:
    """Learns values to go for planners in one model: sampled states, trained hidden units and a price grid."""

    pools: dict[int, KnownStates]
    """States by steps left, from 1."""
    trunk: WideDeep
    """Hidden units and embeddings."""
    grid: PriceGrid
    masked: bool
    settings: ValueSettings
    first: LeafValues | None = None
    """Values of the best policies almost without entropy, on a coarse grid: enough for choosing a temperature."""
    trees: dict[Hashable, Any] = field(default_factory=dict)
    """Cache of the states' trees; see `TreePlanner.trees`."""

    @classmethod
    def prepare(
        cls, planner: TreePlanner, logged: KnownStates, layout: StateLayout, settings: ValueSettings, seed: int
    ) -> ValueLearner:
        """Sample states and train the hidden units, for planners with this planner's model and rules.

        `layout` is that of the logged states [rows, width].
        """
        generator = np.random.default_rng([seed, 23])
        # Practically without entropy, but by the compiled programs that later learn with it.
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
        """The learner with price units at which at most about half of the spread in cost is spent, and the first pass's
        targets.

        Late effects are worth far more than one step shows, so a unit may have to grow several times.
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
        """Values to go of the best policies with the planner's temperature and exploration share, of any horizon."""
        return self._induction(planner, self._best(planner))[0]

    def followed(self, planner: TreePlanner) -> LeafValues:
        """Values to go of the planner's own policy, which looks no further ahead than its trees."""
        planner = replace(planner, trees=self.trees)
        ahead = replace(planner, horizon=1)

        def backup(values: LeafValues | None, pool: KnownStates, left: int) -> FloatArray:
            asked = (pool.states, left, self.grid.finite, pool.eligibility)
            to_go = replace(ahead, leaf_values=values).values(*asked).to_go
            return np.asarray(np.einsum("upa,oupa->oup", planner.values(*asked).probabilities, to_go))

        return self._induction(planner, backup)[0]

    def _best(self, planner: TreePlanner) -> _Backup:
        """The Bellman backup of the best policies: one step in the model, then the values to go of its successors."""
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
        """Backward induction from one step left: the values to go, and the targets [components, states, points] that
        the network of each number of steps left was regressed on."""
        stages, values = planner.steps - 1, None
        targets: list[FloatArray] = []
        networks: list[WideDeep] = []
        for left in range(1, stages + 1):
            pool = self.pools[left]
            targets.append(backup(values, pool, left))
            networks.append(self._regression(_columns(pool, planner), targets[-1]))
            # Padded to the shapes of the finished values; networks that are not learned yet are never used.
            missing = stages - left
            ends = np.stack([[found.min(axis=1), found.max(axis=1)] for found in targets], axis=1).astype(np.float32)
            least, greatest = np.pad(ends, ((0, 0), (0, missing), (0, 0), (0, 0)))
            stacked = stack([*networks, *networks[-1:] * missing])
            values = LeafValues(stacked, jax.device_put(least), jax.device_put(greatest), self.grid, self.masked)
        assert values is not None
        return values, targets

    def _regression(self, columns: Float32Array, targets: FloatArray) -> WideDeep:
        """The trunk with a last layer from the ridge regression of targets [components, states, points] on its hidden
        units and inputs at states [states, columns]."""
        padded = _last_inputs(self.trunk, filled(columns, bucket(len(columns))))
        design = np.asarray(padded, np.float64)[: len(columns)]
        outputs = np.moveaxis(targets, 1, 0).reshape(len(columns), -1)
        # A column that is always zero has no scale and gets no weight.
        size = np.sqrt(np.square(design).mean(axis=0))
        scale = np.where(size > 0, size, 1.0)
        design /= scale
        gram = design.T @ design / len(design) + self.settings.penalty * np.eye(design.shape[1])
        solved = np.linalg.solve(gram, design.T @ outputs / len(design)) / scale[:, None]
        return self.trunk.with_last_layer(solved.astype(np.float32))

    def _trained(self, planner: TreePlanner, targets: list[FloatArray], seed: int) -> WideDeep:
        """The trunk, trained on a first pass's targets, [components, states, points] per number of steps left."""
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
"""(values to go with fewer steps left, None if one is left; states; their steps left) -> targets [components, states,
points of the grid]."""


def _sampled(
    logged: KnownStates, steps: int, settings: ValueSettings, generator: np.random.Generator
) -> Iterator[KnownStates]:
    """Samples of the logged states with each number of steps left, the most first."""
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
    """States by steps left: the logged ones of `sampled` (most steps left first), and those that rollouts reach.

    Rollouts start in users' first states and go to the end of the campaign. Each user's actions have random
    probabilities of their own, so that some get hardly anything and others a lot; given a price grid, the planner
    chooses for half of the users, each at a random price.
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
    """The users' next states after an action [users] each, drawn around the mean states that the model predicts.

    The means are kept as the networks' inputs: the value of a mean state is the mean value of the states around it.
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
    """States [rows, width] with steps left [rows], followed, if there are rules, by allowed actions and the
    constraint's memory: [rows, columns]."""
    if eligibility is None:
        return states
    told = NodeMasks(eligibility, left, constraint).told(states[:, :0], states[:, None])
    return np.concatenate([states, *(part[:, 0] for part in told)], axis=1)


def _units(planner: TreePlanner, states: Float32Array) -> tuple[float, ...]:
    """The scale of each budget's prices, [budgets]: the median over states of the price above which the cheapest action
    is the best at a step; 1 if spending gains nothing."""
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
    """The price of a budget at which its cost [points] is half way between largest and smallest while the other prices
    are 0, but at least the present unit; `_GROWTH` units if only an infinite price spends so little."""
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
    """Targets [components, states, points] as [states, components · points], each of mean 0 and variance 1, so that
    hidden units learn differences between states, not levels."""
    flat = np.moveaxis(targets, 1, 0).reshape(targets.shape[1], -1)
    spread = flat.std(axis=0)
    return np.asarray((flat - flat.mean(axis=0)) / np.where(spread > 0, spread, 1.0), np.float32)


def _rows(columns: Float32Array, targets: Float32Array) -> Rows:
    """Training rows with states [rows, columns] and targets [rows, outputs]; other fields are not used."""
    none = np.zeros(len(columns), np.float32)
    return Rows(columns, none.astype(np.int32), targets, none, none)


def _squared_error(networks: Any, constants: Any, rows: Rows) -> dict[str, jax.Array]:
    """Mean squared error of every row (a training `Loss`)."""
    found = networks["values"](jnp.asarray(rows.states))
    return {"values": jnp.square(found - jnp.asarray(rows.outcomes)).mean(axis=1)}


@kept
def _last_inputs(trunk: WideDeep, columns: jax.Array) -> jax.Array:
    """The inputs of a network's linear last layer, [states, inputs]."""
    return trunk.last_inputs(columns)
