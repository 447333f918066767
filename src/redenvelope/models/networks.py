"""The networks: Wide & Deep trunks with heads for outcomes, transitions, values at many prices, and behaviour.

`WideDeep` sums a linear part that memorises and a deep part that generalises. `OutcomeNetwork` and `TransitionNetwork`
form the environment model; `ValueNetwork` and `Immediate` serve learning without a model. Networks of one shape are
stacked: every array has a leading axis, and one compiled program serves them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from numpy.typing import NDArray

from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.dataset import Examples, Rows
from redenvelope.models.responses import LowRankResponse, Response, float32, new_response, zeros
from redenvelope.models.targets import BinaryReward, CostTarget, OutcomeTargets, RewardedCost, RewardTarget

# A one-hot product is faster than a gather (and far faster than its gradient) up to about this many codes.
_ONE_HOT_CODES = 64
_LARGEST_EMBEDDING = 16
# A campaign of at most this many steps has one input per step; a longer one, this many hat functions over its length.
_LARGEST_HATS = 12
_LEAST_WIDTH = 1e-5  # of a piece, in standard deviations
_STATISTICS_ROWS = 200_000  # enough for a scale and a range, without reading a log larger than memory


class FixedPart(NamedTuple):
    """A network applied to the columns that never change within a user."""

    units: jax.Array
    """Contribution to the first hidden layer before its activation, [users, units]."""
    raw: jax.Array
    """Contribution to the raw outputs, [users, outputs]."""


export.register_namedtuple_serialization(FixedPart, serialized_name="redenvelope.FixedPart")  # for kept programs


class Pieces(eqx.Module):
    """Piecewise linear encoding of numbers (Gorishniy et al. 2022): each number's range is cut into pieces at its
    quantiles, or at its values if they are few; a piece encodes the part of it below the number, from 0 to 1. Not
    learned."""

    low: jax.Array
    """Lower end of each piece, [pieces]."""
    width: jax.Array
    """[pieces]"""
    counts: tuple[int, ...] = eqx.field(static=True)
    """Pieces of each column, [columns]."""

    def __call__(self, columns: jax.Array) -> jax.Array:
        """[n, columns] -> [n, pieces]."""
        # A product instead of a gather, which would not be vectorised.
        spread = np.repeat(np.eye(len(self.counts), dtype=np.float32), self.counts, axis=1)
        low, width = jax.lax.stop_gradient((self.low, self.width))
        return jnp.clip((columns @ spread - low) / jnp.maximum(width, _LEAST_WIDTH), 0.0, 1.0)


StatePieces = tuple[Pieces | None, Pieces | None]
"""Pieces of the static and of the dynamic numbers; None if a state has no numbers of that kind."""


def state_pieces(examples: Examples, rows: NDArray[np.int64], most: int, most_columns: int) -> StatePieces:
    """Fit pieces to the numbers in some rows of a log: at most `most` per number, and `most_columns` in all."""
    rows = rows[:: max(1, len(rows) // _STATISTICS_ROWS)]
    layout = examples.layout
    places = (slice(len(layout.static_categories), layout.static_width), layout.numbers)
    numbers = sum(place.stop - place.start for place in places)
    each = min(most, most_columns // max(numbers, 1))
    cuts = [[_cuts(examples.states[rows, column], each) for column in range(p.start, p.stop)] for p in places]
    static, dynamic = (new_pieces(tuple(len(own) - 1 for own in found), found) for found in cuts)
    return static, dynamic


def new_pieces(counts: tuple[int, ...], cuts: Sequence[NDArray[np.floating]] | None = None) -> Pieces | None:
    """Pieces between the cuts [pieces + 1] of each column (placeholders if None); None if there are no pieces."""
    if not sum(counts):
        return None
    cuts = cuts or [np.arange(count + 1.0) for count in counts]
    low, width = (np.concatenate(parts) for parts in ([own[:-1] for own in cuts], [np.diff(own) for own in cuts]))
    return Pieces(float32(low), float32(width), counts)


def piece_counts(pieces: StatePieces) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pieces of each static and of each dynamic number."""
    static, dynamic = (() if own is None else own.counts for own in pieces)
    return static, dynamic


def _cuts(values: NDArray[np.floating], most: int) -> NDArray[np.float64]:
    """The cuts of a number [rows]: its quantiles, or its values if they are few; a single cut makes no piece."""
    found = np.unique(values)
    if len(found) > most + 1:
        found = np.unique(np.quantile(values, np.linspace(0.0, 1.0, most + 1), method="nearest"))
    wide = np.append(True, np.diff(found) > _LEAST_WIDTH)
    cuts: NDArray[np.float64] = found[wide].astype(np.float64)
    return cuts if len(cuts) > 2 else cuts[:1]


class WideDeep(eqx.Module):
    """States [n, width] -> raw outputs [n, outputs].

    Wide: every feature and every code of a static category has one weight per output. Deep: the categories'
    embeddings and the numbers go through a trunk of hidden layers. Numbers enter both, as they are and in pieces.
    Outputs start at zero.
    """

    wide_tables: tuple[jax.Array, ...]
    """One weight per code and output, [codes, outputs] for each static category."""
    wide_weights: jax.Array
    """[numbers, outputs]"""
    embedding_tables: tuple[jax.Array, ...]
    """[codes, dimensions] for each static category."""
    trunk_weights: tuple[jax.Array, ...]
    """[inputs, units] for each hidden layer."""
    trunk_biases: tuple[jax.Array, ...]
    """[units] for each hidden layer."""
    deep_weights: jax.Array
    """[units of the last hidden layer, outputs]"""
    static_pieces: Pieces | None
    """Pieces of the static numbers."""
    dynamic_pieces: Pieces | None
    """Pieces of the dynamic numbers."""
    layout: StateLayout = eqx.field(static=True)

    def __init__(
        self,
        layout: StateLayout,
        hidden: tuple[int, ...],
        outputs: int,
        generator: np.random.Generator,
        pieces: StatePieces = (None, None),
    ) -> None:

        def draw(rows: int, columns: int, scale: float) -> jax.Array:
            return float32(generator.normal(0.0, scale, (rows, columns)))

        sizes = [embedding_size(codes) for codes in layout.static_categories]
        self.layout = layout
        self.static_pieces, self.dynamic_pieces = pieces
        widths = [self._numbers + sum(sizes), *hidden]
        self.wide_tables = tuple(zeros(codes, outputs) for codes in layout.static_categories)
        self.wide_weights = zeros(self._numbers, outputs)
        self.embedding_tables = tuple(
            draw(codes, size, 1.0 / np.sqrt(size)) for codes, size in zip(layout.static_categories, sizes, strict=True)
        )
        self.trunk_weights = tuple(draw(rows, columns, np.sqrt(2.0 / rows)) for rows, columns in pairwise(widths))
        self.trunk_biases = tuple(zeros(units) for units in hidden)
        self.deep_weights = zeros(widths[-1], outputs)

    def __call__(self, states: jax.Array) -> jax.Array:
        """Raw outputs: [n, width] -> [n, outputs]."""
        numbers, codes = self._number_inputs(states), self._codes(states)
        raw = numbers @ self.wide_weights
        for code, table in zip(codes, self.wide_tables, strict=True):
            raw = raw + _look_up(code, table)
        embedded = [_look_up(code, table) for code, table in zip(codes, self.embedding_tables, strict=True)]
        return raw + self._hidden(jnp.concatenate([numbers, *embedded], axis=1)) @ self.deep_weights

    def last_inputs(self, states: jax.Array) -> jax.Array:
        """The inputs of the linear last layer, [n, width] -> [n, units + numbers + dimensions of embeddings]."""
        numbers = self._number_inputs(states)
        embedded = [
            _look_up(code, table) for code, table in zip(self._codes(states), self.embedding_tables, strict=True)
        ]
        return jnp.concatenate(
            [self._hidden(jnp.concatenate([numbers, *embedded], axis=1)), numbers, *embedded], axis=1
        )

    def with_last_layer(self, weights: NDArray[np.float32]) -> WideDeep:
        """The same network with another last layer: weights [last inputs, outputs] on `last_inputs`."""
        sizes = [int(table.shape[1]) for table in self.embedding_tables]
        units, numbers = len(self.deep_weights), self._numbers
        deep, wide, *own = np.split(weights, np.cumsum([units, numbers, *sizes])[:-1])
        tables = tuple(np.asarray(table) @ part for table, part in zip(self.embedding_tables, own, strict=True))
        changed: WideDeep = eqx.tree_at(
            lambda network: (network.wide_tables, network.wide_weights, network.deep_weights),
            self,
            (tables, wide, deep),
        )
        return changed

    def weighted(self, weights: jax.Array) -> WideDeep:
        """The same network with every input multiplied by the weight [width] of its state column."""
        own = weights[self._columns][:, None]

        def parts(network: WideDeep) -> list[jax.Array]:
            found = [network.wide_weights]
            found += network.trunk_weights[:1] if self.trunk_weights else ()
            return [*found, *network.wide_tables] if self.wide_tables else found

        deep = [layer * own for layer in self.trunk_weights[:1]]
        tables = [table * weights[column] for column, table in enumerate(self.wide_tables)]
        changed: WideDeep = eqx.tree_at(parts, self, [self.wide_weights * own[: self._numbers], *deep, *tables])
        return changed

    @property
    def _columns(self) -> NDArray[np.intp]:
        """The state column behind each input of the trunk, [inputs]."""
        layout, codes = self.layout, np.arange(len(self.layout.static_categories))
        static, dynamic = (() if own is None else own.counts for own in (self.static_pieces, self.dynamic_pieces))
        fixed = np.arange(len(codes), layout.static_width)
        moving, numbers = np.arange(layout.step + 1, layout.width), np.arange(layout.numbers.start, layout.numbers.stop)
        parts = [
            fixed,
            np.repeat(fixed, static) if static else fixed[:0],
            np.full(hat_count(layout), layout.step),
            moving,
        ]
        parts += [np.repeat(numbers, dynamic) if dynamic else numbers[:0]]
        sizes = [int(table.shape[-1]) for table in self.embedding_tables]
        return np.concatenate([*parts, np.repeat(codes, sizes)]).astype(np.intp)

    def fixed_part(self, states: jax.Array) -> FixedPart:
        """The part of the network that depends only on the columns before the step: [users, width] -> FixedPart."""
        codes = self._codes(states)
        embedded = [_look_up(code, table) for code, table in zip(codes, self.embedding_tables, strict=True)]
        numbers = self._fixed_inputs(states)
        head, tail = self._head, self._numbers
        first = self.trunk_weights[0] if self.trunk_weights else self.deep_weights
        # In the first layer's inputs, the embeddings follow the numbers.
        known = jnp.concatenate([numbers, *embedded], axis=1) @ jnp.concatenate([first[:head], first[tail:]])
        raw = numbers @ self.wide_weights[:head]
        for code, table in zip(codes, self.wide_tables, strict=True):
            raw = raw + _look_up(code, table)
        if not self.trunk_weights:  # without a hidden layer, the deep part is linear too
            return FixedPart(jnp.zeros((len(states), 0)), raw + known)
        return FixedPart(known + self.trunk_biases[0], raw)

    def at(self, fixed: FixedPart, nodes: jax.Array) -> jax.Array:
        """Raw outputs [groups · size, outputs] of nodes [groups, size, columns from the step on]; the nodes of a group
        share its fixed part."""
        groups, size, _ = nodes.shape

        def with_own(values: jax.Array, own: jax.Array) -> jax.Array:
            """Values [groups · size, columns] with their group's own [groups, columns] added."""
            return (values.reshape(groups, size, own.shape[1]) + own[:, None]).reshape(values.shape)

        head, tail = self._head, self._numbers
        inputs = self._changing_inputs(nodes.reshape(groups * size, -1))
        if not self.trunk_weights:
            return with_own(inputs @ (self.deep_weights[head:tail] + self.wide_weights[head:]), fixed.raw)
        first = jax.nn.silu(with_own(inputs @ self.trunk_weights[0][head:tail], fixed.units))
        units = self._hidden(first, 1)
        # One product for both parts, deep and wide.
        weights = jnp.concatenate([self.deep_weights, self.wide_weights[head:]])
        return with_own(jnp.concatenate([units, inputs], axis=1) @ weights, fixed.raw)

    @property
    def _head(self) -> int:
        """Number of inputs that never change, besides embeddings."""
        return self.layout.static_numbers + _count(self.static_pieces)

    @property
    def _numbers(self) -> int:
        """Number of inputs besides embeddings."""
        columns = self.layout.width - len(self.layout.static_categories) - 1 + hat_count(self.layout)
        return columns + _count(self.static_pieces) + _count(self.dynamic_pieces)

    def _number_inputs(self, states: jax.Array) -> jax.Array:
        """All inputs except the static codes, [n, width] -> [n, numbers]."""
        return jnp.concatenate(
            [self._fixed_inputs(states), self._changing_inputs(states[:, self.layout.step :])], axis=1
        )

    def _fixed_inputs(self, states: jax.Array) -> jax.Array:
        """The static numbers and their pieces, [n, width or static width] -> [n, head]."""
        fixed = states[:, len(self.layout.static_categories) : self.layout.static_width]
        return fixed if self.static_pieces is None else jnp.concatenate([fixed, self.static_pieces(fixed)], axis=1)

    def _changing_inputs(self, columns: jax.Array) -> jax.Array:
        """The columns of states from the step on, with the step as hat functions, so that effects may differ between
        steps, and the pieces of dynamic numbers: [n, changing] -> [n, changing inputs]."""
        parts = [step_hats(columns[:, :1], hat_count(self.layout)), columns[:, 1:]]
        if self.dynamic_pieces is not None:
            parts.append(self.dynamic_pieces(columns[:, 1 : 1 + self.layout.dynamic_numbers]))
        return jnp.concatenate(parts, axis=1)

    def _codes(self, states: jax.Array) -> list[jax.Array]:
        """The codes of each static category, [n] each."""
        return [states[:, column].astype(jnp.int32) for column in range(len(self.layout.static_categories))]

    def _hidden(self, units: jax.Array, first: int = 0) -> jax.Array:
        """The last hidden layer, from the inputs of the layer at index `first`: both [n, units]."""
        for weights, biases in zip(self.trunk_weights[first:], self.trunk_biases[first:], strict=True):
            units = jax.nn.silu(units @ weights + biases)
        return units


def embedding_size(codes: int) -> int:
    """Dimensions of a category's embedding: the square root of its codes, two to sixteen."""
    return int(np.clip(round(np.sqrt(codes)), 2, _LARGEST_EMBEDDING))


def _count(pieces: Pieces | None) -> int:
    return 0 if pieces is None else sum(pieces.counts)


def step_hats(step: jax.Array, hats: int) -> jax.Array:
    """Hat functions of the step's column, [n, 1] -> [n, hats]."""
    return jnp.maximum(0.0, 1.0 - jnp.abs(step * (hats - 1) - jnp.arange(hats)))


def hat_count(layout: StateLayout) -> int:
    """Number of hat functions of the step."""
    return min(round(1.0 / layout.step_change) + 1, _LARGEST_HATS)


def _look_up(code: jax.Array, table: jax.Array) -> jax.Array:
    """Rows of a table, [n] -> [n, columns]."""
    if table.shape[0] <= _ONE_HOT_CODES:
        return jax.nn.one_hot(code, table.shape[0]) @ table
    return table[code]


def outcome_names(budgets: int) -> tuple[str, ...]:
    """Names of the outcomes for a number of budgets: reward, cost, cost 2, …"""
    return ("reward", "cost", *(f"cost {number}" for number in range(2, budgets + 1)))[: 1 + budgets]


class OutcomeNetwork(eqx.Module):
    """Scores of every outcome and action from one forward pass; `OutcomeTargets` turns scores into outcomes."""

    network: WideDeep
    responses: tuple[Response, ...]
    """Response structures of the reward, each cost and, if users leave, survival."""

    def __init__(
        self,
        layout: StateLayout,
        actions: int,
        hidden: tuple[int, ...],
        structures: tuple[str, ...],
        generator: np.random.Generator,
        attributes: NDArray[np.float32] | None = None,
        pieces: StatePieces = (None, None),
    ) -> None:
        self.responses = tuple(new_response(structure, actions, attributes) for structure in structures)
        outputs = sum(response.outputs for response in self.responses)
        self.network = WideDeep(layout, hidden, outputs, generator, pieces)

    def start(self, scores: NDArray[np.float64]) -> OutcomeNetwork:
        """The same network, with these scores [responses, actions] in every state before it is trained."""
        responses = tuple(response.start(own) for response, own in zip(self.responses, scores, strict=True))
        started: OutcomeNetwork = eqx.tree_at(lambda part: part.responses, self, responses)
        return started

    def weighted(self, weights: jax.Array) -> OutcomeNetwork:
        """The same network with every input multiplied by the weight [width] of its state column."""
        changed: OutcomeNetwork = eqx.tree_at(lambda part: part.network, self, self.network.weighted(weights))
        return changed

    def expected(self, states: jax.Array, targets: OutcomeTargets) -> tuple[jax.Array, ...]:
        """Expected outcomes of all actions and, if users leave, survival: [n, width] -> [actions, n] each."""
        return targets.means(self._scores(self.network(states)))

    def expected_at(self, fixed: FixedPart, nodes: jax.Array, targets: OutcomeTargets) -> tuple[jax.Array, ...]:
        """The same for the changing columns of nodes [groups, size, changing] and a fixed part [groups, ...]:
        [actions, groups · size] each."""
        return targets.means(self._scores(self.network.at(fixed, nodes)))

    def losses(self, rows: Rows, targets: OutcomeTargets) -> jax.Array:
        """Loss of the logged action's scores, [responses, rows]."""
        action = jnp.asarray(rows.action)
        scores = self._scores(self.network(jnp.asarray(rows.states)))
        # A product with a one-hot row instead of a gather: its gradient needs no scatter.
        taken = jax.nn.one_hot(action, scores[0].shape[0], axis=0)
        return targets.losses([(own * taken).sum(axis=0) for own in scores], action, jnp.asarray(rows.outcomes))

    def _scores(self, raw: jax.Array) -> list[jax.Array]:
        """Raw outputs [n, outputs] -> scores of each response, [actions, n] each."""
        edges = pairwise(accumulate((response.outputs for response in self.responses), initial=0))
        turned = raw.T
        return [response(turned[first:last]) for response, (first, last) in zip(self.responses, edges, strict=True)]


_LARGEST_RANK = 3


class TailScale(eqx.Module):
    """Scale of change and range of the dynamic numbers in the log, each [dynamic numbers]."""

    change: jax.Array
    """Standard deviation of the change over one step."""
    low: jax.Array
    high: jax.Array


def tail_scale(examples: Examples, rows: NDArray[np.int64]) -> TailScale:
    """Measure the dynamic numbers on some rows of a log."""
    rows = rows[:: max(1, len(rows) // _STATISTICS_ROWS)]
    numbers = examples.layout.numbers
    values = np.asarray(examples.states[rows, numbers], dtype=np.float64)
    moving = rows[examples.continues[rows]]
    change = np.zeros(numbers.stop - numbers.start)
    if len(moving):
        change = (examples.states[moving + 1, numbers].astype(np.float64) - examples.states[moving, numbers]).std(0)
    return TailScale(
        change=float32(np.where(change > 1e-6, change, 1.0)),
        low=float32(values.min(0, initial=np.inf, where=True) if len(values) else change),
        high=float32(values.max(0, initial=-np.inf, where=True) if len(values) else change),
    )


class TransitionNetwork(eqx.Module):
    """Scores of the next tail (the dynamic features) after every event and action, for states [n, width].

    The score of a number is its change in units of `TailScale.change`; of a binary, log odds; of a category,
    log odds of its codes up to a constant. The actions share a low-rank structure.
    """

    network: WideDeep
    shapes: jax.Array
    """[rank, actions]"""
    level: jax.Array
    """[events, actions, tail]"""
    layout: StateLayout = eqx.field(static=True)

    def __init__(
        self, layout: StateLayout, actions: int, events: int, hidden: tuple[int, ...], generator: np.random.Generator
    ) -> None:
        response = LowRankResponse(actions, _LARGEST_RANK)
        tail = layout.predicted_width
        self.layout = layout
        self.shapes = response.shapes
        self.level = zeros(events, actions, tail)
        self.network = WideDeep(layout, hidden, tail * events * response.outputs, generator)

    def of_action(self, states: jax.Array, action: jax.Array, event: jax.Array) -> jax.Array:
        """Scores after one action [n] and one event, one-hot [n, events], per state: [n, tail]."""
        events, actions, tail = self.level.shape
        both = event[:, :, None] * jax.nn.one_hot(action, actions)[:, None, :]
        both = both.reshape(len(states), events * actions)
        # The network's outputs are [events, 1 + rank, tail]: base and weights of the shapes after every event. Those of
        # the row's own event are summed by matrix products, because sums over such short axes would not be vectorised.
        shares = jnp.concatenate([jnp.ones((1, actions)), self.shapes])
        own = jnp.einsum("ef,ka->eafk", jnp.eye(events), shares)[..., None] * jnp.ones(tail)
        weights = both @ own.reshape(events * actions, -1)
        added = np.tile(np.eye(tail, dtype=np.float32), (events * len(shares), 1))
        return both @ self.level.reshape(events * actions, tail) + (self.network(states) * weights) @ added

    def loss(self, rows: Rows, scale: TailScale) -> jax.Array:
        """Loss of the logged next state given the logged action and event, summed over dynamic features, [rows]."""
        states, next_tail = jnp.asarray(rows.states), jnp.asarray(rows.next_tail)
        event = logged_events(rows, self.level.shape[0])
        scores = self.of_action(states, jnp.asarray(rows.action), event)
        numbers, binaries, categories = _places(self.layout)
        change = (next_tail[:, numbers] - states[:, self.layout.numbers]) / scale.change
        total = 0.5 * jnp.square(scores[:, numbers] - change).sum(axis=1)
        total += (jax.nn.softplus(scores[:, binaries]) - next_tail[:, binaries] * scores[:, binaries]).sum(axis=1)
        for block in categories:
            total -= (next_tail[:, block] * jax.nn.log_softmax(scores[:, block], axis=1)).sum(axis=1)
        return total * rows.continues

    def expected_tail(
        self, fixed: FixedPart, nodes: jax.Array, chances: Sequence[jax.Array], scale: TailScale
    ) -> jax.Array:
        """Expected tail after every action, [actions, tail, n], of n = groups · size nodes [groups, size, changing].

        `fixed` is the fixed part of the groups [groups, ...]; `chances` are the probabilities of the events,
        [actions, n] each.
        """
        # Rows are the last axis, to fill the vector registers: events, actions and columns are too few.
        events, actions, tail = self.level.shape
        columns = nodes.reshape(-1, nodes.shape[2])
        raw = self.network.at(fixed, nodes).T.reshape(events, 1 + len(self.shapes), tail * len(columns))
        now = columns[:, 1 : 1 + self.layout.dynamic_numbers].T
        shares = jnp.concatenate([jnp.ones((actions, 1)), self.shapes.T], axis=1)
        expected = jnp.zeros(())
        for event, chance in enumerate(chances):
            # A product of small matrices: a sum fused with the exponentials after it would not be vectorised.
            scores = (shares @ raw[event]).reshape(actions, tail, len(columns)) + self.level[event][..., None]
            expected = expected + self._tail(now, scores, scale) * chance[:, None]
        return expected

    def _tail(self, now: jax.Array, scores: jax.Array, scale: TailScale) -> jax.Array:
        """The expected next tail from scores [actions, tail, n] and dynamic numbers `now` [numbers, n], of the scores'
        shape."""
        numbers, binaries, categories = _places(self.layout)
        moved = now + scale.change[:, None] * scores[:, numbers]
        parts = [jnp.clip(moved, scale.low[:, None], scale.high[:, None]), jax.nn.sigmoid(scores[:, binaries])]
        parts += [jax.nn.softmax(scores[:, block], axis=1) for block in categories]
        return jnp.concatenate(parts, axis=1)


def _places(layout: StateLayout) -> tuple[slice, slice, tuple[slice, ...]]:
    """The columns of numbers, binaries and each category in the tail."""
    first = layout.step + 1

    def shift(part: slice) -> slice:
        return slice(part.start - first, part.stop - first)

    return shift(layout.numbers), shift(layout.binaries), tuple(shift(block) for block in layout.categories)


# The event of a step is nothing, a reward, or a reward with a payment (of the first cost). Transitions are conditioned
# on it, which leaves little to learn; the outcome network gives the probabilities of events.


def event_count(targets: OutcomeTargets) -> int:
    """Number of events: one if the reward is a number, two if it is binary, three if costs need a reward."""
    if not isinstance(targets.reward, BinaryReward):
        return 1
    return 3 if isinstance(targets.costs[0], RewardedCost) else 2


def logged_events(rows: Rows, events: int) -> jax.Array:
    """The event of each row, one-hot, [rows, events]."""
    outcomes = jnp.asarray(rows.outcomes)
    rewarded = outcomes[:, 0] > 0
    paid = rewarded & (outcomes[:, 1] > 0)
    place = jnp.minimum(rewarded.astype(jnp.int32) + paid.astype(jnp.int32), events - 1)
    return jax.nn.one_hot(place, events)


def event_chances(outcomes: Sequence[jax.Array], targets: OutcomeTargets, events: int) -> list[jax.Array]:
    """Probability of each event, given the expected outcomes; [actions, n] each."""
    rewards = outcomes[0]
    if events == 1:
        return [jnp.ones(rewards.shape)]
    paying = targets.costs[0]
    if isinstance(paying, RewardedCost) and events == 3:
        amounts = paying.amounts[:, None]
        paid = jnp.where(amounts > 0, outcomes[1] / jnp.where(amounts > 0, amounts, 1.0), 0.0)
        paid = jnp.clip(paid, 0.0, rewards)  # calibrated outcomes may contradict each other a little
        return [1.0 - rewards, rewards - paid, paid]
    return [1.0 - rewards, rewards]


def stack(trees: Sequence[Any]) -> Any:
    """Stack trees of arrays: every array gets a leading axis [trees]."""
    # In numpy: outside a compiled function, jax would compile a program for every shape.
    return jax.tree.map(lambda *arrays: np.stack([np.asarray(array) for array in arrays]), *trees)


def slots(count: int) -> NDArray[np.float32]:
    """The positions in a stack as one-hot rows, [count, count]."""
    return np.eye(count, dtype=np.float32)


class ValueNetwork(eqx.Module):
    """States [n, width] -> reward, cost (and entropy bonus) to go after every action, at every price.

    Dueling heads: one output per curve is the value of the state, the others weight shapes over the actions that sum to
    zero. Prices share the trunk, curves and shapes, and every row trains all prices at once, so that many prices cost
    little more than one.
    """

    network: WideDeep
    level: jax.Array
    """[curves, actions]"""
    shapes: jax.Array
    """Advantages over the actions, [rank, actions]."""
    basis: jax.Array
    """Each curve as a vector over standardised heads, [curves, heads, components]; orthogonal; not learned."""
    centre: jax.Array
    """Mean of the targets, [heads, components]; not learned."""
    scale: jax.Array
    """Standard deviation of the targets, [heads, components]; not learned."""
    slot: jax.Array
    """The fold that the network learns from, one-hot, [folds]; not learned."""

    def __call__(self, states: jax.Array) -> jax.Array:
        """[n, width] -> [n, heads, components, actions]."""
        spread = self.basis * self.scale
        over_actions = jnp.concatenate([jnp.ones((1, self.level.shape[1])), self.advantages()])
        # One matrix product expands curves and actions: far cheaper than a small product per row.
        outwards = jnp.einsum("khc,ja->kjhca", spread, over_actions)
        level = self.centre[..., None] + jnp.einsum("khc,ka->hca", spread, self.level)
        flat = self.network(states) @ outwards.reshape(-1, level.size) + level.reshape(-1)
        return flat.reshape(len(states), *level.shape)

    def advantages(self) -> jax.Array:
        """Shapes over the actions that sum to zero, [rank, actions]."""
        return self.shapes - self.shapes.mean(axis=1, keepdims=True)


def new_value_networks(
    layout: StateLayout,
    actions: int,
    heads: int,
    components: int,
    hidden: tuple[int, ...],
    rank: int | None,
    curves: int,
    folds: int,
    seed: int,
) -> ValueNetwork:
    """Untrained networks, every array with a leading axis [folds]; at most one curve for each head and component."""
    shapes = LowRankResponse(actions, rank=actions - 1 if rank is None else rank).shapes
    curves = min(curves, heads * components)
    basis = np.eye(curves, heads * components, dtype=np.float32).reshape(curves, heads, components)
    networks = [
        ValueNetwork(
            network=WideDeep(layout, hidden, curves * (1 + shapes.shape[0]), np.random.default_rng([seed, fold])),
            level=zeros(curves, actions),
            shapes=shapes,
            basis=float32(basis),
            centre=zeros(heads, components),
            scale=float32(np.ones((heads, components))),
            slot=float32(slots(folds)[fold]),
        )
        for fold in range(folds)
    ]
    stacked: ValueNetwork = stack(networks)
    return stacked


def networks_at(futures: ValueNetwork | None, stage: int) -> ValueNetwork | None:
    """The networks of one step, [steps - 1, folds] -> [folds]; None after the last step."""
    if futures is None or stage >= futures.centre.shape[0]:
        return None
    chosen: ValueNetwork = jax.tree.map(lambda array: np.asarray(array)[stage], futures)
    return chosen


class Folded(eqx.Module):
    """A network and the fold of users that it was trained on."""

    network: Any
    slot: jax.Array
    """One-hot, [folds]; not learned."""


class Immediate(eqx.Module):
    """Reward and cost of a step, and the behaviour policy: what does not depend on the price."""

    outcome: Folded
    """Arrays with a leading axis [folds]."""
    behaviour: Folded
    """Arrays with a leading axis [folds]."""
    rewarding: RewardTarget
    costing: CostTarget
    actions: int = eqx.field(static=True)

    def outcomes(self, states: jax.Array) -> jax.Array:
        """Mean outcomes of every action by every fold: [n, width] -> [outcomes, folds, n, actions]."""

        def one(folded: Folded) -> jax.Array:
            outcomes = folded.network.expected(states, OutcomeTargets(self.rewarding, (self.costing,)))
            return jnp.stack([outcome.T for outcome in outcomes])

        return jax.vmap(one, out_axes=1)(self.outcome)

    def chances(self, states: jax.Array) -> jax.Array:
        """Probability of each action under the behaviour policy, mean over folds: [n, width] -> [n, actions]."""
        chances = jax.vmap(lambda folded: jax.nn.softmax(folded.network(states)))(self.behaviour)
        return chances.mean(axis=0)
