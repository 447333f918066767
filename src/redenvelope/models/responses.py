"""Response structures: how the actions share strength, from raw outputs of a network to one score per action.

Every structure has the same three parts: `outputs`, the number of raw outputs it needs; `start(scores)`, which
sets it so that raw outputs of zero give the scores [actions]; and the call, raw [outputs, n] -> [actions, n].
Among the structures that the log does not contradict, the loss on held-out users chooses (`choose_structure`).

Rows are the last axis, because they fill the vector registers and a few actions do not. Outputs are mixed by products
of small matrices, because a sum fused with the exponential after it would not be vectorised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError

_SMALLEST_STEP = 0.02  # a step of zero could never grow: its slope would be zero too
_SOFTPLUS_OF_ZERO = float(np.log(2.0))


class Response(Protocol):
    """A response structure, as the networks use it."""

    @property
    def outputs(self) -> int:
        """Number of raw outputs it takes."""
        ...

    def start(self, scores: NDArray[np.float64]) -> Response:
        """The same structure, giving `scores` [actions], as nearly as it can, when every raw output is zero."""
        ...

    def __call__(self, raw: jax.Array) -> jax.Array:
        """Scores of all actions: [outputs, n] -> [actions, n]."""
        ...


class IndependentResponse(eqx.Module):
    """Every action has its own head: nothing shared beyond the trunk."""

    level: jax.Array
    """[actions]"""

    def __init__(self, actions: int) -> None:
        self.level = zeros(actions)

    @property
    def outputs(self) -> int:
        """One per action."""
        return self.level.shape[-1]

    def start(self, scores: NDArray[np.float64]) -> IndependentResponse:
        """See the module."""
        started: IndependentResponse = eqx.tree_at(lambda part: part.level, self, float32(scores))
        return started

    def __call__(self, raw: jax.Array) -> jax.Array:
        """See the module."""
        return self.level[:, None] + raw


class CumulativeResponse(eqx.Module):
    """A base and non-negative steps, in the order of cost: the response never falls."""

    level: jax.Array
    """Base of the cheapest action, [1]."""
    log_step: jax.Array
    """Logarithm of each step's typical size, [actions - 1], scaled by a raw output."""

    def __init__(self, actions: int) -> None:
        self.level = zeros(1)
        self.log_step = zeros(actions - 1)

    @property
    def outputs(self) -> int:
        """One for the base and one per step."""
        return 1 + self.log_step.shape[-1]

    def start(self, scores: NDArray[np.float64]) -> CumulativeResponse:
        """See the module."""
        steps = np.maximum(np.diff(np.maximum.accumulate(scores)), _SMALLEST_STEP)
        started: CumulativeResponse = eqx.tree_at(
            lambda part: (part.level, part.log_step),
            self,
            (float32(scores[:1]), float32(np.log(steps / _SOFTPLUS_OF_ZERO))),
        )
        return started

    def __call__(self, raw: jax.Array) -> jax.Array:
        """See the module."""
        # A sum over a triangle instead of a cumulative sum: one small matrix product.
        count = len(self.log_step)
        triangle = jnp.asarray(np.tril(np.ones((count + 1, count), np.float32), k=-1))
        return self.level + raw[:1] + (triangle * jnp.exp(self.log_step)) @ jax.nn.softplus(raw[1:])


class LowRankResponse(eqx.Module):
    """base(s) + Σ_k g_k(s) · shape_k(action): a few curves over the actions, weighted by the state."""

    level: jax.Array
    """[actions]"""
    shapes: jax.Array
    """[rank, actions]"""

    def __init__(self, actions: int, rank: int = 2) -> None:
        self.level = zeros(actions)
        self.shapes = float32(_polynomials(actions, min(rank, actions - 1)))

    @property
    def outputs(self) -> int:
        """One for the base and one per shape."""
        return 1 + self.shapes.shape[-2]

    def start(self, scores: NDArray[np.float64]) -> LowRankResponse:
        """See the module."""
        started: LowRankResponse = eqx.tree_at(lambda part: part.level, self, float32(scores))
        return started

    def __call__(self, raw: jax.Array) -> jax.Array:
        """See the module."""
        return self.level[:, None] + raw[:1] + self.shapes.T @ raw[1:]


class DoseResponse(eqx.Module):
    """base(s) + Σ_k g_k(s) · shape_k(action) with g ≥ 0 and shapes that never fall: low rank and monotone."""

    level: jax.Array
    """[1]"""
    log_step: jax.Array
    """Logarithm of the steps of each shape, [rank, actions - 1]."""

    def __init__(self, actions: int, rank: int = 2) -> None:
        self.level = zeros(1)
        self.log_step = zeros(min(rank, actions - 1), actions - 1)

    @property
    def outputs(self) -> int:
        """One for the base and one per shape."""
        return 1 + self.log_step.shape[-2]

    def start(self, scores: NDArray[np.float64]) -> DoseResponse:
        """See the module. The shapes start as the observed curve, tilted towards its cheap and its expensive end."""
        steps = np.maximum(np.diff(np.maximum.accumulate(scores)), _SMALLEST_STEP)
        rank = self.log_step.shape[-2]
        place = np.linspace(-1.0, 1.0, steps.size) if steps.size > 1 else np.zeros(1)
        tilt = np.stack([np.exp(sign * place) for sign in np.linspace(-1.0, 1.0, rank)] or [np.ones(0)])
        log_step = np.log(steps * tilt / tilt.sum(axis=0) / _SOFTPLUS_OF_ZERO)
        started: DoseResponse = eqx.tree_at(
            lambda part: (part.level, part.log_step), self, (float32(scores[:1]), float32(log_step))
        )
        return started

    def __call__(self, raw: jax.Array) -> jax.Array:
        """See the module."""
        rises = jnp.cumsum(jnp.exp(self.log_step), axis=1)
        shapes = jnp.concatenate([jnp.zeros((rises.shape[0], 1)), rises], axis=1)
        return self.level + raw[:1] + shapes.T @ jax.nn.softplus(raw[1:])


_ITEM_RANK = 6
"""Number of shapes for items without attributes."""


class ItemResponse(eqx.Module):
    """base(s) + Σ_j g_j(s) · attribute_j(action) + Σ_k h_k(s) · shape_k(action): user × item interactions through
    the items' attributes and a few learned shapes; each item has a level of its own."""

    level: jax.Array
    """[actions]"""
    shapes: jax.Array
    """[rank, actions]"""
    attributes: jax.Array
    """[attributes, actions]; not learned."""

    def __init__(self, actions: int, attributes: NDArray[np.float32] | None = None) -> None:
        self.level = zeros(actions)
        curves = _polynomials(actions, min(2, actions - 1))
        rank = len(curves) if attributes is not None and len(attributes) else _ITEM_RANK
        drawn = np.random.default_rng(actions).normal(0.0, 1.0, (max(rank - len(curves), 0), actions))
        self.shapes = float32(np.concatenate([curves, drawn]))
        self.attributes = float32(np.zeros((0, actions)) if attributes is None else attributes)

    @property
    def outputs(self) -> int:
        """One for the base, one per attribute and one per shape."""
        return 1 + self.attributes.shape[-2] + self.shapes.shape[-2]

    def start(self, scores: NDArray[np.float64]) -> ItemResponse:
        """See the module."""
        started: ItemResponse = eqx.tree_at(lambda part: part.level, self, float32(scores))
        return started

    def __call__(self, raw: jax.Array) -> jax.Array:
        """See the module."""
        basis = jnp.concatenate([jax.lax.stop_gradient(self.attributes), self.shapes])
        return self.level[:, None] + raw[:1] + basis.T @ raw[1:]


class TrialResponse(eqx.Module):
    """All structures, one of them active: one compiled program trains them all, as members of an ensemble.

    The others have weight zero, so they get no gradient and do not change.
    """

    responses: tuple[Response, ...]
    """In the order of `tried_structures`."""
    slot: jax.Array
    """The active structure, one-hot, [structures]; not learned."""

    def __init__(self, actions: int, attributes: NDArray[np.float32] | None = None) -> None:
        names = tried_structures(actions, attributes)
        self.responses = tuple(new_response(name, actions, attributes) for name in names)
        self.slot = zeros(len(names))

    @property
    def outputs(self) -> int:
        """As many as the largest structure needs; the others ignore the last ones."""
        return max(response.outputs for response in self.responses)

    def start(self, scores: NDArray[np.float64]) -> TrialResponse:
        """See the module."""
        responses = tuple(response.start(scores) for response in self.responses)
        started: TrialResponse = eqx.tree_at(lambda part: part.responses, self, responses)
        return started

    def __call__(self, raw: jax.Array) -> jax.Array:
        """See the module."""
        slot = jax.lax.stop_gradient(self.slot)
        scores = [response(raw[: response.outputs]) for response in self.responses]
        return (jnp.stack(scores) * slot[:, None, None]).sum(axis=0)


TRIAL = "trial"
"""The name under which `new_response` makes a TrialResponse."""

STRUCTURES: tuple[str, ...] = ("dose", "cumulative", "low_rank", "items", "independent")
"""Names of the structures, the most restrictive first."""

MONOTONE: frozenset[str] = frozenset({"dose", "cumulative"})
"""The structures whose response never decreases with the cost of the action."""


_FEW_ITEMS = 12
"""With at most this many actions and no attributes, low rank or one head per action can express as much as items."""


def tried_structures(actions: int, attributes: NDArray[np.float32] | None) -> tuple[str, ...]:
    """The structures worth trying for a number of actions with attributes [attributes, actions], or without."""
    plain = actions <= _FEW_ITEMS and (attributes is None or not len(attributes))
    return tuple(name for name in STRUCTURES if name != "items" or not plain)


def new_response(name: str, actions: int, attributes: NDArray[np.float32] | None = None) -> Response:
    """A new structure by its name, for actions with attributes [attributes, actions], if there are any."""
    if name == TRIAL:
        return TrialResponse(actions, attributes)
    if name not in STRUCTURES:
        raise UsageError(f"no response structure is called {name!r}; choose among {', '.join(STRUCTURES)}")
    if actions == 1 or name == "independent":
        return IndependentResponse(actions)
    if name == "cumulative":
        return CumulativeResponse(actions)
    if name == "items":
        return ItemResponse(actions, attributes)
    return LowRankResponse(actions) if name == "low_rank" else DoseResponse(actions)


def zeros(*shape: int) -> jax.Array:
    """Zeros in float32; made by numpy, because jax would compile a program for every shape."""
    return float32(np.zeros(shape))


def float32(values: ArrayLike) -> jax.Array:
    """Values in float32 on jax's device; converted by numpy, for the same reason."""
    found: jax.Array = jax.device_put(np.asarray(values, np.float32))
    return found


def _polynomials(actions: int, rank: int) -> NDArray[np.float32]:
    """Orthogonal polynomials of rising degree over the actions, with mean square one, [rank, actions]."""
    place = np.linspace(-1.0, 1.0, actions)
    powers = np.stack([place**degree for degree in range(rank + 1)], axis=1)
    curves = np.linalg.qr(powers)[0][:, 1:] * np.sqrt(actions)
    return np.asarray((curves * np.sign(curves[-1:])).T, dtype=np.float32)


# Standard errors by which a more expensive action must fall short of a cheaper one to count as worse; among the few
# dozen pairs of a catalogue, that rarely happens by chance.
_FALL_ERRORS = 3.5
_TIE_ERRORS = 2.0  # by which a dearer action must exceed a cheaper one in cost for their order to count
_LEAST_PROPENSITY = 0.01
_LEAST_ROWS = 30


@dataclass(frozen=True)
class StructureChoice:
    """The structure chosen for one outcome, and why."""

    outcome: str
    """"reward" or "cost"."""
    structure: str
    losses: dict[str, float]
    """Mean held-out loss of each structure tried; empty when the structure was given."""
    reason: str


def falls(
    value: NDArray[np.float64], action: NDArray[np.int32], propensity: NDArray[np.float64], actions: int
) -> list[tuple[int, int]]:
    """Pairs (cheaper, dearer) of actions where the dearer one's mean is clearly lower; the arguments are [rows].

    Rows are weighted by the inverse of their propensity: a behaviour policy that gives expensive actions to inactive
    users must not make these actions look worse.
    """
    mean, variance = _means(value, action, propensity, actions)
    # Hundreds of actions have thousands of pairs, of which more differ by chance.
    errors = max(_FALL_ERRORS, float(np.sqrt(2 * np.log(max(actions * (actions - 1), 1)))))
    return [
        (cheaper, dearer)
        for cheaper in range(actions)
        for dearer in range(cheaper + 1, actions)
        if mean[cheaper] - mean[dearer] > errors * np.sqrt(variance[cheaper] + variance[dearer])
    ]


def ties(
    cost: NDArray[np.float64], action: NDArray[np.int32], propensity: NDArray[np.float64], actions: int
) -> list[tuple[int, int]]:
    """Neighbouring actions of which the second is not clearly dearer: their order, and so a response that never falls
    along it, would be arbitrary. The arguments are [rows]; an action with only a few rows ties with none."""
    mean, variance = _means(cost, action, propensity, actions)
    dearer, error = np.diff(mean), np.sqrt(variance[1:] + variance[:-1])
    least = _TIE_ERRORS * error + 1e-9 * np.abs(mean).max()  # sums of equal amounts differ in their last digits
    tied = np.flatnonzero((dearer <= least) & np.isfinite(error))
    return [(int(place), int(place) + 1) for place in tied]


def _means(
    value: NDArray[np.float64], action: NDArray[np.int32], propensity: NDArray[np.float64], actions: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean of values [rows] by action, weighted by inverse propensities, and its variance, [actions] each."""
    weight = 1.0 / np.maximum(propensity, _LEAST_PROPENSITY)
    total = np.maximum(np.bincount(action, weights=weight, minlength=actions), 1e-12)
    mean = np.bincount(action, weights=weight * value, minlength=actions) / total
    squares = np.bincount(action, weights=(weight * (value - mean[action])) ** 2, minlength=actions)
    # An action with only a few rows has no reliable standard error.
    count = np.bincount(action, minlength=actions)
    return mean, np.where(count >= _LEAST_ROWS, squares / total**2, np.inf)


def allowed_structures(contradictions: list[tuple[int, int]], tried: tuple[str, ...]) -> tuple[str, ...]:
    """The tried structures that the log does not contradict, the most restrictive first: no monotone one if `falls`
    or `ties` found contradictions."""
    return tuple(name for name in tried if not (contradictions and name in MONOTONE))


def choose_structure(outcome: str, losses: dict[str, NDArray[np.float64]]) -> StructureChoice:
    """The most restrictive structure within one standard error of the best.

    `losses` are the held-out losses, [rows], of each structure tried. The rows are the same, so the difference of two
    structures is far less noisy than either.
    """
    means = {name: float(rows.mean()) for name, rows in losses.items()}
    best = min(means, key=lambda name: means[name])
    for name in STRUCTURES:
        if name not in losses:
            continue
        excess = losses[name] - losses[best]
        error = float(excess.std() / np.sqrt(len(excess)))
        if means[name] - means[best] <= error:
            break
    reason = f"least loss on held-out users ({means[name]:.5f})"
    if name != best:
        reason = (
            f"shares more than {best} and is within one standard error of it on held-out users "
            f"({means[name]:.5f} against {means[best]:.5f} ± {error:.5f})"
        )
    left_out = [name for name in STRUCTURES if name in MONOTONE and name not in losses]
    if left_out:
        why = f"in the log a more expensive action has a lower {outcome}, or two cost the same"
        reason += f"; {', '.join(left_out)} not tried: {why}"
    return StructureChoice(outcome, name, means, reason)
