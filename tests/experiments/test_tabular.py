from dataclasses import replace

import numpy as np
import pytest
from experiments.tabular import fit_tabular

from redenvelope.errors import ModelError
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.dataset import Examples

LAYOUT = StateLayout((), 0, 0, 1, (), step_change=1.0)


def rows(table: list[tuple[int, int, int, int, float, float]]) -> Examples:
    """(user, step, feature, action, reward, cost), sorted by user and step."""
    user, step, feature, action, reward, cost = (np.array(column) for column in zip(*table, strict=True))
    starts = np.concatenate([np.flatnonzero(np.diff(user, prepend=-1)), [len(user)]])
    continues = np.append((np.diff(user) == 0) & (np.diff(step) == 1), False)
    return Examples(
        states=np.stack([step, feature], axis=1).astype(np.float32),
        action=action.astype(np.int32),
        outcomes=np.stack([reward, cost]).astype(float),
        propensity=np.full(len(user), 0.5),
        continues=continues,
        starts=starts,
        keys=np.unique(user).astype(np.uint64),
        layout=LAYOUT,
        actions=2,
        campaign_steps=2,
    )


EXAMPLES = rows(
    [
        (0, 0, 0, 0, 1.0, 0.0), (0, 1, 1, 1, 2.0, 3.0),
        (1, 0, 0, 0, 0.0, 0.5), (1, 1, 0, 0, 5.0, 1.0),
        (2, 0, 0, 0, 2.0, 0.1),  # leaves after the first step
        (3, 0, 0, 1, 4.0, 2.0), (3, 1, 1, 0, 1.0, 0.0),
        (4, 0, 1, 1, 6.0, 2.0), (4, 1, 1, 1, 0.0, 1.0),
    ]
)  # fmt: skip


def state(step: int, feature: int) -> np.ndarray:
    return np.array([[step, feature]], dtype=np.float32)


def test_without_a_prior_estimates_are_counts() -> None:
    model = fit_tabular(EXAMPLES, prior_rows=0)
    problem = model.problem
    first = model.index(state(0, 0))[0]
    assert problem.rewards[first, 0] == pytest.approx((1 + 0 + 2) / 3)
    assert problem.costs[0, first, 0] == pytest.approx(0.6 / 3)
    # Of three users one went to feature 1, one to 0, one left.
    moves = problem.transitions[first, 0]
    assert moves[model.index(state(1, 1))[0]] == pytest.approx(1 / 3)
    assert moves[model.index(state(1, 0))[0]] == pytest.approx(1 / 3)
    assert moves.sum() == pytest.approx(2 / 3)
    np.testing.assert_allclose(problem.initial[[first, model.index(state(0, 1))[0]]], [4 / 5, 1 / 5])
    assert problem.steps == 2


def test_a_prior_adds_rows_of_the_average() -> None:
    model = fit_tabular(EXAMPLES, prior_rows=2)
    first = model.index(state(0, 0))[0]
    average = (4 + 6) / 2  # of action 1 at step 0, over all states
    assert model.problem.rewards[first, 1] == pytest.approx((4 + 2 * average) / 3)


def test_an_action_never_seen_in_a_state_is_as_at_its_step() -> None:
    model = fit_tabular(EXAMPLES, prior_rows=0)
    rich = model.index(state(0, 1))[0]
    assert model.problem.rewards[rich, 0] == pytest.approx(1.0)  # (1 + 0 + 2) / 3, of the other state
    assert model.problem.transitions[rich, 0, model.index(state(1, 1))[0]] == 1.0  # as after action 1


def test_a_combination_never_seen_is_the_average_user_of_its_step() -> None:
    model = fit_tabular(rows([(0, 0, 0, 0, 1.0, 0.0), (0, 1, 0, 1, 2.0, 3.0)]))
    rewards, costs = model.predict(state(1, 1))
    assert rewards[0, 1] == pytest.approx(2.0) and costs[0, 1] == pytest.approx(3.0)
    assert model.index(state(1, 1))[0] == model.problem.states - 1


def test_a_gap_is_not_a_departure() -> None:
    gap = replace(
        rows([(0, 0, 0, 0, 1.0, 0.0), (0, 1, 1, 1, 2.0, 3.0), (1, 0, 0, 0, 0.0, 0.0), (1, 1, 1, 0, 0.0, 0.0)])
    )
    gap.continues[0] = False
    model = fit_tabular(gap, prior_rows=0)
    assert model.problem.transitions[model.index(state(0, 0))[0], 0].sum() == pytest.approx(1.0)


def test_roll_out_carries_all_chances() -> None:
    model = fit_tabular(EXAMPLES, prior_rows=0)
    followed, (rewards, costs) = model.roll_out(state(0, 0), np.array([[0, 0]]))
    assert followed.shape == (2, 1, 2)
    np.testing.assert_allclose(followed[0, 0], [1.0, 0.5], rtol=1e-6)  # half of those who stayed have the feature
    # One of three has left, and brings nothing.
    np.testing.assert_allclose(rewards[:, 0], [1.0, (1 + 5) / 3])
    np.testing.assert_allclose(costs[:, 0], [0.2, (0 + 1) / 3])


def test_too_many_states_name_the_neural_model() -> None:
    count = 4_000
    many = rows([(user, 0, 0, 0, 0.0, 0.0) for user in range(count)])
    states = np.stack([np.zeros(count), np.arange(count)], axis=1).astype(np.float32)
    with pytest.raises(ModelError, match=r"4,000 distinct.*neural model"):
        fit_tabular(replace(many, states=states))
