"""A model followed along logged actions, on its own predicted states: do its errors add up, and does it know what
an action leads to?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from redenvelope.models.examples import Examples
from redenvelope.models.gaps import ActionFidelity, by_action, mean_gap
from redenvelope.models.outcome import outcome_names

__all__ = ["Followed", "FollowedOutcome", "RollOutFidelity", "measure_roll_outs"]

FloatArray = NDArray[np.float64]

_ROWS = 20_000


class Followed(Protocol):
    """A model that can be followed."""

    def roll_out(
        self, states: NDArray[np.float32], actions: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], FloatArray]:
        """States [depth, n, width] and outcomes [outcomes, depth, n] along actions [n, depth]."""
        ...


@dataclass(frozen=True)
class FollowedOutcome:
    """One outcome along a roll-out, the decision in the state it ends in included."""

    name: str
    predicted: float
    """Mean sum."""
    observed: float
    standard_error: float
    """Of the gap, by user."""
    later: tuple[ActionFidelity, ...]
    """Sum of all steps but the first, by the action of the first: what the model knows of an action's effect."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, under names that tell the outcome."""
        name = self.name.replace(" ", "_")
        return {
            f"predicted_{name}": self.predicted,
            f"observed_{name}": self.observed,
            f"{name}_error": self.standard_error,
            f"later_{name}": [asdict(action) for action in self.later],
        }


@dataclass(frozen=True)
class RollOutFidelity:
    """The model followed along logged actions for so many steps; depth 1 is the next state."""

    depth: int
    rows: int
    state_error: float
    """Mean squared error of the dynamic features."""
    unchanged_error: float
    """The same for "nothing changes"."""
    outcomes: tuple[FollowedOutcome, ...]
    """The reward, then one cost for each budget."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {name: getattr(self, name) for name in ("depth", "rows", "state_error", "unchanged_error")}
        for outcome in self.outcomes:
            plain |= outcome.as_dict()
        return plain


@dataclass(frozen=True, eq=False)
class _Path:
    """The model followed from some rows, as deep as the campaign goes; beyond its last step it means nothing."""

    first: NDArray[np.int64]
    """Rows it starts from, [starts]."""
    rows_after: NDArray[np.int64]
    """How many rows of the user follow without a gap, [starts]."""
    depths: NDArray[np.int64]
    """Steps that it can be compared for: until the campaign's last step, whether the user stays or leaves; or until a
    gap in the log, [starts]."""
    states: NDArray[np.float32]
    """[depth, starts, width]"""
    outcomes: FloatArray
    """[outcomes, depth, starts]"""


def measure_roll_outs(model: Followed, examples: Examples) -> tuple[RollOutFidelity, ...]:
    """Follow the logged actions from every row before the campaign's last step, for one step, two steps, and so on.

    Who has left brings nothing, in the log as in the model: an action that drives users away is known by what they
    do not bring.
    """
    most = examples.campaign_steps - 1
    rows_after, depths = _reach(examples)
    first = np.flatnonzero(depths > 0)
    if not len(first) or not rows_after[first].any():
        return ()
    first = first[:: max(1, len(first) // _ROWS)]
    # One pass of full depth serves all depths; past the end of the log any action will do.
    rows = np.minimum(first[:, None] + np.arange(most + 1), len(examples) - 1)
    followed = model.roll_out(np.ascontiguousarray(examples.states[first]), examples.action[rows])
    path = _Path(first, rows_after[first], depths[first], *followed)
    parts = []
    for depth in range(1, most + 1):
        if not (path.depths >= depth).any():
            break
        parts.append(_at_depth(path, examples, depth))
    return tuple(parts)


def _reach(examples: Examples) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many rows of the same user follow each row without a gap, and for how many steps it can be compared, [rows]
    each; see _Path."""
    count = len(examples)
    stops = np.flatnonzero(~examples.continues)
    stop = stops[np.searchsorted(stops, np.arange(count))]
    rows_after = stop - np.arange(count)
    step = np.rint(examples.states[:, examples.layout.step] / examples.layout.step_change).astype(np.int64)
    to_the_end = np.maximum(examples.campaign_steps - 1 - step, 0)
    return rows_after, np.where(examples.is_last[stop], to_the_end, rows_after)


def _at_depth(path: _Path, examples: Examples, depth: int) -> RollOutFidelity:
    """Figures of the roll-outs that can be compared for so many steps."""
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
        whole = mean_gap(examples, model_sums, log_sums, marked)[1:]
        model_sums[first] -= own[0]
        log_sums[first] -= own[1]
        outcomes.append(FollowedOutcome(name, *whole, by_action(examples, model_sums, log_sums, marked)))
    return RollOutFidelity(depth, len(first), *_state_errors(path, examples, depth), tuple(outcomes))


def _state_errors(path: _Path, examples: Examples, depth: int) -> tuple[float, float]:
    """Mean squared error of the dynamic features of who is still there, and the same for "nothing changes"."""
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
