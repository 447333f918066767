"""How far a model may be trusted, measured on users it was not trained on; the verdict states its thresholds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from redenvelope.models.examples import Examples
from redenvelope.models.followed import Followed, RollOutFidelity, measure_roll_outs
from redenvelope.models.gaps import ActionFidelity, by_action, mean_gap
from redenvelope.models.outcome import outcome_names

__all__ = [
    "CalibrationBin",
    "Fidelity",
    "FidelityThresholds",
    "OutcomeFidelity",
    "measure_fidelity",
]

FloatArray = NDArray[np.float64]

_BINS = 10


class Predictor(Followed, Protocol):
    """What is measured: the tabular and the neural model."""

    def predict(self, states: NDArray[np.float32]) -> FloatArray:
        """Mean outcomes of every action: [n, width] -> [outcomes, n, actions]."""
        ...


@dataclass(frozen=True)
class FidelityThresholds:
    """When a model is not trusted. A gap counts only if it is also `errors` standard errors wide."""

    mean_gap: float = 0.05
    """Predicted against observed mean of all rows, as a share of the observed mean."""
    action_gap: float = 0.15
    """The same for the rows of one action, as a share of the observed mean of all rows."""
    calibration_gap: float = 0.10
    """Mean gap over the bins of predicted outcomes, as a share of the observed mean."""
    least_r_squared: float = 0.0
    """A model must explain more than the mean does."""
    next_state_ratio: float = 1.0
    """Squared error of the next state over that of "nothing changes"; also for every depth of a roll-out."""
    roll_out_gap: float = 0.10
    """Predicted against observed sum of rewards or costs along a roll-out, as a share of the observed sum."""
    later_gap: float = 0.15
    """The same for what comes after the first step of a roll-out, for the rows of one first action."""
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
    """For an outcome of 0 and 1."""
    actions: tuple[ActionFidelity, ...]
    calibration: tuple[CalibrationBin, ...]

    @property
    def calibration_gap(self) -> float:
        """Mean absolute gap over the bins, weighted by rows."""
        rows = sum(part.rows for part in self.calibration)
        return sum(part.rows * abs(part.predicted - part.observed) for part in self.calibration) / max(rows, 1)


@dataclass(frozen=True)
class Fidelity:
    """The report and its verdict."""

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
        """Whether to plan with the model, rather than to learn without one."""
        return not self.reasons

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, every outcome under its name."""
        outcomes = [asdict(outcome) for outcome in self.outcomes]
        return {
            "users": self.users,
            "rows": self.rows,
            **{outcome.pop("name").replace(" ", "_"): outcome for outcome in outcomes},
            "roll_outs": [part.as_dict() for part in self.roll_outs],
            "thresholds": asdict(self.thresholds),
            "reasons": list(self.reasons),
            "trusted": self.trusted,
        }


def measure_fidelity(model: Predictor, examples: Examples, thresholds: FidelityThresholds | None = None) -> Fidelity:
    """Compare a model with the rows of users it was not trained on."""
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
            f"the {name} is not calibrated: on average {outcome.calibration_gap:.4g} off in ten bins of predictions "
            f"(more than {limits.calibration_gap:.0%} of the mean)"
        )
    if outcome.r_squared < limits.least_r_squared:
        reasons.append(
            f"the model explains the {name} worse than its mean does (R² {outcome.r_squared:.3g}, "
            f"at least {limits.least_r_squared:g} needed)"
        )
    return reasons


def _roll_out_reasons(roll_outs: tuple[RollOutFidelity, ...], limits: FidelityThresholds) -> list[str]:
    reasons = []
    for part in roll_outs:
        after = "one step" if part.depth == 1 else f"{part.depth} steps"
        if part.state_error > limits.next_state_ratio * part.unchanged_error > 0:
            reasons.append(
                f"after {after} the predicted state is further off than the state left unchanged "
                f"(squared error {part.state_error:.4g} against {part.unchanged_error:.4g})"
            )
        reasons += _later_reasons(part, limits)
        reasons += [
            f"followed for {after}, the model predicts a {whole.name} of {whole.predicted:.4g} where "
            f"{whole.observed:.4g} was observed (more than {limits.roll_out_gap:.0%} apart)"
            for whole in part.outcomes
            if abs(whole.predicted - whole.observed)
            > max(limits.roll_out_gap * abs(whole.observed), limits.errors * whole.standard_error)
        ]
    return reasons


def _later_reasons(part: RollOutFidelity, limits: FidelityThresholds) -> list[str]:
    """Actions after which the model expects something else than what was observed."""
    reasons = []
    for whole in part.outcomes:
        rows = sum(action.rows for action in whole.later)
        scale = abs(sum(action.rows * action.observed for action in whole.later)) / max(rows, 1)
        reasons += [
            f"after action {action.action}, the model predicts a {whole.name} of {action.predicted:.4g} in the "
            f"following {part.depth} step(s) where {action.observed:.4g} was observed "
            f"(more than {limits.later_gap:.0%} of the mean apart)"
            for action in whole.later
            if abs(action.predicted - action.observed)
            > max(limits.later_gap * scale, limits.errors * action.standard_error)
        ]
    return reasons
