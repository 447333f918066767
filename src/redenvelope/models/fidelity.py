"""Fidelity: how well a model predicts held-out users, at one step and along roll-outs, and whether it is trusted.

`measure_fidelity` compares predictions with the log and lists every exceeded threshold as a reason. A roll-out follows
the logged actions on the model's own predicted states: it shows whether errors accumulate, and whether the model
predicts the later effects of an action. Standard errors are clustered by user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.models.dataset import Examples
from redenvelope.models.networks import outcome_names

_ROWS = 20_000


class RollOutModel(Protocol):
    """A model that can be rolled out."""

    def roll_out(
        self, states: NDArray[np.float32], actions: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], FloatArray]:
        """States [depth, n, width] and outcomes [outcomes, depth, n] along actions [n, depth]."""
        ...


@dataclass(frozen=True)
class RollOutOutcome:
    """One outcome along a roll-out, including the decision in its last state."""

    name: str
    predicted: float
    """Mean of the sum along the roll-out."""
    observed: float
    standard_error: float
    """Standard error of the gap, clustered by user."""
    later: tuple[ActionFidelity, ...]
    """Sums of all steps but the first, by the first action: the later effect of that action."""


@dataclass(frozen=True)
class RollOutFidelity:
    """Roll-outs along logged actions of `depth` steps; depth 1 is the next state."""

    depth: int
    rows: int
    state_error: float
    """Mean squared error of the dynamic features."""
    unchanged_error: float
    """The same for the prediction that nothing changes."""
    outcomes: tuple[RollOutOutcome, ...]
    """The reward, then one cost for each budget."""


@dataclass(frozen=True, eq=False)
class _Path:
    """Roll-outs from some rows to the largest depth; steps beyond the campaign's last are meaningless."""

    first: NDArray[np.int64]
    """The rows where they start, [starts]."""
    rows_after: NDArray[np.int64]
    """How many rows of the user follow without a gap, [starts]."""
    depths: NDArray[np.int64]
    """Steps that can be compared, [starts]: up to the campaign's last step, even if the user leaves, or up to a gap in
    the log."""
    states: NDArray[np.float32]
    """[depth, starts, width]"""
    outcomes: FloatArray
    """[outcomes, depth, starts]"""


def measure_roll_outs(model: RollOutModel, examples: Examples) -> tuple[RollOutFidelity, ...]:
    """Follow the logged actions from every row before the campaign's last step, for one step, two steps, and so on.

    The outcomes of users who left are zero, in the log as in the model, so actions that drive users away are noticed.
    """
    most = examples.campaign_steps - 1
    rows_after, depths = _reach(examples)
    first = np.flatnonzero(depths > 0)
    if not len(first) or not rows_after[first].any():
        return ()
    first = first[:: max(1, len(first) // _ROWS)]
    # One pass of full depth serves all depths; beyond the end of a user's rows the actions do not matter.
    rows = np.minimum(first[:, None] + np.arange(most + 1), len(examples) - 1)
    rolled_out = model.roll_out(np.ascontiguousarray(examples.states[first]), examples.action[rows])
    path = _Path(first, rows_after[first], depths[first], *rolled_out)
    parts = []
    for depth in range(1, most + 1):
        if not (path.depths >= depth).any():
            break
        parts.append(_at_depth(path, examples, depth))
    return tuple(parts)


def _reach(examples: Examples) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`rows_after` and `depths` of roll-outs from each row, [rows] each; see _Path."""
    count = len(examples)
    stops = np.flatnonzero(~examples.continues)
    stop = stops[np.searchsorted(stops, np.arange(count))]
    rows_after = stop - np.arange(count)
    to_the_end = np.maximum(examples.campaign_steps - 1 - examples.step, 0)
    return rows_after, np.where(examples.is_last[stop], to_the_end, rows_after)


def _at_depth(path: _Path, examples: Examples, depth: int) -> RollOutFidelity:
    """Fidelity of the roll-outs that can be compared for `depth` steps."""
    compared = path.depths >= depth
    first, rows_after = path.first[compared], path.rows_after[compared]
    marked = np.zeros(len(examples), dtype=bool)
    marked[first] = True
    ahead = np.arange(depth + 1)
    rows = np.minimum(first[:, None] + ahead, len(examples) - 1)
    present = ahead <= rows_after[:, None]
    outcomes = []
    for name, predicted, logged in zip(outcome_names(examples.budgets), path.outcomes, examples.outcomes, strict=True):
        model_sums, log_sums = np.zeros(len(examples)), np.zeros(len(examples))
        own = predicted[0, compared], logged[first]
        model_sums[first] = predicted[: depth + 1, compared].sum(axis=0)
        log_sums[first] = np.where(present, logged[rows], 0.0).sum(axis=1)
        total = mean_gap(examples, model_sums, log_sums, marked)[1:]
        model_sums[first] -= own[0]
        log_sums[first] -= own[1]
        outcomes.append(RollOutOutcome(name, *total, by_action(examples, model_sums, log_sums, marked)))
    return RollOutFidelity(depth, len(first), *_state_errors(path, examples, depth), tuple(outcomes))


def _state_errors(path: _Path, examples: Examples, depth: int) -> tuple[float, float]:
    """Mean squared error of the dynamic features of users who are still there, and of predicting no change."""
    lasting = path.rows_after >= depth
    if not lasting.any():
        return 0.0, 0.0
    first, tail = path.first[lasting], examples.layout.predicted
    truth = examples.states[first + depth, tail].astype(np.float64)
    width = max(truth.shape[1], 1)
    errors = (
        ((guess - truth) ** 2).sum(axis=1).mean() / width
        for guess in (path.states[depth - 1, lasting][:, tail], examples.states[first, tail])
    )
    predicted, unchanged = errors
    return float(predicted), float(unchanged)


_BINS = 10


class Predictor(RollOutModel, Protocol):
    """A model whose fidelity is measured."""

    def predict(self, states: NDArray[np.float32]) -> FloatArray:
        """Mean outcomes of every action: [n, width] -> [outcomes, n, actions]."""
        ...


@dataclass(frozen=True)
class FidelityThresholds:
    """Limits beyond which a model is not trusted. A gap counts only if it also exceeds `errors` standard errors."""

    mean_gap: float = 0.05
    """Gap between predicted and observed mean over all rows, as a share of the observed mean."""
    action_gap: float = 0.15
    """The same for the rows of one action, as a share of the observed mean of all rows."""
    calibration_gap: float = 0.10
    """Mean gap over the bins of predicted outcomes, as a share of the observed mean."""
    least_r_squared: float = 0.0
    """Smallest R²: a model must predict at least as well as the mean."""
    next_state_ratio: float = 1.0
    """Squared error of the next state relative to predicting no change; at every depth of a roll-out."""
    roll_out_gap: float = 0.10
    """Gap between predicted and observed sum of rewards or costs along a roll-out, as a share of the observed sum."""
    later_gap: float = 0.15
    """The same for the steps after the first of a roll-out, among the rows of one first action."""
    errors: float = 4.0


@dataclass(frozen=True)
class CalibrationBin:
    """Rows of similar predictions."""

    rows: int
    predicted: float
    observed: float
    standard_error: float


@dataclass(frozen=True)
class OutcomeFidelity:
    """Reward or cost of the logged actions, predicted and observed."""

    name: str
    predicted: float
    observed: float
    standard_error: float
    r_squared: float
    log_loss: float | None
    """Log loss of an outcome of 0 and 1; None for others."""
    actions: tuple[ActionFidelity, ...]
    calibration: tuple[CalibrationBin, ...]

    @property
    def calibration_gap(self) -> float:
        """Mean absolute gap over the bins, weighted by rows."""
        rows = sum(part.rows for part in self.calibration)
        return sum(part.rows * abs(part.predicted - part.observed) for part in self.calibration) / max(rows, 1)


@dataclass(frozen=True)
class Fidelity:
    """Fidelity of a model on held-out users, and whether it is trusted."""

    users: int
    rows: int
    outcomes: tuple[OutcomeFidelity, ...]
    """The reward, then one cost for each budget."""
    roll_outs: tuple[RollOutFidelity, ...]
    thresholds: FidelityThresholds
    reasons: tuple[str, ...]
    """Why the model is not trusted; empty when it is."""

    @property
    def trusted(self) -> bool:
        """Whether to plan with the model rather than learn without one."""
        return not self.reasons


def measure_fidelity(model: Predictor, examples: Examples, thresholds: FidelityThresholds | None = None) -> Fidelity:
    """Compare a model with the rows of held-out users."""
    thresholds = thresholds or FidelityThresholds()
    predicted = model.predict(np.ascontiguousarray(examples.states))[:, np.arange(len(examples)), examples.action]
    outcomes = tuple(
        _outcome(name, examples, *pair)
        for name, *pair in zip(outcome_names(examples.budgets), predicted, examples.outcomes, strict=True)
    )
    roll_outs = measure_roll_outs(model, examples)
    return Fidelity(
        users=examples.users,
        rows=len(examples),
        outcomes=outcomes,
        roll_outs=roll_outs,
        thresholds=thresholds,
        reasons=(
            *(reason for outcome in outcomes for reason in _outcome_reasons(outcome, thresholds)),
            *_roll_out_reasons(roll_outs, thresholds),
        ),
    )


def _outcome(name: str, examples: Examples, predicted: FloatArray, observed: FloatArray) -> OutcomeFidelity:
    residual = observed - predicted
    variance = float(observed.var())
    binary = bool(((observed == 0) | (observed == 1)).all())
    chance = np.clip(predicted, 1e-6, 1 - 1e-6)
    log_loss = -float(np.where(observed == 1, np.log(chance), np.log1p(-chance)).mean()) if binary else None
    everywhere = np.ones(len(predicted), dtype=bool)
    order = np.argsort(predicted, kind="stable")
    calibration = []
    for part in np.array_split(order, min(_BINS, len(order))):
        rows = np.zeros(len(predicted), dtype=bool)
        rows[part] = True
        calibration.append(CalibrationBin(*mean_gap(examples, predicted, observed, rows)))
    _, mean, observed_mean, error = mean_gap(examples, predicted, observed, everywhere)
    return OutcomeFidelity(
        name=name,
        predicted=mean,
        observed=observed_mean,
        standard_error=error,
        r_squared=1 - float((residual**2).mean()) / variance if variance > 0 else 0.0,
        log_loss=log_loss,
        actions=by_action(examples, predicted, observed, everywhere),
        calibration=tuple(calibration),
    )


def _outcome_reasons(outcome: OutcomeFidelity, limits: FidelityThresholds) -> list[str]:
    reasons = []
    name, scale = outcome.name, abs(outcome.observed)

    def beyond(predicted: float, observed: float, error: float, share: float) -> bool:
        return abs(predicted - observed) > max(share * scale, limits.errors * error)

    if beyond(outcome.predicted, outcome.observed, outcome.standard_error, limits.mean_gap):
        reasons.append(
            f"the predicted mean {name} is {outcome.predicted:.4g} where {outcome.observed:.4g} was observed "
            f"(more than {limits.mean_gap:.0%} apart)"
        )
    reasons += [
        f"action {part.action}: the predicted mean {name} is {part.predicted:.4g} where {part.observed:.4g} was "
        f"observed (more than {limits.action_gap:.0%} of the mean {name} apart)"
        for part in outcome.actions
        if beyond(part.predicted, part.observed, part.standard_error, limits.action_gap)
    ]
    noise = np.mean([part.standard_error for part in outcome.calibration])
    if outcome.calibration_gap > max(limits.calibration_gap * scale, limits.errors * float(noise)):
        reasons.append(
            f"the {name} is not calibrated: the mean gap over ten bins of predictions is {outcome.calibration_gap:.4g} "
            f"(more than {limits.calibration_gap:.0%} of the mean)"
        )
    if outcome.r_squared < limits.least_r_squared:
        reasons.append(
            f"the model explains the {name} worse than its mean (R² {outcome.r_squared:.3g}, "
            f"at least {limits.least_r_squared:g} needed)"
        )
    return reasons


def _roll_out_reasons(roll_outs: tuple[RollOutFidelity, ...], limits: FidelityThresholds) -> list[str]:
    reasons = []
    for part in roll_outs:
        after = "one step" if part.depth == 1 else f"{part.depth} steps"
        if part.state_error > limits.next_state_ratio * part.unchanged_error > 0:
            reasons.append(
                f"after {after} the predicted state is further off than an unchanged state "
                f"(squared error {part.state_error:.4g} against {part.unchanged_error:.4g})"
            )
        reasons += _later_reasons(part, limits)
        reasons += [
            f"rolled out for {after}, the model predicts a {total.name} of {total.predicted:.4g} where "
            f"{total.observed:.4g} was observed (more than {limits.roll_out_gap:.0%} apart)"
            for total in part.outcomes
            if abs(total.predicted - total.observed)
            > max(limits.roll_out_gap * abs(total.observed), limits.errors * total.standard_error)
        ]
    return reasons


def _later_reasons(part: RollOutFidelity, limits: FidelityThresholds) -> list[str]:
    """Actions whose later outcomes the model predicts wrongly."""
    reasons = []
    for total in part.outcomes:
        rows = sum(action.rows for action in total.later)
        scale = abs(sum(action.rows * action.observed for action in total.later)) / max(rows, 1)
        reasons += [
            f"after action {action.action}, the model predicts a {total.name} of {action.predicted:.4g} in the "
            f"following {part.depth} step(s) where {action.observed:.4g} was observed "
            f"(more than {limits.later_gap:.0%} of the mean apart)"
            for action in total.later
            if abs(action.predicted - action.observed)
            > max(limits.later_gap * scale, limits.errors * action.standard_error)
        ]
    return reasons


@dataclass(frozen=True)
class ActionFidelity:
    """One action's mean outcome, predicted and observed on the rows where it was logged."""

    action: int
    rows: int
    predicted: float
    observed: float
    standard_error: float
    """Standard error of the gap, clustered by user."""


def mean_gap(
    examples: Examples, predicted: FloatArray, observed: FloatArray, rows: NDArray[np.bool_]
) -> tuple[int, float, float, float]:
    """Number of rows, mean predicted, mean observed, and the standard error of their gap, clustered by user.

    `predicted`, `observed` and the mask `rows` are [rows of the log]; only marked rows count.
    """
    count = int(rows.sum())
    by_user = np.add.reduceat(np.where(rows, observed - predicted, 0.0), examples.starts[:-1])
    centred = by_user - by_user.mean()
    error = float(np.sqrt((centred**2).sum())) / count
    return count, float(predicted[rows].mean()), float(observed[rows].mean()), error


def by_action(
    examples: Examples, predicted: FloatArray, observed: FloatArray, rows: NDArray[np.bool_]
) -> tuple[ActionFidelity, ...]:
    """The gap of every action that was logged in the marked rows; arguments as in `mean_gap`."""
    parts = []
    for action in range(examples.actions):
        chosen = rows & (examples.action == action)
        if chosen.any():
            parts.append(ActionFidelity(action, *mean_gap(examples, predicted, observed, chosen)))
    return tuple(parts)
