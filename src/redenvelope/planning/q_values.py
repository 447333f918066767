"""Action values learned without a model (soft Q-learning): decisions at any price, and storage in a plan folder.

`LearnedValues` is what `learning/soft_q.py` fits: outcomes of a step plus values to go at a grid of prices (knots),
each from networks of several folds, interpolated between knots. It is a `Valuer` like the tree planner. A guard rules
out actions that the behaviour policy hardly ever takes in a state. `LearnedPrice` is its price function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.errors import UsageError
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.dataset import require_states
from redenvelope.models.environment import filled
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
from redenvelope.models.neural_model import named_arrays, require_sizes, restored
from redenvelope.models.responses import STRUCTURES, Response, new_response
from redenvelope.models.targets import WrittenTarget, new_target, written_target
from redenvelope.planning.choice import NodeValue, best, explored
from redenvelope.planning.temperature import is_temperature
from redenvelope.policies.action_values import ActionValues, Decided
from redenvelope.policies.eligibility_state import EligibilityState, Eligible, eligibility_state
from redenvelope.policies.eligibility_state import allowed as allowed_now
from redenvelope.policies.policy import Constraint, checked_steps_left
from redenvelope.prices import checked_prices, outcome_weights, scaled_dual
from redenvelope.serialization import from_plain, to_plain

# Learned values: action values in a state, at the learned prices or between them.


@dataclass(frozen=True, eq=False)
class LearningReport:
    """How learning went."""

    bellman_error: FloatArray
    """Root mean squared Bellman error of the values to go on held-out rows, in units of the target's standard
    deviation (1 is no better than a constant), [steps - 1], the first step first."""
    epochs: tuple[int, ...]
    """Epochs run for each step but the last."""
    excluded: FloatArray
    """Share of the rows in which the guard rules an action out, [actions]."""
    late: tuple[str, ...] = ()
    """Outcomes with late effects, which the next state does not show (see learning/late_effects.py)."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about what the guard excluded, and about late effects."""
        rare = tuple(
            f"action {action} is too rare in the log to be valued in {share:.1%} of the rows, and left out there"
            for action, share in enumerate(self.excluded)
            if share > 0
        )
        return rare + tuple(
            f"what actions do to the {name} shows later than the next state tells: it was learned along the log"
            for name in self.late
        )


@dataclass(frozen=True, eq=False)
class LearnedValues:
    """Values learned from a log at some prices of one budget, interpolated between them. A `Valuer`."""

    immediate: Immediate
    futures: ValueNetwork | None
    """Values to go after an action; arrays have leading axes [steps - 1, folds]. None in a campaign of one step."""
    duals: FloatArray
    """The learned prices, rising, [heads]."""
    temperature: float
    unit: float
    """Sets the scale of interpolation, see `scaled_dual`."""
    steps: int
    """Steps of the campaign."""
    layout: StateLayout
    least_chance: float
    """The guard: an action is not chosen in a state where its estimated propensity is below this."""
    report: LearningReport
    constraint: Constraint | None = None
    """Which actions a state allows."""
    explore: float = 0.0
    """Exploration share: the share of decisions drawn uniformly from the allowed actions."""

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.immediate.actions

    @property
    def budgets(self) -> int:
        """Number of budgets: values are learned for one."""
        return 1

    @property
    def depth(self) -> int:
        """Steps that the values look ahead: to the end of the campaign."""
        return self.steps

    @property
    def notes(self) -> tuple[str, ...]:
        """See LearningReport."""
        return self.report.notes

    @property
    def components(self) -> int:
        """Number of components: reward and cost; with a temperature, the entropy bonus too."""
        return 3 if self.temperature > 0 else 2

    def values(
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: Eligible = None
    ) -> ActionValues:
        """Action values of states [users, width] with steps left (a number, or [users]) at prices [prices, 1].

        `eligible` [users, actions] rules actions out; so does the guard, unless it would leave none.
        """
        return self.between(*self.at_knots(states, steps_left, eligible), prices)

    def decided(
        self,
        states: ArrayLike,
        steps_left: ArrayLike,
        prices: ArrayLike,
        eligible: Eligible = None,
        waiting: bool = False,
    ) -> Decided:
        """See Valuer."""
        probabilities = self.values(states, steps_left, prices, eligible).probabilities
        return Decided(probabilities, self.outcomes(states).astype(np.float32))

    def outcomes(self, states: ArrayLike) -> FloatArray:
        """Expected outcomes of this step alone, averaged over folds: [n, width] -> [outcomes, n, actions]."""
        rows = np.asarray(states, dtype=np.float32)
        require_states(rows, self.layout)
        numbers = len(self.duals) * self.components * self.actions
        folded = in_blocks(lambda block: present(self.immediate, block)[0], numbers, rows)
        return np.ascontiguousarray(np.moveaxis(folded.mean(axis=1, dtype=np.float64), 1, 0))

    def at_knots(
        self, states: ArrayLike, steps_left: ArrayLike, eligible: Eligible = None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Values at the learned prices, averaged over folds, [n, heads, components, actions], and a mask of allowed
        actions, [n, actions].

        The arguments are those of `values`. One pass through the networks serves every price (see `between`).
        """
        rows = np.asarray(states, dtype=np.float32)
        require_states(rows, self.layout)
        left = checked_steps_left(steps_left, len(rows), self.steps)
        eligibility = eligibility_state(eligible, len(rows), self.actions, self.constraint)
        mask = allowed_now(eligibility, self.constraint, rows, left)
        values = np.empty((len(rows), len(self.duals), self.components, self.actions), np.float32)
        allowed = np.empty((len(rows), self.actions), dtype=bool)
        for steps in np.unique(left):
            networks = networks_at(self.futures, self.steps - int(steps))

            def block(chunk: Any, own: Any, networks: ValueNetwork | None = networks) -> Any:
                now, chances = present(self.immediate, chunk)
                later = None if networks is None else future(networks, chunk)
                found = value_to_go(now, later, len(self.duals), self.components)
                return found, supported(np.asarray(chances) >= self.least_chance, own)

            alike = np.flatnonzero(left == steps)
            values[alike], allowed[alike] = in_blocks(block, values[0].size, rows[alike], mask[alike])
        return values, allowed

    def between(self, values: NDArray[np.float32], allowed: NDArray[np.bool_], prices: ArrayLike) -> ActionValues:
        """Action values and decisions at any prices [prices, 1], interpolated from what `at_knots` returned."""
        duals = checked_duals(prices)
        low, share = self.around(duals)
        high, share = np.minimum(low + 1, len(self.duals) - 1), share[:, None, None]
        weights = jnp.asarray(outcome_weights(duals[:, None]).astype(np.float32))
        temperature, explore = (jnp.asarray(np.float32(number)) for number in (self.temperature, self.explore))

        def block(part: Any, own: Any) -> Any:
            mixed = part[:, low] * (1 - share) + part[:, high] * share
            return _decided(mixed, own, weights, temperature, explore)

        q, probabilities, to_go = in_blocks(block, len(low) * self.components * self.actions, values, allowed)
        return ActionValues(q, probabilities, np.moveaxis(to_go, 2, 0))

    def around(self, duals: FloatArray) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """For each of `duals`, the position of the last learned price not above it, and the weight of the next one,
        [duals] each."""
        known, place = scaled_dual(self.duals, self.unit), scaled_dual(duals, self.unit)
        outside = (place < known[0] - 1e-9) | (place > known[-1] + 1e-9)
        if outside.any():
            raise UsageError(
                f"values were learned for duals from {self.duals[0]:g} to {self.duals[-1]:g}, not for "
                f"{duals[outside][0]:g}; learn them for that dual, or for all prices"
            )
        low = np.clip(np.searchsorted(known, place, side="right") - 1, 0, max(0, len(known) - 2))
        gap = np.append(np.diff(known), 1.0)[low]
        return low, np.clip((place - known[low]) / gap, 0.0, 1.0).astype(np.float32)


def checked_duals(prices: ArrayLike) -> FloatArray:
    """Prices [prices, 1], or a plain list, as the prices of one budget, [prices]."""
    table = np.asarray(prices, dtype=np.float64)
    if table.ndim == 2 and table.shape[1] > 1:
        raise UsageError(
            f"values are learned for one budget, and these are prices of {table.shape[1]}; plan with a model"
        )
    duals = checked_prices(table, 1)[:, 0]
    # A price beyond the range of float32 counts as infinite.
    return np.where(duals > np.finfo(np.float32).max, np.inf, duals)


def value_to_go(now: Any, later: Any | None, heads: int, components: int) -> NDArray[np.float32]:
    """Outcomes of a step plus values to go, averaged over folds, [n, heads, components, actions].

    `now` is [n, folds, 2, actions]; `later` is [n, folds, heads, components, actions], or None after the last step.
    """
    alone = np.asarray(now).mean(axis=1)
    values = np.zeros((len(alone), heads, components, alone.shape[-1]), np.float32)
    if later is not None:
        np.mean(np.asarray(later), axis=1, out=values)
    values[:, :, :2] += alone[:, None]
    return values


@eqx.filter_jit
def _decided(
    mixed: jax.Array, allowed: jax.Array, weights: jax.Array, temperature: jax.Array, explore: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Decisions from values [n, prices, components, actions]: q and probabilities [n, prices, actions], and outcomes to
    go [n, prices, outcomes, actions]."""
    q = jnp.where(allowed[:, None], action_scores(mixed, weights), -jnp.inf)
    chosen = explored(choose(mixed, weights, temperature, allowed), allowed[:, None], explore, axis=-1)
    return q, chosen, mixed[..., :2, :]


# From learned values to decisions: pure functions over arrays [..., prices, components, actions].
#
# The components are reward, cost and, with a temperature, entropy bonus to go. Weights [outcomes, prices] come from
# `prices.outcome_weights`: the weights of reward and cost at each price.


def action_scores(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Penalised reward (and entropy bonus) to go: [..., prices, components, actions] -> [..., prices, actions].

    At an infinite price it is minus the cost.
    """
    earned = values[..., 0, :]
    if values.shape[-2] == 3:
        earned = earned + values[..., 2, :]
    return weights[0][:, None] * earned + weights[1][:, None] * values[..., 1, :]


def choose(values: jax.Array, weights: jax.Array, temperature: jax.Array, allowed: jax.Array) -> jax.Array:
    """Probability of each action, [..., prices, actions]; `allowed` is [n, actions], n the last axis before prices.

    The best action if the temperature is zero or the price infinite, otherwise the softmax.
    """
    score = jnp.where(allowed[:, None, :], action_scores(values, weights), -jnp.inf)
    actions = score.shape[-1]

    def ask(action: Any) -> NodeValue:
        return NodeValue(score[..., action], (values[..., 0, action], values[..., 1, action]))

    hard = jax.nn.one_hot(best(ask, actions, 1)[1], actions, dtype=score.dtype)
    if values.shape[-2] == 2:
        return hard
    soft = jax.nn.softmax(score / temperature, axis=-1)
    return jnp.where((weights[0] == 0)[:, None], hard, soft)


def supported(frequent: NDArray[np.bool_], eligible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Allowed actions, [n, actions]: eligible, and frequent enough under the behaviour policy.

    Where the guard would leave none, all eligible actions are allowed.
    """
    allowed = eligible & frequent
    return np.where(allowed.any(axis=1, keepdims=True), allowed, eligible)


# Networks evaluated on many states: in blocks of one shape, by two programs that learning and deciding share.


_BLOCK_NUMBERS = 2**21  # numbers in a block's largest array; more would not stay in the cache


@eqx.filter_jit
def present(immediate: Immediate, states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Outcomes of a step [n, folds, outcomes, actions] and estimated propensities [n, actions] in states [n, width].

    Rows come first, as `in_blocks` needs.
    """
    return jnp.transpose(immediate.outcomes(states), (2, 1, 0, 3)), immediate.chances(states)


@eqx.filter_jit
def future(networks: ValueNetwork, states: jax.Array) -> jax.Array:
    """Values to go after every action: [n, width] -> [n, folds, heads, components, actions].

    `networks` are those of one step, with a leading axis [folds].
    """
    later: jax.Array = jax.vmap(lambda network: network(states), out_axes=1)(networks)
    return later


def block_rows(rows: int, numbers_a_row: int) -> int:
    """Rows per block in `in_blocks`."""
    size = int(np.clip(_BLOCK_NUMBERS // max(1, numbers_a_row), 64, 8_192))
    return min(size, 1 << max(0, rows - 1).bit_length())  # few lengths: few compilations


def in_blocks(function: Callable[..., Any], numbers_a_row: int, *columns: NDArray[Any]) -> Any:
    """Apply a function to rows [n, ...] in blocks of one shape; returns numpy arrays [n, ...]."""
    rows = len(columns[0])
    size = block_rows(rows, numbers_a_row)
    parts = []
    for first in range(0, max(rows, 1), size):
        pieces = [column[first : first + size] for column in columns]
        parts.append(jax.tree.map(np.asarray, function(*filled(pieces, size))))
    return jax.tree.map(lambda *arrays: np.concatenate(arrays)[:rows], *parts)


# The price function of learned values, for the search for a price.


_VALUES_AT_ONCE = 2**26  # numbers kept between the steps of a search: 256 MB


@dataclass(frozen=True, eq=False)
class LearnedPrice:
    """Price function of learned values: their mean outcomes in the users' first states, at each price."""

    learned: LearnedValues
    states: NDArray[np.float32]
    """First states, [users, width]."""
    steps_left: NDArray[np.int64] | int | None = None
    """Steps left at those states, one number or [users]; None is the whole campaign."""
    eligible: EligibilityState | NDArray[np.bool_] | None = None
    """The users' eligibility state, or a mask [users, actions]; None allows all."""

    def __call__(self, prices: FloatArray, /) -> FloatArray:
        """Mean outcomes at prices [prices, 1], without entropy bonus, [outcomes, prices]."""
        duals = checked_duals(prices)
        sums = np.zeros((2, len(duals)))
        for values, allowed in [self._whole] if self._size >= len(self.states) else map(self._part, self._parts()):
            sums += self.learned.between(values, allowed, duals).expected().sum(axis=1)
        return sums / len(self.states)

    @property
    def _size(self) -> int:
        """Users whose values fit in memory at once."""
        return _VALUES_AT_ONCE // (len(self.learned.duals) * self.learned.components * self.learned.actions)

    def _parts(self) -> list[slice]:
        return [slice(first, first + self._size) for first in range(0, len(self.states), self._size)]

    def _part(self, users: slice) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The values of some users at the learned prices; see `LearnedValues.at_knots`."""
        left = np.broadcast_to(self.learned.steps if self.steps_left is None else self.steps_left, (len(self.states),))
        mask = None if self.eligible is None else self.eligible[users]
        return self.learned.at_knots(self.states[users], left[users], mask)

    @cached_property
    def _whole(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        # Cached, so that the networks are not evaluated again at every step of a search.
        return self._part(slice(None))


# Learned values as plain data and named weights, and back: their form in a plan folder.


@dataclass(frozen=True)
class _WrittenReport:
    """A LearningReport as plain data."""

    bellman_error: tuple[float, ...]
    epochs: tuple[int, ...]
    excluded: tuple[float, ...]
    late: tuple[str, ...]


@dataclass(frozen=True)
class _WrittenValues:
    """Learned values as plain data, without their weights."""

    layout: StateLayout
    actions: int
    hidden: tuple[int, ...]
    structures: tuple[str, str]
    folds: int
    rank: int | None
    """Rank of the advantages; None if the campaign has a single step."""
    reward_target: WrittenTarget
    cost_target: WrittenTarget
    duals: tuple[float, ...]
    temperature: float
    unit: float
    steps: int
    least_chance: float
    report: _WrittenReport

    def __post_init__(self) -> None:
        if min(self.actions, self.folds, self.steps, len(self.duals), *self.hidden) < 1:
            raise ValueError("at least one action, fold, step, price and unit in every layer are needed")
        if (self.rank is None) != (self.steps == 1) or (self.rank is not None and self.rank < 1):
            raise ValueError("values of later steps are there where there are later steps")
        if any(structure not in STRUCTURES for structure in self.structures):
            raise ValueError(f"there is no structure among {self.structures}")
        rising = all(later > earlier for earlier, later in pairwise(self.duals))  # infinities have no difference
        if not (self.duals and min(self.duals) >= 0 and rising and np.isfinite(self.duals[:-1]).all()):
            raise ValueError("the prices must rise from 0 on")
        numbers = (self.temperature, self.unit, self.least_chance)
        if not (all(map(is_temperature, numbers)) and self.unit > 0 and self.least_chance <= 1):
            raise ValueError("temperature, unit and least chance must be numbers to compute with")

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Sizes that the weights must be large enough for, by name; see `require_sizes`."""
        layers = {
            f"layer {place}": (self.folds, units, following)
            for place, (units, following) in enumerate(zip(self.hidden, (*self.hidden, 1)[1:], strict=True))
        }
        return layers | {
            "actions": (self.folds, self.actions),
            "columns of a state": (self.folds, self.layout.width),
            "codes of static categories": (self.folds, sum(self.layout.static_categories)),
            "values of later steps": (self.steps - 1, self.folds, self.rank or 0, self.actions),
        }


def learned_state(values: LearnedValues) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Plain data for JSON, and the weights by name."""
    immediate = values.immediate
    network: OutcomeNetwork = immediate.outcome.network
    report = values.report
    written = _WrittenValues(
        layout=values.layout,
        actions=values.actions,
        hidden=tuple(int(weights.shape[-1]) for weights in network.network.trunk_weights),
        structures=(_structure(network.responses[0], values.actions), _structure(network.responses[1], values.actions)),
        folds=int(immediate.outcome.slot.shape[0]),
        rank=None if values.futures is None else int(values.futures.shapes.shape[-2]),
        reward_target=written_target(immediate.rewarding),
        cost_target=written_target(immediate.costing),
        duals=tuple(float(dual) for dual in values.duals),
        temperature=float(values.temperature),
        unit=float(values.unit),
        steps=values.steps,
        least_chance=float(values.least_chance),
        report=_WrittenReport(
            tuple(report.bellman_error.tolist()), tuple(report.epochs), tuple(report.excluded.tolist()), report.late
        ),
    )
    return to_plain(written), named_arrays(_parts(immediate, values.futures))


def learned_from_state(config: dict[str, Any], arrays: dict[str, NDArray[np.float32]]) -> LearnedValues:
    """The values that `learned_state` wrote; parts that do not fit together are refused before anything is built."""
    written = from_plain(_WrittenValues, config, "what was learned")
    require_sizes(written.sizes, arrays)
    parts = restored(_skeleton(written, _curves(arrays)), arrays)
    targets = (new_target(written.reward_target, written.actions), new_target(written.cost_target, written.actions))
    report = written.report
    return LearnedValues(
        immediate=Immediate(parts["outcome"], parts["behaviour"], *targets, written.actions),
        futures=parts.get("futures"),
        duals=np.array(written.duals),
        temperature=written.temperature,
        unit=written.unit,
        steps=written.steps,
        layout=written.layout,
        least_chance=written.least_chance,
        report=LearningReport(np.array(report.bellman_error), report.epochs, np.array(report.excluded), report.late),
    )


def _parts(immediate: Immediate, futures: Any) -> dict[str, Any]:
    parts = {"outcome": immediate.outcome, "behaviour": immediate.behaviour}
    return parts if futures is None else parts | {"futures": futures}


def _skeleton(written: _WrittenValues, curves: int) -> dict[str, Any]:
    """Untrained parts of the right shapes."""
    layout, actions, folds, hidden = written.layout, written.actions, written.folds, written.hidden
    generator = np.random.default_rng(0)
    outcome = stack([OutcomeNetwork(layout, actions, hidden, written.structures, generator)] * folds)
    behaviour = stack([WideDeep(layout, hidden[-1:], actions, generator)] * folds)
    places = jnp.asarray(slots(folds))
    parts = {"outcome": Folded(outcome, places), "behaviour": Folded(behaviour, places)}
    if written.rank is None:
        return parts
    heads, components = len(written.duals), 3 if written.temperature > 0 else 2
    network = new_value_networks(layout, actions, heads, components, hidden, written.rank, curves, folds, 0)
    return parts | {"futures": stack([network] * (written.steps - 1))}


def _curves(arrays: dict[str, NDArray[np.float32]]) -> int:
    """Number of curves of the value networks, known from the weights' shape alone; 1 where there are none."""
    level = arrays.get("futures.level")
    return 1 if level is None or level.ndim < 2 else level.shape[-2]


def _structure(response: Response, actions: int) -> str:
    """The name of a response structure."""
    return next(name for name in STRUCTURES if type(new_response(name, actions)) is type(response))
