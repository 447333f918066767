"""Ratios that fit personalised plans: a complete Markov world of groups, its truth exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope import FiniteProblem
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.evaluate import evaluate, evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.fitting.encoded import MOST_COLUMNS, RatioFeatures
from redenvelope.log.encoding.layout import StateLayout
from tests.evaluation.conftest import Drawn, World

GROUPS, STEPS, ACTIONS = 4, 4, 2
LAYOUT = StateLayout((GROUPS + 2,), 0, 0, 1, (), 1 / (STEPS - 1))


def personalised_world() -> World:
    """What wakes an even group lulls an odd one; the plan wakes the even and lulls the odd.

    States are the group and whether awake. The awake of even groups and the lulled of odd ones cost much, so that who
    is where is what a plan costs.
    """
    rewards, costs = np.zeros((GROUPS, 2, ACTIONS)), np.zeros((GROUPS, 2, ACTIONS))
    moves = np.zeros((GROUPS, 2, ACTIONS, GROUPS, 2))
    policy = np.zeros((GROUPS, 2, ACTIONS))
    for group in range(GROUPS):
        even = group % 2 == 0
        for awake in range(2):
            costs[group, awake] = [0.2, 1.0 if awake != even else 4.0]
            rewards[group, awake] = [0.1, 1.0]
            for action in range(ACTIONS):
                chance = 0.85 if (action == 1) == even else 0.15
                moves[group, awake, action, group] = [1 - chance, chance]
            policy[group, awake] = [0.15, 0.85]
    states = GROUPS * 2
    problem = FiniteProblem(
        rewards=rewards.reshape(states, ACTIONS),
        costs=costs.reshape(states, ACTIONS),
        transitions=moves.reshape(states, ACTIONS, states),
        initial=np.full(states, 1 / states),
        steps=STEPS,
    )
    return World(problem, np.full((states, ACTIONS), 0.5), policy.reshape(1, states, ACTIONS))


def blind(drawn: Drawn, data: OffPolicyData) -> OffPolicyData:
    """The data with a baseline that knows everything but the group."""
    exact = drawn.world.exact_values
    table = exact.reshape(*exact.shape[:3], GROUPS, 2, ACTIONS).mean(axis=3)
    rows = np.moveaxis(table[:, :, drawn.step, drawn.state % 2], 2, 1)  # [outcomes, rows, prices, actions]
    values = (rows * drawn.probabilities).sum(axis=3)
    logged = np.take_along_axis(rows, drawn.action[None, :, None, None], axis=3)[..., 0]
    return replace(data, values=values, action_values=logged)


def states_of(drawn: Drawn) -> np.ndarray:
    columns = [drawn.state // 2 + 2, drawn.step * LAYOUT.step_change, drawn.state % 2]
    return np.column_stack(columns).astype(np.float32)


def data_of(drawn: Drawn, blocks: tuple[int, ...]) -> OffPolicyData:
    features = RatioFeatures(LAYOUT).of(states_of(drawn))[:, : blocks[-1]]
    return replace(blind(drawn, drawn.data(0.0, features=features)), feature_blocks=blocks)


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    return personalised_world().draw(20_000, seed=1)


def test_without_products_a_personalised_plan_is_misjudged_and_with_them_it_is_not(drawn: Drawn) -> None:
    features = RatioFeatures(LAYOUT)
    truth = drawn.world.truth[1, 0]
    plain, chosen = (
        evaluate(data_of(drawn, blocks), Marginalised()) for blocks in (features.blocks[:1], features.blocks)
    )
    off = (plain.value[1, 0] - truth) / truth
    assert abs(off) > 0.1, off
    assert abs(chosen.value[1, 0] - truth) < 3 * chosen.standard_error[1, 0]
    assert abs(chosen.value[1, 0] - truth) < 0.02 * truth


def test_partitions_choose_the_same(drawn: Drawn) -> None:
    data = data_of(drawn, RatioFeatures(LAYOUT).blocks)
    whole = evaluate(data, Marginalised())
    parts = evaluate_partitions(list(data.batches(3_000)), [Marginalised()])["marginalised"]
    np.testing.assert_allclose(parts.value, whole.value, rtol=1e-9)


def test_columns_are_the_state_then_indicators_then_products() -> None:
    layout = StateLayout((4, 40), 2, 1, 1, (), 0.5)
    features = RatioFeatures(layout)
    states = np.array([[2, 7, 0.5, -1.0, 0.5, 3.0, 1.0]], dtype=np.float32)
    # Forty codes are too many for columns of their own; the step (0.5) has no products.
    expected = [0.5, -1.0, 0.5, 3.0, 1.0, *[0, 0, 1, 0], *[0, 0, 0, 0, 3, 1, 0, 0], *[1.5, 0.5, -3.0, -1.0]]
    assert features.blocks == (5, 17, 21)
    np.testing.assert_allclose(features.of(states), [expected])


def test_there_are_never_more_columns_than_the_limit() -> None:
    for layout in (
        StateLayout((3, 12, 12), 20, 10, 5, (4, 4), 0.1),
        StateLayout((12,) * 30, 0, 1, 0, (), 0.1),
        StateLayout((5,), 1, 0, 0, (), 0.1),
    ):
        features = RatioFeatures(layout)
        states = np.zeros((3, layout.width), dtype=np.float32)
        assert features.of(states).shape == (3, features.blocks[-1])
        assert features.blocks[-1] <= MOST_COLUMNS
    # A state that is wider by itself stays as it is.
    wide = RatioFeatures(StateLayout((3,), 0, 120, 0, (), 0.1))
    assert wide.blocks == (121,)
