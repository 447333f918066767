"""The tabular environment model: counts over the distinct states of a log, exact where states are few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.errors import ModelError
from redenvelope.finite.problem import FiniteProblem
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.dataset import Examples, require_states

MOST_TRANSITIONS = 20_000_000
"""Largest table of transitions [states, actions, states] that is counted: 160 MB."""

_PRIOR_ROWS = 1.0


@dataclass(frozen=True, eq=False)
class TabularModel:
    """A finite problem, and which of its states an encoded state is.

    A combination of features that is not in the log counts as the average user of its step: for every step of the
    campaign there is one more state with the averages of that step.
    """

    problem: FiniteProblem
    keys: NDArray[np.float32]
    """The encodings of the states in the log, sorted, [seen, width]; the average states follow."""
    layout: StateLayout

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.problem.actions

    @property
    def budgets(self) -> int:
        """Number of costs."""
        return self.problem.budgets

    def index(self, states: NDArray[np.float32]) -> NDArray[np.int64]:
        """Which state of the problem each encoded state is: [n, width] -> [n]."""
        require_states(states, self.layout)
        known, wanted = _as_bytes(self.keys), _as_bytes(states)
        place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        seen = known[place] == wanted
        if seen.all():
            return place.astype(np.int64)
        averages = self.problem.states - len(known)
        step = np.rint(states[:, self.layout.step] / self.layout.step_change).astype(np.int64)
        return np.where(seen, place, len(known) + np.clip(step, 0, averages - 1))

    def predict(self, states: NDArray[np.float32]) -> FloatArray:
        """Mean outcomes of every action: [n, width] -> [outcomes, n, actions]."""
        return self.problem.outcomes[:, self.index(states)]

    def roll_out(
        self, states: NDArray[np.float32], actions: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], FloatArray]:
        """Follow actions [n, depth] from states [n, width] with the full distribution over next states.

        Returns the expected states after each action of users who stay, [depth, n, width], and the expected outcomes of
        each action over all users, [outcomes, depth, n]; those of users who left are zero. Where nobody continues, and
        for a combination that is not in the log, only the step advances.
        """
        problem, seen = self.problem, len(self.keys)
        mass = np.zeros((len(states), problem.states))
        mass[np.arange(len(states)), self.index(states)] = 1.0
        reached = np.repeat(states[None], actions.shape[1], axis=0)
        outcomes = np.zeros((1 + self.budgets, actions.shape[1], len(states)))
        for depth, action in enumerate(actions.T):
            for number in np.unique(action):
                rows = action == number
                outcomes[:, depth, rows] = self.problem.outcomes[:, :, number] @ mass[rows].T
                mass[rows] = mass[rows] @ problem.transitions[:, number]
            known = mass[:, :seen].sum(axis=1)
            mean = (mass[:, :seen] @ self.keys.astype(np.float64)) / np.maximum(known, 1e-300)[:, None]
            reached[depth] = np.where(known[:, None] > 0, mean, states)
            reached[depth, :, : self.layout.static_width] = states[:, : self.layout.static_width]
            reached[depth, :, self.layout.step] = states[:, self.layout.step] + (depth + 1) * self.layout.step_change
        return reached, outcomes


def fit_tabular(examples: Examples, prior_rows: float = _PRIOR_ROWS) -> TabularModel:
    """Count outcomes and next states of every state (features and step) and action.

    Counts are smoothed: `prior_rows` rows are added to every state and action, with the step's average reward and cost
    of the action and the state's average transition.
    """
    if prior_rows < 0:
        raise ModelError(f"prior_rows must be 0 or more, not {prior_rows}")
    states = np.ascontiguousarray(examples.states)
    require_states(states, examples.layout)
    names, first, state = np.unique(_as_bytes(states), return_index=True, return_inverse=True)
    seen, count = len(names), len(names) + examples.campaign_steps
    if count * count * examples.actions > MOST_TRANSITIONS:
        raise ModelError(
            f"the log shows {seen:,} distinct combinations of features and step with {examples.actions} actions: "
            f"too many for a table (at most {MOST_TRANSITIONS:,} transitions); use the neural model, or coarser "
            "features"
        )
    keys = states[first]
    step = np.rint(keys[:, examples.layout.step] / examples.layout.step_change).astype(np.int64)
    step = np.clip(step, 0, examples.campaign_steps - 1)
    problem = FiniteProblem(
        rewards=_means(examples, examples.reward, state, step, prior_rows),
        costs=np.stack([_means(examples, cost, state, step, prior_rows) for cost in examples.outcomes[1:]]),
        transitions=_transitions(examples, state, step, prior_rows),
        initial=np.bincount(state[examples.starts[:-1]], minlength=count) / examples.users,
        steps=examples.campaign_steps,
    )
    return TabularModel(problem, keys, examples.layout)


def _means(
    examples: Examples,
    value: FloatArray,
    state: NDArray[np.int64],
    step: NDArray[np.int64],
    prior_rows: float,
) -> FloatArray:
    """Mean of a value [rows] in each state and each step's average state, [seen + steps, actions].

    `state` [rows] is the state of each row, `step` [seen] the step of each state.
    """
    actions, seen = examples.actions, len(step)
    rows, total = np.zeros((2, seen, actions))
    np.add.at(rows, (state, examples.action), 1.0)
    np.add.at(total, (state, examples.action), value)
    step_rows, step_total = np.zeros((2, examples.campaign_steps, actions))
    np.add.at(step_rows, step, rows)
    np.add.at(step_total, step, total)
    # An action that is not in the log at a step gets its mean over all steps, or the mean of all actions.
    everywhere = np.where(
        step_rows.sum(axis=0) > 0, step_total.sum(axis=0) / np.maximum(step_rows.sum(axis=0), 1), value.mean()
    )
    average = np.where(step_rows > 0, step_total / np.maximum(step_rows, 1), everywhere)
    weight = rows + prior_rows
    mean = (total + prior_rows * average[step]) / np.maximum(weight, 1e-300)
    return np.concatenate([np.where(weight > 0, mean, average[step]), average])


def _transitions(
    examples: Examples, state: NDArray[np.int64], step: NDArray[np.int64], prior_rows: float
) -> FloatArray:
    """Transition probabilities, [seen + steps, actions, seen + steps]; rows sum to less than one where users leave."""
    actions, seen, steps = examples.actions, len(step), examples.campaign_steps
    final = step[state] == steps - 1
    left = examples.is_last & ~final
    # Before a gap it is unknown whether and where a user continued.
    known = np.flatnonzero((examples.continues | left) & ~final)
    moving = np.flatnonzero(examples.continues & ~final)
    rows = np.zeros((seen, actions))
    np.add.at(rows, (state[known], examples.action[known]), 1.0)
    moves = np.zeros((seen, actions, seen + steps))
    np.add.at(moves, (state[moving], examples.action[moving], state[moving + 1]), 1.0)
    usual_rows, usual = rows.sum(axis=1), moves.sum(axis=1)
    usual /= np.maximum(usual_rows, 1)[:, None]
    # A state from which nobody continued leads to the average user of the next step.
    lost = np.flatnonzero((usual_rows == 0) & (step < steps - 1))
    usual[lost, seen + step[lost] + 1] = 1.0
    weight = (rows + prior_rows)[:, :, None]
    mean = (moves + prior_rows * usual[:, None, :]) / np.maximum(weight, 1e-300)
    average = np.zeros((steps, actions, seen + steps))
    for number in range(steps - 1):
        here = step == number
        total, moved = rows[here].sum(axis=0), moves[here].sum(axis=0)
        average[number] = moved / np.maximum(total, 1)[:, None]
        average[number, total == 0, seen + number + 1] = 1.0
    return np.concatenate([np.where(weight > 0, mean, usual[:, None, :]), average])


def _as_bytes(states: NDArray[np.float32]) -> NDArray[Any]:
    """Each row [n, width] as one comparable value [n]; adding zero makes −0 and 0 the same."""
    rows = np.ascontiguousarray(states + np.float32(0.0))
    return rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)
