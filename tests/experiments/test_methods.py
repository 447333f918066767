"""Methods against exact evaluation of the policies that they decide for."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiments.methods import Continued, Counted, Planned, true_value, values_to_go
from experiments.tabular import fit_tabular

from redenvelope.finite.problem import backward_induction, evaluate
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.planning.planner import TreePlanner
from redenvelope.simulate.finite import FiniteCampaign, random_problem, two_step, two_step_problem

DUALS = np.array([0.0, 0.7, 1.2, 1.4, np.inf])


class TrueModel(eqx.Module):
    """The two-step problem as a planner sees it; a state is its index, [n, 1]."""

    rewards: jax.Array
    costs: jax.Array
    following: jax.Array

    @property
    def actions(self) -> int:
        return self.rewards.shape[1]

    @property
    def budgets(self) -> int:
        return 1

    def outcomes(self, states: jax.Array) -> jax.Array:
        index = states[:, 0].astype(int)
        return jnp.stack([self.rewards[index], self.costs[index]])

    def successors(self, states: jax.Array) -> jax.Array:
        return self.following[states[:, 0].astype(int)].astype(jnp.float32)[..., None]


def test_values_to_go_are_those_of_the_policy() -> None:
    problem = random_problem(seed=3, states=5, actions=3, steps=3)
    generator = np.random.default_rng(0)
    tables = generator.dirichlet(np.ones(3), size=(2, 3, 5))
    rewards, costs = values_to_go(problem, tables)
    for place, table in enumerate(tables):
        value = evaluate(problem, table)
        first = problem.initial @ (table[0] * costs[place, 0]).sum(axis=1)
        assert first == pytest.approx(value.cost, rel=1e-12)
        first = problem.initial @ (table[0] * rewards[place, 0]).sum(axis=1)
        assert first == pytest.approx(value.reward, rel=1e-12)


def test_a_short_tree_is_told_what_the_later_steps_bring() -> None:
    problem = two_step_problem()
    model = TrueModel(*(jnp.asarray(part) for part in (*problem.outcomes, problem.transitions.argmax(2))))
    states = np.arange(5, dtype=np.float32)[:, None]
    left = np.array([2, 1, 1, 1, 1])
    method = Continued(Planned(TreePlanner(model, 1, 0.0, 2)))
    made = method.decisions(states, left, DUALS)
    plans = backward_induction(problem, DUALS, lookahead=1)
    np.testing.assert_array_equal(made.probabilities[0], plans.probabilities[:, 0, 0])
    second = np.einsum("dsa,sa->ds", plans.probabilities[:, 1, 1:], problem.rewards[1:]).mean(axis=1)
    np.testing.assert_allclose(made.reward_to_go[0], problem.rewards[0] + second[:, None], rtol=1e-5)
    np.testing.assert_allclose(made.reward_to_go[1:], problem.rewards[1:, None].repeat(len(DUALS), 1), rtol=1e-5)
    # Costs are the same in all states, so that their average is what really follows.
    np.testing.assert_allclose((made.probabilities * made.cost_to_go).sum(axis=2)[0], plans.outcomes[1], rtol=1e-5)


def test_a_counted_model_of_a_noiseless_log_decides_as_the_truth_does() -> None:
    campaign = FiniteCampaign(two_step_problem(), reward_variance=0.0, cost_variance=0.0)
    log = log_from_frame(campaign.log(2_000, seed=0))
    encoder = Encoder.fit(log)
    # Without prior rows the counts are the truth, because there is no noise.
    model = fit_tabular(Examples.from_log(log, encoder), prior_rows=0.0)
    for lookahead in (1, None):
        exact = backward_induction(campaign.problem, DUALS, lookahead=lookahead)
        for place, dual in enumerate(DUALS):
            value = true_value(campaign, Counted(model, lookahead), encoder, (float(dual),), (1.0,))
            assert value.outcomes == pytest.approx(exact.outcomes[:, place], rel=1e-9)


def test_a_mixture_is_worth_the_mixture_of_its_plans() -> None:
    campaign = two_step()
    log = log_from_frame(campaign.log(500, seed=0))
    encoder = Encoder.fit(log)
    method = Counted(fit_tabular(Examples.from_log(log, encoder)))
    ends = [true_value(campaign, method, encoder, (dual,), (1.0,)) for dual in (0.0, np.inf)]
    mixed = true_value(campaign, method, encoder, (0.0, np.inf), (0.3, 0.7))
    assert mixed.cost == pytest.approx(0.3 * ends[0].cost + 0.7 * ends[1].cost)
    assert mixed.reward == pytest.approx(0.3 * ends[0].reward + 0.7 * ends[1].reward)
