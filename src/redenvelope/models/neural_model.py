"""The neural environment model: an ensemble of outcome and transition networks, its predictions, and its storage.

The history in a state is not predicted: an action changes it in known ways (`KnownMoves`). Weights are stored as arrays
named by their place in the model, and checked before anything is built from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.errors import ModelError
from redenvelope.log.encoding.history import HistoryMoves
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.calibration import Calibration, blank_calibration
from redenvelope.models.dataset import require_states
from redenvelope.models.environment import apply_outcomes, apply_steps
from redenvelope.models.networks import (
    FixedPart,
    OutcomeNetwork,
    StatePieces,
    TailScale,
    TransitionNetwork,
    event_chances,
    hat_count,
    new_pieces,
    stack,
)
from redenvelope.models.responses import STRUCTURES
from redenvelope.models.targets import OutcomeTargets, Survival, WrittenTarget, new_target, written_target
from redenvelope.serialization import from_plain, to_plain


@dataclass(frozen=True)
class Architecture:
    """The shapes of the networks: everything that is needed to build them."""

    layout: StateLayout
    actions: int
    events: int
    """Number of events, see `event_count`."""
    members: int
    outcome_hidden: tuple[int, ...]
    transition_hidden: tuple[int, ...]
    reward_structure: str
    cost_structures: tuple[str, ...]
    """One per budget."""
    survival_structure: str | None = None
    """Response structure of survival; None if nobody leaves."""
    attributes: int = 0
    """Attributes of the actions, see `ItemResponse`."""
    pieces: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """Pieces of each static and of each dynamic number (see `Pieces`); empty if numbers are not cut."""

    def __post_init__(self) -> None:
        if min(self.actions, self.members, self.events, len(self.cost_structures), *self.hidden) < 1:
            raise ValueError("a model has at least one action, member, event, cost and unit in every layer")

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of all hidden layers."""
        return (*self.outcome_hidden, *self.transition_hidden)

    @property
    def structures(self) -> tuple[str, ...]:
        """Response structures of the outcomes and, if users leave, of survival, [responses]."""
        staying = () if self.survival_structure is None else (self.survival_structure,)
        return (self.reward_structure, *self.cost_structures, *staying)

    def networks(
        self,
        seed: int,
        starts: FloatArray,
        pieces: StatePieces | None = None,
        attributes: NDArray[np.float32] | None = None,
    ) -> dict[str, Any]:
        """Untrained networks that start from scores [responses, actions]; every array with a leading axis [members].

        A member does not depend on the number of members. `pieces` must match the architecture's counts; `attributes`
        are the actions' attributes, [attributes, actions], zeros by default.
        """
        pieces = pieces or (new_pieces(self.pieces[0]), new_pieces(self.pieces[1]))
        known = np.zeros((self.attributes, self.actions), np.float32) if attributes is None else attributes
        shape = (self.layout, self.actions, self.outcome_hidden, self.structures)
        members = []
        for member in range(self.members):
            generator = np.random.default_rng([seed, member])
            outcome = OutcomeNetwork(*shape, generator, known, pieces)
            transition = TransitionNetwork(self.layout, self.actions, self.events, self.transition_hidden, generator)
            members.append({"outcome": outcome.start(starts), "transition": transition})
        stacked: dict[str, Any] = stack(members)
        return stacked


@dataclass(frozen=True)
class _WrittenModel:
    """A model as plain data, without its weights."""

    architecture: Architecture
    reward_target: WrittenTarget
    cost_targets: tuple[WrittenTarget, ...]
    calibrated: bool = False


class NeuralModel(eqx.Module):
    """A learned environment (see EnvironmentModel and SplitModel); every prediction is the mean over the members."""

    outcome: OutcomeNetwork
    """Arrays with a leading axis [members]."""
    transition: TransitionNetwork
    """Arrays with a leading axis [members]."""
    targets: OutcomeTargets
    scale: TailScale
    architecture: Architecture = eqx.field(static=True)
    history: KnownMoves | None = None
    """How a step changes the history in a state; None if states have no history."""
    calibration: Calibration | None = None
    """Calibration of the networks' outcomes; None leaves them as they are."""

    @property
    def actions(self) -> int:
        """Number of actions, in the order of the action catalogue."""
        return self.architecture.actions

    @property
    def budgets(self) -> int:
        """Number of costs."""
        return len(self.architecture.cost_structures)

    @property
    def leaves(self) -> bool:
        """Whether users leave before the campaign's last step; see LeavingModel."""
        return self.architecture.survival_structure is not None

    @property
    def layout(self) -> StateLayout:
        """The columns of a state."""
        return self.architecture.layout

    @property
    def fixed_width(self) -> int:
        """See SplitModel."""
        return self.layout.step

    def fixed_parts(self, states: jax.Array) -> tuple[FixedPart, FixedPart]:
        """See SplitModel; arrays [users, members, ...]."""

        def of(networks: Any) -> FixedPart:
            parts: FixedPart = jax.vmap(lambda member: member.network.fixed_part(states), out_axes=1)(networks)
            return parts

        return of(self.outcome), of(self.transition)

    def node_outcomes(self, fixed: FixedPart, nodes: jax.Array) -> tuple[jax.Array, ...]:
        """See SplitModel."""
        return self._responses(fixed, nodes)[: 1 + self.budgets]

    def node_steps(
        self, fixed: tuple[FixedPart, FixedPart], nodes: jax.Array
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """See SplitModel."""
        outcomes = self._responses(fixed[0], nodes)
        chances = event_chances(outcomes, self.targets, self.architecture.events)
        tail = _mean_over_members(
            lambda network, own: network.expected_tail(own, nodes, chances, self.scale), self.transition, fixed[1]
        )
        step = nodes.reshape(-1, 1, nodes.shape[2])[..., :1] + self.layout.step_change
        onward = jnp.broadcast_to(step, (len(step), self.actions, 1))
        parts = [onward, tail.transpose(2, 0, 1)]
        if self.history is not None:
            before = nodes.reshape(-1, nodes.shape[2])[:, self.layout.history.start - self.layout.step :]
            parts.append(moved(self.history, before, [outcome.T for outcome in outcomes]))
        return outcomes, jnp.concatenate(parts, axis=-1)

    def _responses(self, fixed: FixedPart, nodes: jax.Array) -> tuple[jax.Array, ...]:
        """Outcomes and, if users leave, survival, [actions, groups · size] each."""
        found: tuple[jax.Array, ...] = _mean_over_members(
            lambda network, own: network.expected_at(own, nodes, self.targets), self.outcome, fixed
        )
        if self.calibration is None:
            return found
        outcomes = self.calibration(found[: 1 + self.budgets], nodes[..., 0].reshape(-1))
        return (*outcomes, *found[1 + self.budgets :])

    def survival(self, states: jax.Array) -> jax.Array:
        """Probability of a next step after every action: [n, width] -> [n, actions]; see LeavingModel."""
        now = jnp.asarray(states)
        if not self.leaves:
            return jnp.ones((len(now), self.actions))
        return self._responses(self.fixed_parts(now)[0], now[:, None, self.fixed_width :])[-1].T

    def outcomes(self, states: jax.Array) -> jax.Array:
        """Mean reward, then one mean cost for each budget: [n, width] -> [outcomes, n, actions]."""
        now = jnp.asarray(states)
        outcomes = self.node_outcomes(self.fixed_parts(now)[0], now[:, None, self.fixed_width :])
        return jnp.stack([outcome.T for outcome in outcomes])

    def successors(self, states: jax.Array) -> jax.Array:
        """Expected next state after every action: [n, width] -> [n, actions, width]."""
        now = jnp.asarray(states)
        changed = self.node_steps(self.fixed_parts(now), now[:, None, self.fixed_width :])[1]
        head = jnp.broadcast_to(now[:, None, : self.fixed_width], (len(now), self.actions, self.fixed_width))
        return jnp.concatenate([head, changed], axis=-1)

    def predict(self, states: NDArray[np.float32]) -> FloatArray:
        """Mean outcomes of every action for many states, in batches: [n, width] -> [outcomes, n, actions]."""
        require_states(states, self.layout)
        return apply_outcomes(self, states).astype(np.float64)

    def roll_out(
        self, states: NDArray[np.float32], actions: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], FloatArray]:
        """Follow actions [n, depth] from states [n, width] on predicted states.

        Returns the expected states after each action of users who stay, [depth, n, width], and the expected outcomes of
        each action over all users, [outcomes, depth, n]; those of users who left are zero.
        """
        require_states(states, self.layout)
        everyone = np.arange(len(states))
        reached, outcomes = [], []
        now, present = states, np.ones(len(states))
        for taken in actions.T:
            step, staying, following = apply_steps(self, now)
            now = following[everyone, taken]
            reached.append(now)
            outcomes.append(present * step[:, everyone, taken].astype(np.float64))
            if staying is not None:
                present = present * staying[everyone, taken]
        return np.stack(reached), np.stack(outcomes, axis=1)

    def of_member(self, member: int) -> NeuralModel:
        """One member's model as an ensemble of copies: the shapes are the same, so nothing has to be compiled."""
        copies = [member] * self.architecture.members
        outcome, transition = jax.tree.map(lambda array: np.asarray(array)[copies], (self.outcome, self.transition))
        return replace(self, outcome=outcome, transition=transition)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
        """Plain data for JSON, and the weights by name."""
        config = {
            "architecture": to_plain(self.architecture),
            "reward_target": to_plain(written_target(self.targets.reward)),
            "cost_targets": [to_plain(written_target(target)) for target in self.targets.costs],
            "calibrated": self.calibration is not None,
        }
        learned = {"outcome": self.outcome, "transition": self.transition, "scale": self.scale}
        if self.history is not None:
            learned["history"] = self.history
        if self.calibration is not None:
            learned["calibration"] = self.calibration
        return config, named_arrays(learned)

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, NDArray[np.float32]]) -> NeuralModel:
        """The model that `state` wrote; parts that do not fit together are refused before anything is built."""
        written = from_plain(_WrittenModel, config, "the model")
        architecture = written.architecture
        require_sizes(_sizes(architecture), arrays)
        if not set(architecture.structures) <= set(STRUCTURES):
            raise ModelError(f"the model is damaged: a structure is none of {', '.join(STRUCTURES)}")
        if len(written.cost_targets) != len(architecture.cost_structures):
            raise ModelError("the model is damaged: it needs one target per cost")
        skeleton = _skeleton(architecture)
        if written.calibrated:
            sizes = 1 + len(architecture.cost_structures), hat_count(architecture.layout), architecture.actions
            by_action = np.ndim(arrays.get("calibration.low", 0)) == 2
            skeleton["calibration"] = blank_calibration(*sizes, by_action)
        parts = restored(skeleton, arrays)
        costs = tuple(new_target(target, architecture.actions) for target in written.cost_targets)
        survival = None if architecture.survival_structure is None else Survival()
        targets = OutcomeTargets(new_target(written.reward_target, architecture.actions), costs, survival)
        history = parts.get("history")
        learned = (parts["outcome"], parts["transition"], targets, parts["scale"])
        return cls(*learned, architecture, history, parts.get("calibration"))


# With so few users all members at once fit the cache, and a loop over members has more overhead than work.
_FEW_GROUPS = 8


def _mean_over_members(function: Callable[[Any, FixedPart], Any], networks: Any, fixed: FixedPart) -> Any:
    """Mean over members of a function of the member's network [members, ...] and fixed part [groups, members, ...].

    Members are computed one after the other, because the hidden layers of all at once would not fit the cache.
    """
    both = (networks, jax.tree.map(lambda array: jnp.moveaxis(array, 1, 0), fixed))
    members = len(jax.tree.leaves(networks)[0])
    first = jax.tree.map(lambda array: array[0], both)
    if members == 1:  # a loop of one iteration would copy its result
        return function(*first)
    if len(jax.tree.leaves(fixed)[0]) <= _FEW_GROUPS:
        return jax.tree.map(lambda values: values.mean(axis=0), jax.vmap(function)(*both))
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape), jax.eval_shape(function, *first))

    def add(sums: Any, own: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, function(*own)), None

    sums = jax.lax.scan(add, zeros, both)[0]
    return jax.tree.map(lambda total: total / members, sums)


def _skeleton(architecture: Architecture) -> dict[str, Any]:
    """Untrained parts of the right shapes."""
    numbers = jax.device_put(np.zeros(architecture.layout.dynamic_numbers, np.float32))
    scores = np.zeros((len(architecture.structures), architecture.actions))
    known = known_moves(None, architecture.layout)
    history = {} if known is None else {"history": known}
    return architecture.networks(0, scores) | {"scale": TailScale(numbers, numbers, numbers)} | history


def _sizes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Sizes that the weights must be large enough for, by name; see `require_sizes`."""
    layout, members = architecture.layout, architecture.members
    sizes: dict[str, tuple[int, ...]] = {
        "members": (members, len(architecture.structures)),
        "actions": (members, architecture.actions),
        "events": (members, architecture.events),
        "attributes": (architecture.attributes,),
        "columns of a state": (members, layout.width),
        "codes of static categories": (members, sum(layout.static_categories)),
        "pieces of numbers": (members, sum(map(sum, architecture.pieces))),
        "what a step changes of a history": (layout.history_actions, layout.history.stop - layout.history.start),
    }
    for name, hidden in (("outcome", architecture.outcome_hidden), ("transition", architecture.transition_hidden)):
        for place, (units, following) in enumerate(zip(hidden, (*hidden, 1)[1:], strict=True)):
            sizes[f"layer {place} of the {name} network"] = (members, units, following)
    return sizes


# Arrays built temporarily while weights are read may be up to this many times as large as the weights.
_SLACK = 64


def named_arrays(parts: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    """The arrays of all parts, named by their place in the part."""
    return {name: np.asarray(leaf) for name, leaf in _named_leaves(parts)}


def restored(skeletons: dict[str, Any], arrays: dict[str, NDArray[np.float32]]) -> dict[str, Any]:
    """Parts like `skeletons` with arrays from `named_arrays`; missing, unexpected or ill-fitting ones are refused."""
    expected = _named_leaves(skeletons)
    names = [name for name, _ in expected]
    if set(names) != set(arrays):
        odd = min(set(names) ^ set(arrays))
        raise ModelError(f"the weights do not fit the model: {odd!r} is missing or unexpected; save the plan again")
    for name, leaf in expected:
        given = arrays[name]
        if given.shape != leaf.shape or given.dtype != leaf.dtype:
            raise ModelError(
                f"the weights do not fit the model: {name!r} is {given.dtype} of shape {given.shape}, "
                f"not {leaf.dtype} of shape {leaf.shape}; save the plan again"
            )
        if not np.isfinite(given).all():
            raise ModelError(f"the weights are damaged: {name!r} contains what is not a number; save the plan again")
    leaves = [jax.device_put(arrays[name]) for name in names]
    parts: dict[str, Any] = jax.tree.unflatten(jax.tree.structure(skeletons), leaves)
    return parts


def require_sizes(sizes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a model whose weights are far too few for the sizes in its description.

    Checked before anything of these sizes is allocated: a plan from elsewhere may claim any size.
    """
    given = sum(array.size for array in arrays.values())
    for name, size in sizes.items():
        if min(size, default=0) < 0 or prod(size) > _SLACK * max(given, 1):
            raise ModelError(f"the weights do not fit the model: {given:,} numbers are too few for {name} of {size}")


def _named_leaves(parts: dict[str, Any]) -> list[tuple[str, Any]]:
    """Names and arrays of the parts, in the order in which jax flattens them."""
    return [
        (f"{path[0].key}{jax.tree_util.keystr(path[1:])}", leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(parts)[0]
    ]


class KnownMoves(eqx.Module):
    """`HistoryMoves` in float32: how an action changes the history in a state."""

    keep: jax.Array
    """[actions, columns]"""
    jump: jax.Array
    """[actions, columns]"""
    gain: jax.Array
    """[outcomes, columns]"""


def known_moves(moves: HistoryMoves | None, layout: StateLayout) -> KnownMoves | None:
    """The moves of a layout's history (zeros if `moves` is None); None if the layout has no history."""
    if not layout.history_actions:
        return None
    width = layout.history.stop - layout.history.start
    shapes = ((layout.history_actions, width),) * 2 + ((layout.history_outcomes, width),)
    arrays = moves if moves is not None else [np.zeros(shape) for shape in shapes]
    return KnownMoves(*(jax.device_put(np.asarray(array).astype(np.float32)) for array in arrays))


def moved(known: KnownMoves, history: jax.Array, outcomes: Sequence[jax.Array]) -> jax.Array:
    """Histories after every action, [n, actions, columns], from histories [n, columns] and expected outcomes, each
    [n, actions]; outcomes beyond those in the history are ignored."""
    following = known.keep * history[:, None] + known.jump
    for gain, outcome in zip(known.gain, outcomes, strict=False):
        following = following + gain * outcome[..., None]
    return following
