"""The past inside of trees: known, not predicted. Against exact induction, and one user against batches."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.log.encoding.history import HistoryEncoding
from redenvelope.models.neural_model import KnownMoves, NeuralModel, known_moves, moved
from redenvelope.planning.planner import TreePlanner
from tests.random_networks import WIDE, random_model, random_states

ACTIONS, STEPS = 3, 4
SCALES = (1.0, 1.0, 1.0, 0.5, 2.0, 1.5, 1.5, 1.5, 4.0, 3.0, 1.5)
ENCODING = HistoryEncoding(("0", "1", "2"), True, ("reward", "cost"), SCALES, False)
SENT = np.arange(ACTIONS)


def response(last: int | None, counts: np.ndarray, spent: float, waited: float) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and costs [actions] that hang on all that happened, and on nothing else."""
    tired = 0.6 if last == 2 else 0.2 if last == 1 else 0.0
    rewards = 1.0 + SENT * (0.8 - tired) + 0.25 * waited - 0.1 * spent + 0.15 * counts[1] * SENT
    return rewards, SENT * (1.0 + 0.2 * counts[2])


class Remembering(eqx.Module):
    """A world whose states are histories."""

    known: KnownMoves
    leaves = False

    @property
    def actions(self) -> int:
        return ACTIONS

    @property
    def budgets(self) -> int:
        return 1

    def outcomes(self, states: jax.Array) -> jax.Array:
        raw = states * jnp.asarray(SCALES)
        tired = 0.6 * raw[:, 2:3] + 0.2 * raw[:, 1:2]
        counts, spent, waited = raw[:, 5:8], raw[:, 9:10], raw[:, 10:11]
        sent = jnp.arange(ACTIONS)
        rewards = 1.0 + sent * (0.8 - tired) + 0.25 * waited - 0.1 * spent + 0.15 * counts[:, 1:2] * sent
        return jnp.stack([rewards, sent * (1.0 + 0.2 * counts[:, 2:3])])

    def successors(self, states: jax.Array) -> jax.Array:
        return moved(self.known, states, self.outcomes(states))


def exact(sequence: tuple[int, ...], dual: float) -> tuple[float, np.ndarray]:
    """Value, and value of every action [actions], after a sequence of actions: no columns, no tree."""
    counts, spent, waited = np.zeros(ACTIONS), 0.0, 0.0
    for place, action in enumerate(sequence):
        before = response(*_facts(sequence[:place]))
        counts[action] += 1
        spent += before[1][action]
        waited = waited + 1 if action == 0 else 0.0
    rewards, costs = response(sequence[-1] if sequence else None, counts, spent, waited)
    q = rewards - dual * costs
    if len(sequence) + 1 < STEPS:
        q = q + [exact((*sequence, action), dual)[0] for action in range(ACTIONS)]
    return float(q.max()), q


def _facts(sequence: tuple[int, ...]) -> tuple[int | None, np.ndarray, float, float]:
    counts, spent, waited = np.zeros(ACTIONS), 0.0, 0.0
    for place, action in enumerate(sequence):
        spent += response(*_facts(sequence[:place]))[1][action]
        counts[action] += 1
        waited = waited + 1 if action == 0 else 0.0
    return (sequence[-1] if sequence else None), counts, spent, waited


def history_after(sequence: tuple[int, ...]) -> np.ndarray:
    history = np.zeros((1, ENCODING.width))
    for place, action in enumerate(sequence):
        outcomes = np.stack(response(*_facts(sequence[:place])))[:, action]
        history = ENCODING.moves.after(history, np.array([action], np.int32), outcomes[:, None])
    return history.astype(np.float32)


@pytest.mark.parametrize("dual", [0.0, 0.3, 0.8])
def test_a_tree_is_exact_where_only_the_past_tells(dual: float) -> None:
    layout = replace(WIDE, history_actions=ACTIONS, history_outcomes=2)
    known = known_moves(ENCODING.moves, layout)
    assert known is not None
    planner = TreePlanner(Remembering(known), STEPS, 0.0, STEPS)
    for sequence in ((), (0,), (2,), (0, 0), (1, 2), (2, 2, 0), (1, 0, 0)):
        found = planner.values(history_after(sequence), STEPS - len(sequence), [dual])
        np.testing.assert_allclose(found.q[0, 0], exact(sequence, dual)[1], rtol=1e-4)


def remembering_model(leaves: bool = False) -> NeuralModel:
    layout = replace(WIDE, history_actions=6, history_outcomes=2)
    labels = tuple(str(place) for place in range(6))
    scales = tuple(np.random.default_rng(0).uniform(0.5, 2.0, 17).tolist())
    moves = HistoryEncoding(labels, True, ("reward", "cost"), scales, False).moves
    return eqx.tree_at(
        lambda model: model.history,
        random_model(layout, members=2, leaves=leaves),
        known_moves(moves, layout),
        is_leaf=lambda part: part is None,
    )


@pytest.mark.parametrize("leaves", [pytest.param(False, marks=pytest.mark.slow), True])
def test_one_user_at_a_time_decides_as_in_batches(leaves: bool) -> None:
    model = remembering_model(leaves)
    planner = TreePlanner(model, 3, 0.5, 10)
    for left in (1, 2, 8):
        states = random_states(model.layout, 6, 10 - left, seed=left)
        batch = planner.values(states, left, [0.2, np.inf])
        decided = planner.decided(states, left, [0.2, np.inf])
        np.testing.assert_allclose(decided.probabilities, batch.probabilities, atol=1e-5)
        for user, state in enumerate(states):
            alone = planner.decided(state[None], left, [0.2, np.inf], waiting=True)
            np.testing.assert_allclose(alone.probabilities[0], decided.probabilities[user], atol=2e-5)
            np.testing.assert_allclose(alone.outcomes[:, 0], decided.outcomes[:, user], atol=2e-5)


def test_a_network_moves_the_past_by_the_rule_and_stores_it() -> None:
    model = remembering_model()
    states = random_states(model.layout, 8)
    outcomes, following = np.asarray(model.outcomes(states)), np.asarray(model.successors(states))
    labels = tuple(str(place) for place in range(6))
    scales = tuple(np.random.default_rng(0).uniform(0.5, 2.0, 17).tolist())
    moves = HistoryEncoding(labels, True, ("reward", "cost"), scales, False).moves
    for action in range(6):
        expected = moves.after(
            states[:, model.layout.history].astype(float), np.full(8, action, np.int32), outcomes[:, :, action]
        )
        np.testing.assert_allclose(following[:, action, model.layout.history], expected, atol=1e-5)
    again = NeuralModel.from_state(*model.state())
    np.testing.assert_array_equal(np.asarray(again.successors(states)), following)
