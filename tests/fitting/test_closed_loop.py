"""The whole circle: a plan is fitted on a log, decides for new users step by step, and a simulator answers."""

import numpy as np
import polars as pl
import pytest
from experiments.random_campaigns import random_parameters

from redenvelope import EnvelopeCampaign, FiniteCampaign, FitSettings, Plan, fit, log_from_frame
from redenvelope.simulate.campaign import Decide
from redenvelope.simulate.finite import random_problem
from tests.two_step_plan import BUDGET, QUICK


def allocating(plan: Plan, actions: tuple[str, ...], seed: int) -> Decide:
    """What `allocate` drew for each user, as a policy that is certain of it."""

    def decide(users: pl.DataFrame) -> np.ndarray:
        drawn, _ = plan.allocate(users, seed)
        place = {str(label): number for number, label in enumerate(actions)}
        return np.eye(len(actions))[[place[str(label)] for label in drawn["action"]]]

    return decide


def test_the_two_step_plan_lands_within_one_percent_of_the_optimum(plan: Plan, campaign: FiniteCampaign) -> None:
    run = campaign.run(allocating(plan, campaign.actions, 5), users=40_000, seed=8)
    assert plan.certificate.status == "certified"
    # Four standard errors of the run itself, about 0.003 each.
    assert run.cost <= BUDGET + 4 * run.cost_error
    optimum = campaign.optimum(run.cost).reward
    assert run.reward >= 0.99 * optimum - 4 * run.reward_error
    assert run.reward > campaign.bandit(run.cost).reward


@pytest.mark.slow
@pytest.mark.parametrize("seed", [9001, 9002, 9003])
def test_finite_campaigns_nobody_tuned_to(seed: int) -> None:
    campaign = FiniteCampaign(random_problem(seed, states=5, actions=3, steps=3))
    budget = (campaign.cheapest().cost + campaign.uniform().cost) / 2
    log = log_from_frame(campaign.log(8_000, seed))
    plan, bandit = (
        fit(log, budget=budget, settings=FitSettings(neural=QUICK, method=method)) for method in ("auto", "bandit")
    )
    run, other = (campaign.run(allocating(each, campaign.actions, 1), 40_000, seed) for each in (plan, bandit))
    if plan.certificate.status == "certified":
        assert run.cost <= budget + 4 * run.cost_error
    # At equal cost: each plan against what its own cost buys at best.
    assert _share(campaign, run.cost, run.reward) > _share(campaign, other.cost, other.reward) - 0.02


@pytest.mark.slow
def test_envelopes_nobody_tuned_to() -> None:
    campaign = EnvelopeCampaign(random_parameters(9004), population=100)
    budget = (campaign.cheapest().cost + campaign.uniform().cost) / 2
    log = log_from_frame(campaign.log(20_000, 9004))
    plan, bandit = (fit(log, budget=budget, settings=FitSettings(method=method)) for method in ("auto", "bandit"))
    run, other = (campaign.run(allocating(each, campaign.actions, 1), 40_000, 1) for each in (plan, bandit))
    if plan.certificate.status == "certified":
        assert run.cost <= budget + 4 * run.cost_error
    # What 20,000 users teach: 0.956 ± 0.014 of the optimum's gain; the run's own noise is about 0.01 of it.
    assert _share(campaign, run.cost, run.reward) >= 0.90
    assert _share(campaign, run.cost, run.reward) > _share(campaign, other.cost, other.reward)


def _share(campaign: FiniteCampaign | EnvelopeCampaign, cost: float, reward: float) -> float:
    """Of what the same cost adds at best to the cheapest policy."""
    base = campaign.cheapest().reward
    return (reward - base) / (campaign.optimum(cost).reward - base)
