from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from redenvelope.errors import UsageError
from redenvelope.planning.planner import TreePlanner
from redenvelope.planning.tree import Tree
from tests.planning.backing_up import backup
from tests.planning.backing_up import grown as tree
from tests.planning.exact import World, induction

DUALS = np.array([0.0, 0.3, np.inf, 1.0, 4.0])
# float32 sums of a few numbers of order one.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def prices_of(budgets: int, seed: int = 0) -> np.ndarray:
    """Random prices, with zeros and infinities among them, [9, budgets]."""
    generator = np.random.default_rng(seed)
    table = generator.exponential(1.0, size=(9, budgets))
    table[0], table[1], table[2, 0], table[3, -1] = 0.0, np.inf, np.inf, 0.0
    return table


def require_equal(found, exact, prices):
    """Values of all states [users = states, prices, actions] against exact induction with all steps left."""
    probabilities = found.probabilities.astype(np.float64)
    expected = np.einsum("upa,oupa->op", probabilities, found.to_go) / len(probabilities)
    np.testing.assert_allclose(expected, exact.expected(), **CLOSE)
    finite = np.isfinite(np.reshape(prices, (len(prices), -1))).all(axis=1)
    np.testing.assert_allclose(np.swapaxes(found.q, 0, 1)[finite], exact.q[-1][finite], **CLOSE)


@pytest.mark.parametrize("temperature", [0.0, 0.05, 1.0])
@pytest.mark.parametrize(("actions", "steps"), [(4, 4), (1, 3), (5, 1), (2, 5)])
def test_equals_backward_induction(table_world, every_state, actions, steps, temperature):
    for seed in range(3):
        model, world = table_world(seed, actions=actions, steps=steps)
        found = backup(tree(model, every_state(world), steps), DUALS, temperature)
        exact = induction(world, DUALS, temperature)
        require_equal(found, exact, DUALS)
        if temperature > 0:
            np.testing.assert_allclose(np.swapaxes(found.probabilities, 0, 1), exact.probabilities[-1], **CLOSE)


@pytest.mark.parametrize("temperature", [0.0, 0.1])
@pytest.mark.parametrize("budgets", [2, 3])
def test_equals_backward_induction_with_several_costs(table_world, every_state, budgets, temperature):
    for seed in range(3):
        model, world = table_world(seed, steps=3, budgets=budgets)
        prices = prices_of(budgets, seed)
        found = backup(tree(model, every_state(world), 3), prices, temperature)
        assert found.to_go.shape == (1 + budgets, world.states, len(prices), world.actions)
        exact = induction(world, prices, temperature)
        require_equal(found, exact, prices)
        to_go = np.moveaxis(exact.to_go[-1], 1, 2)
        np.testing.assert_allclose(found.to_go, to_go, **CLOSE)


def sequences(world: World, start: int) -> np.ndarray:
    """Summed outcomes of every sequence of actions from a state, [outcomes, sequences]."""
    totals = []
    for actions in itertools.product(range(world.actions), repeat=world.steps):
        state, total = start, np.zeros(len(world.outcomes))
        for action in actions:
            total += world.outcomes[:, state, action]
            state = world.following[state, action]
        totals.append(total)
    return np.array(totals).T


@pytest.mark.parametrize("budgets", [1, 2, 3])
def test_hard_plans_are_the_best_of_all_sequences(table_world, every_state, budgets):
    model, world = table_world(2, steps=3, budgets=budgets)
    prices = prices_of(budgets)
    found = backup(tree(model, every_state(world), 3), prices, 0.0)
    expected = found.expected()
    for start in range(world.states):
        totals = sequences(world, start)
        for place, price in enumerate(prices):
            infinite = np.isinf(price)
            if infinite.any():  # those costs alone
                assert expected[1:][infinite, start, place].sum() == pytest.approx(
                    totals[1:][infinite].sum(axis=0).min(), rel=1e-5
                )
            else:
                value = expected[0, start, place] - price @ expected[1:, start, place]
                assert value == pytest.approx((totals[0] - price @ totals[1:]).max(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("budgets", [1, 2, 3])
def test_prices_bound_what_any_mixture_within_the_budgets_earns(table_world, every_state, budgets):
    """Weak duality at any prices, strong duality at those of the linear program over mixtures of all sequences."""
    model, world = table_world(5, states=4, steps=3, budgets=budgets)
    totals = np.stack([sequences(world, start) for start in range(world.states)])  # [states, outcomes, sequences]
    states, _, count = totals.shape
    grown = tree(model, every_state(world), 3)
    # Halfway between what the greatest reward costs and the cheapest plan: within reach, and less than wanted.
    ends = backup(grown, [[0.0] * budgets, [np.inf] * budgets], 0.0).expected().mean(axis=1)
    limits = ends[1:].mean(axis=1)
    one_each = np.kron(np.eye(states), np.ones(count))
    # A share of the users for each state and sequence: the states are equally frequent.
    best = linprog(
        -totals[:, 0].ravel(),
        A_ub=np.swapaxes(totals[:, 1:], 0, 1).reshape(budgets, -1),
        b_ub=limits,
        A_eq=one_each,
        b_eq=np.full(states, 1 / states),
    )
    optimum, own = -best.fun, -best.ineqlin.marginals
    assert own.max() > 0.01  # the budgets bind
    prices = np.vstack([own, prices_of(budgets)[[0]], np.random.default_rng(0).exponential(1.0, (20, budgets))])
    expected = backup(grown, prices, 0.0).expected().mean(axis=1)
    bound = expected[0] - (prices.T * (expected[1:] - limits[:, None])).sum(axis=0)
    assert bound[0] == pytest.approx(optimum, rel=1e-5)
    assert (bound >= optimum - 1e-5).all()


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_eligible_holds_at_every_step(table_world, every_state, temperature):
    model, world = table_world(5)
    allowed = np.array([False, True, True, False])
    found = backup(tree(model, every_state(world), 4, np.tile(allowed, (world.states, 1))), DUALS, temperature)
    exact = induction(world, DUALS, temperature, allowed=np.tile(allowed, (4, world.states, 1)))
    require_equal(found, exact, DUALS)
    assert np.all(found.probabilities[:, :, ~allowed] == 0)


def test_ties_go_to_the_cheaper_action_and_free_actions_to_reward(table_world):
    model, _ = table_world(0, states=1, actions=3, steps=1)
    tables = np.array([[[1.0, 2.0, 0.5]], [[0.0, 1.0, 0.0]]], dtype=np.float32)
    own = type(model)(tables, model.following)
    probabilities = backup(tree(own, [[0.0]], 1), [1.0, np.inf], 0.0).probabilities
    np.testing.assert_array_equal(probabilities[0], [[1, 0, 0], [1, 0, 0]])
    backwards = type(model)(tables[..., ::-1], model.following)
    probabilities = backup(tree(backwards, [[0.0]], 1), [1.0, np.inf], 0.0).probabilities
    np.testing.assert_array_equal(probabilities[0], [[0, 0, 1], [0, 0, 1]])


def test_ties_of_several_costs_go_in_the_order_of_budgets(table_world):
    model, _ = table_world(0, states=1, actions=3, steps=1, budgets=2)
    # All worth the same at prices of one; the first and the last cost least of the first budget.
    tables = np.array([[[3.0, 3.0, 4.0]], [[1.0, 2.0, 1.0]], [[2.0, 1.0, 3.0]]], dtype=np.float32)
    own = type(model)(tables, model.following)
    prices = [[1.0, 1.0], [np.inf, 1.0], [1.0, np.inf], [np.inf, np.inf]]
    chosen = backup(tree(own, [[0.0]], 1), prices, 0.0).probabilities[0].argmax(axis=1)
    # At infinity only the costs of that budget count, then the other costs, then the reward.
    np.testing.assert_array_equal(chosen, [0, 0, 1, 0])


def test_soft_converges_to_hard(network_world):
    model, states = network_world(0)
    grown = tree(model, states, 3)
    duals = [0.0, 0.5, 1.5]
    hard = backup(grown, duals, 0.0)
    gaps = []
    for temperature in (1e-1, 1e-2, 1e-3, 1e-6):
        gap = backup(grown, duals, temperature).q - hard.q
        # Two later steps, each with an entropy of at most log(actions).
        assert gap.min() > -1e-5
        assert gap.max() <= 2 * temperature * np.log(5) + 1e-5
        gaps.append(gap.max())
    assert gaps == sorted(gaps, reverse=True)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_soft_is_safe_at_extreme_scales(network_world, scale):
    model, states = network_world(1)
    found = backup(tree(model, states, 3), [0.0, 1e-3, 1.0, 1e6, 1e30], scale)
    for values in found:
        assert np.isfinite(values).all()
    np.testing.assert_allclose(found.probabilities.sum(axis=2), 1, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.02, 0.5])
def test_cost_never_rises_with_its_price(network_world, temperature):
    model, states = network_world(2)
    duals = np.append(np.linspace(0, 4, 40), np.inf)
    cost = backup(tree(model, states, 3), duals, temperature).expected()[1]
    # User by user: each user's tree is a problem of its own.
    assert (np.diff(cost, axis=1) <= 1e-5).all()


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_a_cost_never_rises_with_its_own_price_among_several(table_world, every_state, temperature):
    model, world = table_world(3, steps=3, budgets=2)
    rising = np.linspace(0, 4, 30)
    prices = np.stack([np.full(30, 0.4), rising], axis=1)
    cost = backup(tree(model, every_state(world), 3), prices, temperature).expected()[2]
    assert (np.diff(cost, axis=1) <= 1e-5).all()


def test_costs_are_minus_the_slopes_of_the_soft_value(table_world, every_state):
    model, world = table_world(3, steps=3, budgets=2)
    temperature, step = 0.2, 1e-2
    centre = np.array([0.7, 0.4])
    around = [centre + sign * step * np.eye(2)[budget] for budget in (0, 1) for sign in (-1, 1)]
    found = backup(tree(model, every_state(world), 3), [centre, *around], temperature)
    q = found.q.astype(np.float64)
    best = q.max(axis=2, keepdims=True)
    values = best[..., 0] + temperature * np.log(np.exp((q - best) / temperature).sum(axis=2))
    for budget in (0, 1):
        slope = (values[:, 1 + 2 * budget] - values[:, 2 + 2 * budget]) / (2 * step)
        # A central difference: second order in the step, plus float32 rounding divided by the step.
        np.testing.assert_allclose(slope, found.expected()[1 + budget, :, 0], atol=2e-3)


def test_discount_weighs_later_steps(table_world, every_state):
    model, world = table_world(4, steps=2)
    found = backup(tree(model, every_state(world), 2), [0.5], 0.0, discount=0.25)
    penalised = world.rewards - 0.5 * world.costs
    expected = penalised + 0.25 * penalised.max(axis=1)[world.following]
    np.testing.assert_allclose(found.q[:, 0], expected, **CLOSE)


@pytest.mark.parametrize("duals", [[-1.0], [np.nan], []])
def test_duals_that_are_no_prices_are_refused(network_world, duals):
    model, states = network_world(0, users=2)
    with pytest.raises(UsageError, match="prices must be"):
        backup(tree(model, states, 1), duals, 0.0)


def test_prices_of_another_number_of_budgets_are_refused(table_world, every_state):
    model, world = table_world(0, budgets=2)
    with pytest.raises(UsageError, match=r"2 budget\(s\)"):
        backup(tree(model, every_state(world), 1), [0.5, 1.0], 0.0)


def test_among_equals_the_least_costs_win_in_the_order_of_budgets_then_the_best_reward() -> None:
    """At prices of nothing, what brings no more must not be bought."""
    outcomes = np.array([[1.0, 1.0, 1.0, 0.5], [2.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]], np.float32)
    level = Tree((outcomes[:, :, None, None],))
    np.testing.assert_array_equal(backup(level, [[0.0, 0.0]], 0.0).probabilities[0, 0], [0, 1, 0, 0])
    # At infinite prices rewards count last: the two that cost nothing of the first budget differ in the second.
    np.testing.assert_array_equal(backup(level, [[np.inf, 0.0]], 0.0).probabilities[0, 0], [0, 0, 0, 1])


@pytest.mark.parametrize("explore", [0.0, 0.005])
def test_hardly_any_entropy_is_none(table_world, every_state, explore):
    """At a temperature far below what float32 tells apart, values and outcomes are those of the hard maximum, where one
    action is clearly the best; and they are numbers everywhere."""
    prices = np.random.default_rng(4).exponential(0.3, size=(16, 2))
    for seed in range(4):
        model, world = table_world(seed, states=2_000, actions=6, steps=1, budgets=2)
        planner, eligible = (
            TreePlanner(model, horizon=1, temperature=0.0, steps=1, explore=explore),
            np.ones((2_000, 6)),
        )
        hard = planner.state_values(every_state(world), 1, prices, eligible > 0)
        cold = replace(planner, temperature=1e-9).state_values(every_state(world), 1, prices, eligible > 0)
        assert np.isfinite(cold).all()
        np.testing.assert_allclose(cold[0], hard[0], rtol=1e-5, atol=1e-6)
        assert np.isclose(cold, hard, rtol=1e-5, atol=1e-6).mean() > 0.999
