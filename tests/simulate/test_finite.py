"""Campaigns over random finite problems, against exact evaluation and the linear program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from redenvelope import FiniteCampaign, ProblemError, UsageError, linear_program
from redenvelope.finite.problem import evaluate, occupancy
from redenvelope.simulate.finite import random_problem

SEEDS = range(4)


def campaign_of(seed: int) -> FiniteCampaign:
    """A campaign with a random logging policy, users who leave, and forbidden actions."""
    problem = random_problem(seed, leaving=0.1, ineligible=0.2)
    weights = (0.2 + np.random.default_rng(seed).random((6, 4))) * problem.allowed
    return FiniteCampaign(problem, behaviour=weights / weights.sum(axis=1, keepdims=True))


def decide_from(table: np.ndarray):
    """A policy as deployed, from a table [steps, states, actions]."""

    def decide(frame: pl.DataFrame) -> np.ndarray:
        return table[frame["step"].to_numpy(), frame["state"].str.slice(1).cast(int).to_numpy()]

    return decide


@pytest.mark.parametrize("seed", SEEDS)
def test_value_of_the_optimal_table_is_the_optimum(seed: int) -> None:
    campaign = campaign_of(seed)
    budget = (campaign.cheapest().cost + campaign.dearest().cost) / 2
    solution = linear_program(campaign.problem, budget)
    value = campaign.value(decide_from(solution.policy))
    assert value.outcomes == pytest.approx(solution.value.outcomes, rel=1e-12)
    optimum = campaign.optimum(budget)
    assert (optimum.reward, optimum.cost) == pytest.approx(tuple(value.outcomes), rel=1e-12)
    assert optimum.reward >= campaign.bandit(budget).reward


def test_bandit_that_cannot_afford_its_cheapest_action_says_what_would_do() -> None:
    campaign = campaign_of(0)
    refused = campaign.bandit(campaign.cheapest().cost - 1e-6)
    assert refused.status == "budget_infeasible"
    assert refused.cost == pytest.approx(campaign.cheapest().cost, rel=1e-12)
    assert campaign.bandit(campaign.dearest().cost).status == "budget_slack"
    # Actions out of order: the cheapest one is now the last.
    reversed_costs = replace(campaign.problem, costs=campaign.problem.costs[..., ::-1], eligible=None)
    turned = FiniteCampaign(reversed_costs)
    assert turned.bandit(0.0).cost == pytest.approx(turned.dearest().cost, rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_value_equals_a_closed_loop_run(seed: int) -> None:
    campaign = campaign_of(seed)
    weights = np.random.default_rng(seed).exponential(size=(4, 6, 4)) * campaign.problem.allowed
    decide = decide_from(weights / weights.sum(axis=2, keepdims=True))
    value, run = campaign.value(decide), campaign.run(decide, users=20_000, seed=seed)
    assert abs(run.cost - value.cost) < 4 * run.cost_error
    assert abs(run.reward - value.reward) < 4 * run.reward_error


@pytest.mark.parametrize("seed", SEEDS)
def test_log_follows_the_logging_policy(seed: int) -> None:
    campaign = campaign_of(seed)
    users = 20_000
    log = campaign.log(users, seed)
    assert log.columns == ["user", "step", "action", "propensity", "reward", "cost", "state"]
    state = log["state"].str.slice(1).cast(int).to_numpy()
    action = log["action"].str.slice(1).cast(int).to_numpy()
    assert (log["propensity"].to_numpy() == campaign.logging_policy[state, action]).all()
    seen = np.zeros((4, 6, 4))
    np.add.at(seen, (log["step"].to_numpy(), state, action), 1 / users)
    # Five standard errors of a share, for the worst of 96 cells.
    assert seen == pytest.approx(occupancy(campaign.problem, campaign.logging_policy), abs=5 * 0.5 / np.sqrt(users))
    totals = log.group_by("user").agg(pl.sum("cost", "reward"))
    expected = evaluate(campaign.problem, campaign.logging_policy)
    for name, truth in zip(("reward", "cost"), expected.outcomes, strict=True):
        assert abs(totals[name].mean() - truth) < 4 * totals[name].std() / np.sqrt(users)


@pytest.mark.parametrize("budgets", [2, 3])
def test_a_log_has_a_column_for_each_cost(budgets: int) -> None:
    problem = random_problem(3, leaving=0.1, budgets=budgets)
    problem = replace(problem, costs=problem.costs + 1)
    campaign, users = FiniteCampaign(problem), 20_000
    log = campaign.log(users, 1)
    names = ["reward", "cost", "cost_2", "cost_3"][: 1 + budgets]
    assert log.columns == ["user", "step", "action", "propensity", *names, "state"]
    state = log["state"].str.slice(1).cast(int).to_numpy()
    action = log["action"].str.slice(1).cast(int).to_numpy()
    noise = log.select(names).to_numpy() - problem.outcomes[:, state, action].T
    # Gamma draws with means of 1 and more have an excess kurtosis of at most 0.6: four of √(2.6/n) for n rows.
    assert noise.var(axis=0) == pytest.approx([0.1] * (1 + budgets), rel=4 * np.sqrt(2.6 / log.height))
    # The noises of different outcomes are drawn apart: four standard errors of a correlation.
    apart = np.corrcoef(noise.T) - np.eye(1 + budgets)
    assert np.abs(apart).max() < 4 / np.sqrt(log.height)
    totals = log.group_by("user").agg(pl.sum(*names)).select(names).to_numpy()
    truth = evaluate(problem, campaign.logging_policy).outcomes
    assert (np.abs(totals.mean(axis=0) - truth) < 4 * totals.std(axis=0) / np.sqrt(users)).all()


def test_a_run_adds_up_every_cost() -> None:
    campaign = FiniteCampaign(random_problem(4, leaving=0.1, budgets=3))
    run = campaign.run(lambda frame: np.full((frame.height, 4), 0.25), users=20_000, seed=2)
    truth = campaign.uniform()
    assert run.outcomes.shape == truth.outcomes.shape == (4,)
    assert (np.abs(run.outcomes - truth.outcomes) < 4 * run.errors).all()


def test_questions_of_one_budget_are_refused_where_there_are_several() -> None:
    campaign = FiniteCampaign(random_problem(0, budgets=2))
    for question in (campaign.optimum, campaign.bandit):
        with pytest.raises(UsageError, match=r"has 2 budgets, .* linear_program\(campaign.problem, budgets\)"):
            question(1.0)


def test_actions_cost_more_and_more_in_any_log() -> None:
    log = campaign_of(0).log(5_000, 0)
    costs = log.group_by("action").agg(pl.mean("cost")).sort("action")["cost"].to_list()
    assert costs == sorted(costs)


def test_users_who_leave_have_fewer_rows_and_no_gaps() -> None:
    log = campaign_of(1).log(2_000, 0)
    rows = log.group_by("user", maintain_order=True).agg(pl.len(), last=pl.last("step"))
    assert rows.height == 2_000
    assert (rows["len"] == rows["last"] + 1).all()
    assert rows["len"].n_unique() > 1


def test_same_seed_same_log() -> None:
    campaign = campaign_of(2)
    assert campaign.log(200, 5).equals(campaign.log(200, 5))
    assert not campaign.log(200, 5).equals(campaign.log(200, 6))


def test_deterministic_dynamics_when_asked() -> None:
    problem = random_problem(0, deterministic=True)
    assert set(np.unique(problem.transitions)) == {0.0, 1.0}


def test_nonsense_is_refused() -> None:
    problem = random_problem(0, ineligible=0.4)
    with pytest.raises(ProblemError, match="variance"):
        FiniteCampaign(problem, reward_variance=-1)
    with pytest.raises(UsageError, match="shape"):
        FiniteCampaign(problem, behaviour=np.ones(4) / 4)
    with pytest.raises(UsageError, match="does not allow"):
        FiniteCampaign(problem).value(lambda frame: np.full((frame.height, 4), 0.25))
    with pytest.raises(UsageError, match="at least one user"):
        FiniteCampaign(problem).log(0, 0)
