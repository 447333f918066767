"""Learned values as a valuer: outcomes first, prices of one budget, and the same after being stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope import ModelError, UsageError
from redenvelope.learning.backward import LearningSettings, new_folds
from redenvelope.learning.soft_q import SoftQ
from redenvelope.planning.q_values import LearnedValues, learned_from_state, learned_state
from redenvelope.policies.action_values import Valuer
from redenvelope.simulate.finite import random_problem
from tests.learning.conftest import TABLE, World, make_world, prepared

PRICES = np.array([[0.0], [0.6], [np.inf]])
STEPS, TEMPERATURE = 3, 0.2


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(random_problem(2, states=4, actions=3, steps=STEPS), users=600, seed=1)


@pytest.fixture(scope="module")
def learned(world: World) -> LearnedValues:
    short = {"immediate": replace(TABLE.immediate, steps=60), "future": replace(TABLE.future, steps=60)}
    return prepared(world, most_curves=4, knots=5, least_chance=0.02, **short).learn_all(TEMPERATURE)


def test_values_are_a_valuers(world: World, learned: LearnedValues) -> None:
    valuer: Valuer = learned
    states, eligible = world.first_states(), np.ones((600, 3), dtype=bool)
    eligible[::2, 1] = False
    found = valuer.values(states, STEPS, PRICES, eligible)
    assert (valuer.actions, valuer.budgets, valuer.depth, valuer.notes) == (3, 1, STEPS, learned.report.notes)
    assert found.q.shape == found.probabilities.shape == (600, 3, 3)
    assert found.to_go.shape == (2, 600, 3, 3)
    assert (np.isneginf(found.q) == ~eligible[:, None]).all()
    # At an infinite price the cost alone decides; else probabilities are the soft maximum of q.
    assert np.allclose(found.q[:, 2][eligible], -found.to_go[1, :, 2][eligible])
    weights = np.exp((found.q - found.q.max(axis=2, keepdims=True))[:, :2] / TEMPERATURE)
    assert np.allclose(found.probabilities[:, :2], weights / weights.sum(axis=2, keepdims=True), atol=1e-5)


def test_last_steps_outcomes_are_all_there_is_to_go(world: World, learned: LearnedValues) -> None:
    states = world.first_states()
    outcomes = learned.outcomes(states)
    assert outcomes.shape == (2, 600, 3)
    to_go = learned.values(states, 1, PRICES).to_go
    assert np.allclose(to_go, outcomes[:, :, None], atol=1e-6)


def test_a_plain_list_is_of_one_budget_and_more_budgets_are_refused(world: World, learned: LearnedValues) -> None:
    states = world.first_states()
    for column, plain in zip(
        learned.values(states, 2, PRICES), learned.values(states, 2, [0.0, 0.6, np.inf]), strict=True
    ):
        assert (column == plain).all()
    with pytest.raises(UsageError, match="learned for one budget, and these are prices of 2; plan with a model"):
        learned.values(states, 2, [[0.1, 0.2]])
    two = replace(world.examples, outcomes=world.examples.outcomes[[0, 1, 1]])
    with pytest.raises(UsageError, match="one budget, and this log has 2; plan with a model"):
        SoftQ.prepare(two, TABLE)
    with pytest.raises(UsageError, match="at least 0"):
        learned.values(states, 2, [-1.0])


def test_a_price_too_large_for_a_network_is_infinite(world: World, learned: LearnedValues) -> None:
    states = world.first_states()[:5]
    for huge, infinite in zip(learned.values(states, 3, [1e39]), learned.values(states, 3, [np.inf]), strict=True):
        assert (huge == infinite).all()


def test_stored_values_are_the_same(world: World, learned: LearnedValues) -> None:
    config, arrays = learned_state(learned)
    again = learned_from_state(config, arrays)
    assert learned_state(again)[0] == config
    states = world.first_states()
    for one, other in zip(learned.values(states, STEPS, PRICES), again.values(states, STEPS, PRICES), strict=True):
        assert (one == other).all()
    missing = {name: array for name, array in arrays.items() if name != "futures.level"}
    with pytest.raises(ModelError, match="do not fit the model"):
        learned_from_state(config, missing)


def test_a_users_fold_depends_on_no_other_user_and_changes_with_the_seed(world: World) -> None:
    examples, settings = world.examples, LearningSettings(folds=3, held_out_share=0.2)
    whole = new_folds(examples, settings, 7)
    users = np.arange(100, 300)
    rows = np.flatnonzero(np.isin(np.repeat(np.arange(examples.users), np.diff(examples.starts)), users))
    part = replace(
        examples,
        states=examples.states[rows],
        action=examples.action[rows],
        outcomes=examples.outcomes[:, rows],
        propensity=examples.propensity[rows],
        continues=examples.continues[rows],
        starts=examples.starts[100:301] - examples.starts[100],
        keys=examples.keys[users],
    )
    assert (new_folds(part, settings, 7).fold == whole.fold[rows]).all()
    assert (new_folds(examples, settings, 8).fold != whole.fold).any()
    by_user = whole.fold[examples.starts[:-1]]
    # 600 users: four standard deviations of a share of 0.2 or 0.267 are 0.065 and 0.072.
    shares = [(by_user == fold).mean() for fold in (-1, 0, 1, 2)]
    assert np.allclose(shares, [0.2, 0.8 / 3, 0.8 / 3, 0.8 / 3], atol=0.065)


def test_held_out_rows_are_few_and_from_all_over_the_log(world: World) -> None:
    everything = np.arange(len(world.examples))
    few = new_folds(world.examples, LearningSettings(held_out_share=0.5, held_out_rows=50), 0)
    _, held_out = few.split(everything, "anything")
    assert 25 < len(held_out) <= 50
    assert held_out[-1, 0] > 0.9 * len(everything)
