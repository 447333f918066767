"""Calibration of predicted outcomes: right on average per action and step, effects shrunk as held-out users suggest.

The effects of actions (differences between a user's actions) are shrunk towards their means over users. A share of 1
leaves them as learned; at 0 every user has the same effects, so that the best plan is untargeted. The share is chosen
on users who did not train the networks: by the slope of observed on predicted differences, and by the doubly robust
score of the decisions that follow from it. Main names: `calibrate`, `Calibration`, `TargetingChoice`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.dual.frontier import Frontier
from redenvelope.models.dataset import Examples
from redenvelope.models.networks import hat_count, step_hats
from redenvelope.models.responses import float32

_PLAIN = 3.0
"""Standard errors from which on a slope counts as plainly not zero."""
_ERRORS_TO_LOSE = 0.5
"""Standard errors by which targeted decisions may score below untargeted ones on held-out users."""
_PLAIN_ERRORS_TO_LOSE = 2.0
"""The same if the slope is plainly not zero: the score is by far the noisier of the two."""
_AROUND = (0.8, 1.0, 1.25)
"""Prices at which decisions are scored, relative to those where the best untargeted action changes: there targeting
matters."""
_LEAST_PROPENSITY = 0.01
_CONSTANT = 1e-6
_FEW_ROWS = 30  # an action with fewer rows gets the range of all actions, because its own is too narrow


class Calibration(eqx.Module):
    """The calibration of the networks' outcomes: shrunk effects, levels per step and action, and bounds."""

    effect: jax.Array
    """Share of the learned differences between users in the effects of actions that is kept, [outcomes]."""
    base: jax.Array
    """1, or 0 if every action always has the same outcome, [outcomes]."""
    around: jax.Array
    """Weights of the actions whose mean outcome is the reference of effects, [outcomes, actions]."""
    level: jax.Array
    """Added by step and action, [outcomes, hats of the step, actions]."""
    low: jax.Array
    """Lower bound: the smallest logged outcome of each action, [outcomes, actions]; of all actions, [outcomes], in
    older plans."""
    high: jax.Array
    """Upper bound, the same with the largest."""

    def __call__(self, outcomes: Sequence[jax.Array], step: jax.Array) -> list[jax.Array]:
        """Calibrated outcomes, [actions, n] each, given the step's column [n]."""
        hats = step_hats(step[:, None], self.level.shape[1])
        found = []
        for place, outcome in enumerate(outcomes):
            common = self.around[place] @ outcome
            kept = self.effect[place] * (outcome - common) + self.base[place] * common
            low, high = (jnp.expand_dims(bound[place], -1) for bound in (self.low, self.high))
            found.append(jnp.clip(kept + self.level[place].T @ hats.T, low, high))
        return found


def blank_calibration(outcomes: int, hats: int, actions: int, by_action: bool) -> Calibration:
    """A calibration of zeros in the right shapes; bounds are per action, or for all actions."""
    each, around = float32(np.zeros(outcomes)), float32(np.zeros((outcomes, actions)))
    bound = around if by_action else each
    return Calibration(each, each, around, float32(np.zeros((outcomes, hats, actions))), bound, bound)


@dataclass(frozen=True)
class TargetingChoice:
    """The share of the learned differences between users in the effects of actions that is kept, and why."""

    share: float
    """From 0 (the plan is untargeted) to 1 (as learned)."""
    slope: float
    """Slope of observed on predicted differences between users, on held-out decisions: 1 if they are as large as
    learned."""
    error: float
    """Standard error of the slope."""
    gains: dict[str, float]
    """By share tried, the doubly robust gain per decision over untargeted offers at the same prices, in reward minus
    priced cost."""
    errors: dict[str, float]
    """Their standard errors."""
    decisions: int
    """Number of held-out decisions behind these figures."""

    @property
    def is_untargeted(self) -> bool:
        """Whether every user has the same effects."""
        return self.share == 0

    @property
    def reason(self) -> str:
        """The choice in one sentence."""
        seen = f"{self.decisions:,} held-out decisions show {self.slope:.2f} ± {self.error:.2f} of what was learned"
        if self.is_untargeted:
            return f"offers are not targeted, because users do not measurably differ in what offers do to them: {seen}"
        if self.share == 1:
            return f"users differ in what offers do to them as learned: {seen}"
        return f"differences between users in what offers do to them are shrunk to {self.share:.0%}: {seen}"


class CalibrationRows(NamedTuple):
    """Logged decisions with the predictions of uncalibrated networks."""

    predicted: FloatArray
    """[outcomes, rows, actions]"""
    observed: FloatArray
    """[outcomes, rows]"""
    action: NDArray[np.int32]
    """[rows]"""
    weight: FloatArray
    """Inverse propensities, [rows]."""
    hat: NDArray[np.int64]
    """The nearest hat function of the step, [rows]."""
    user: NDArray[np.int64]
    """[rows]"""

    @classmethod
    def of(cls, predicted: FloatArray, examples: Examples, rows: NDArray[np.int64]) -> CalibrationRows:
        """Some rows of a log, with their predictions."""
        layout = examples.layout
        place = examples.states[rows, layout.step] * (hat_count(layout) - 1)
        return cls(
            predicted,
            examples.outcomes[:, rows],
            examples.action[rows],
            1.0 / np.maximum(examples.propensity[rows], _LEAST_PROPENSITY),
            np.rint(place).astype(np.int64),
            np.searchsorted(examples.starts, rows, side="right"),
        )

    def beside(self, other: CalibrationRows) -> CalibrationRows:
        """These rows and those of other users."""
        later = other._replace(user=other.user + self.user.max() + 1)
        found: CalibrationRows = jax.tree.map(lambda *own: np.concatenate(own, min(own[0].ndim - 1, 1)), self, later)
        return found


def calibrate(everyone: CalibrationRows, held_out: CalibrationRows, hats: int) -> tuple[Calibration, TargetingChoice]:
    """Fit the calibration: levels to the decisions of all training and tune users, the share of effects to those of
    users who did not train the networks."""
    choice = _chosen(everyone, held_out, hats)
    table = _table(everyone, choice.share, hats, _anchors(everyone))
    return table.calibration(everyone), choice


class _Table(NamedTuple):
    """A calibration in numpy."""

    effect: FloatArray
    base: FloatArray
    around: FloatArray
    level: FloatArray

    def apply(self, rows: CalibrationRows) -> FloatArray:
        """Calibrated outcomes [outcomes, rows, actions]; not clipped, because clipping would change their means."""
        common = np.einsum("ora,oa->or", rows.predicted, self.around)[..., None]
        kept = self.effect[:, None, None] * (rows.predicted - common) + self.base[:, None, None] * common
        return np.asarray(kept + self.level[:, rows.hat])

    def calibration(self, rows: CalibrationRows) -> Calibration:
        """The same in float32, bounded by the observed ranges."""
        few = np.bincount(rows.action, minlength=rows.predicted.shape[2]) < _FEW_ROWS
        low, high = _ranges(rows)
        least, most = low.min(axis=1, keepdims=True), high.max(axis=1, keepdims=True)
        bounds = np.where(few, least, low), np.where(few, most, high)
        return Calibration(*(float32(part) for part in (*self, *bounds)))


def _table(rows: CalibrationRows, share: float, hats: int, around: FloatArray) -> _Table:
    """The calibration with this share of the effects that makes outcomes right on average per action and step.

    Effects are differences from the mean over actions with weights `around` [outcomes, actions].
    """
    outcomes, count, actions = rows.predicted.shape
    level = np.zeros((outcomes, hats, actions))
    constant = np.all(_constant(rows), axis=1)
    table = _Table(np.where(constant, 0.0, share), np.where(constant, 0.0, 1.0), around, level)
    effects = rows.predicted - np.einsum("ora,oa->or", rows.predicted, around)[..., None]
    present = np.maximum(np.bincount(rows.hat, minlength=hats), 1)
    for place in range(outcomes):
        if constant[place]:
            total = np.bincount(rows.action, weights=rows.observed[place], minlength=actions)
            level[place] = total / np.maximum(np.bincount(rows.action, minlength=actions), 1)
            continue
        for action in range(actions):
            sums = np.bincount(rows.hat, weights=effects[place, :, action], minlength=hats)
            level[place, :, action] = (1 - share) * sums / present
        cell, size = rows.hat * actions + rows.action, hats * actions
        error = rows.observed[place] - table.apply(rows)[place, np.arange(count), rows.action]
        weights, errors, squares = (
            np.bincount(cell, weights=own, minlength=size)
            for own in (rows.weight, rows.weight * error, np.square(rows.weight * error))
        )
        # The networks share strength between actions, so their means can beat those of a cell's own rows: errors are
        # corrected only as far as they exceed noise.
        kept = np.maximum(1 - squares / np.maximum(errors**2, 1e-300), 0.0)
        level[place] += (kept * errors / np.maximum(weights, 1e-12)).reshape(hats, actions)
    return table


def _ranges(rows: CalibrationRows) -> tuple[FloatArray, FloatArray]:
    """The smallest and the largest outcome of each action, [outcomes, actions]; ∞ and −∞ if it was never taken."""
    low = np.full((len(rows.observed), rows.predicted.shape[2]), np.inf)
    high = -low
    for place, own in enumerate(rows.observed):
        np.minimum.at(low[place], rows.action, own)
        np.maximum.at(high[place], rows.action, own)
    return low, high


def _constant(rows: CalibrationRows) -> NDArray[np.bool_]:
    """Whether each action always had the same outcome, [outcomes, actions]; true of actions never taken."""
    low, high = _ranges(rows)
    return np.asarray(high - low <= _CONSTANT * np.maximum(1e-12, np.abs(rows.observed).max(axis=1, keepdims=True)))


def _anchors(rows: CalibrationRows) -> FloatArray:
    """The actions whose mean outcome stays as learned when effects are shrunk, as weights [outcomes, actions].

    These are the actions that always had the same outcome, if there are any, so that shrinking never makes a free
    action cost anything; otherwise all actions, which keeps every user's mean level as learned.
    """
    actions = rows.predicted.shape[2]
    taken = np.bincount(rows.action, minlength=actions) > 0
    known = _constant(rows) & taken
    known |= ~known.any(axis=1, keepdims=True)
    return np.asarray(known / known.sum(axis=1, keepdims=True))


def _chosen(everyone: CalibrationRows, rows: CalibrationRows, hats: int) -> TargetingChoice:
    """The share of the effects that held-out decisions confirm; half or a quarter of it, or 0, if the decisions that
    follow from it score worse than untargeted ones."""
    prices, users = _prices(everyone), np.unique(rows.user, return_inverse=True)[1]
    # Relative to the mean of all actions effects sum to zero, so errors in a user's level do not bias the slope.
    outcomes, _, actions = rows.predicted.shape
    mean = np.full((outcomes, actions), 1 / actions)
    none, full = (_table(everyone, share, hats, mean).apply(rows) for share in (0.0, 1.0))
    slope, error = _confirmed(rows, users, none, full, prices)
    found = _shrunk(slope, error)
    most = _PLAIN_ERRORS_TO_LOSE if slope >= _PLAIN * error else _ERRORS_TO_LOSE
    gains, errors, chosen = {}, {}, 0.0
    for share in (found, found / 2, found / 4):
        own = none + share * (full - none)
        gain, of_gain = _gain(rows, users, (own, none), full, prices)
        gains[f"{share:.3g}"], errors[f"{share:.3g}"] = gain, of_gain
        if gain >= -most * of_gain:
            chosen = share
            break
    return TargetingChoice(chosen, slope, error, gains, errors, len(rows.action))


def _confirmed(
    rows: CalibrationRows, users: NDArray[np.intp], none: FloatArray, full: FloatArray, prices: FloatArray
) -> tuple[float, float]:
    """The slope of observed on predicted differences between users in effects (reward minus priced cost), and its
    standard error.

    Rows are weighted by inverse propensities: the differences then sum to zero over a user's actions in expectation, so
    that errors in the level do not bias the slope.
    """
    each, products, squares = np.arange(len(rows.action)), [], []
    for price in prices:
        taken = [own[0, each, rows.action] - price * own[1, each, rows.action] for own in (none, full)]
        predicted, observed = taken[1] - taken[0], rows.observed[0] - price * rows.observed[1] - taken[0]
        products.append(rows.weight * predicted * observed)
        squares.append(rows.weight * predicted**2)
    product, square = np.sum(products, axis=0), np.sum(squares, axis=0)
    total = float(square.sum())
    if total <= _CONSTANT**2 * float(np.square(rows.observed[0]).sum()):
        return 0.0, 0.0
    slope = float(product.sum() / total)
    by_user = np.bincount(users, weights=product - slope * square)
    return slope, float(np.sqrt(np.square(by_user).sum()) / total)


def _shrunk(slope: float, error: float) -> float:
    """The share to keep: the slope times the James–Stein factor; 1 if a plain slope is not clearly below 1."""
    if slope <= error:
        return 0.0
    if slope >= _PLAIN * error and slope + error >= 1:
        return 1.0
    return float(min(slope, 1.0) * (1 - (error / slope) ** 2))


def _gain(
    rows: CalibrationRows, users: NDArray[np.intp], both: Sequence[FloatArray], baseline: FloatArray, prices: FloatArray
) -> tuple[float, float]:
    """The doubly robust gain per decision of choosing by the first of `both` outcomes [outcomes, rows, actions] instead
    of the second, averaged over prices, and its standard error."""
    each, scores = np.arange(len(rows.action)), np.zeros(len(rows.action))
    for price in prices:
        values = baseline[0] - price * baseline[1]
        left = (rows.observed[0] - price * rows.observed[1] - values[each, rows.action]) * rows.weight
        for outcomes, sign in zip(both, (1.0, -1.0), strict=True):
            taken = (outcomes[0] - price * outcomes[1]).argmax(axis=1)
            scores += sign / len(prices) * (values[each, taken] + np.where(taken == rows.action, left, 0.0))
    by_user = np.bincount(users, weights=scores - scores.mean())
    return float(scores.mean()), float(np.sqrt(np.square(by_user).sum()) / len(each))


def _prices(rows: CalibrationRows) -> FloatArray:
    """0, and prices around those at which the best untargeted action changes, [prices]."""
    actions = rows.predicted.shape[2]
    total = np.bincount(rows.action, weights=rows.weight, minlength=actions)
    seen = total > 0
    rewards, costs = (
        np.bincount(rows.action, weights=rows.weight * own, minlength=actions)[seen] / total[seen]
        for own in rows.observed[:2]
    )
    corners = Frontier(np.zeros(len(costs)), costs, rewards).envelope
    slopes = np.diff(rewards[corners]) / np.diff(costs[corners])
    return np.concatenate([[0.0], np.outer(slopes, _AROUND).ravel()])
