"""The exact rows of the second table."""

from __future__ import annotations

import pytest
from experiments.second_table import _at_budget, _at_reward

from redenvelope import EnvelopeCampaign


@pytest.mark.parametrize("policy", ["bandit", "constrained MDP"])
def test_the_least_cost_of_a_reward_earns_it(policy: str) -> None:
    campaign = EnvelopeCampaign(population=12)
    random = campaign.uniform()
    found = _at_reward(campaign, policy, random)
    # The cost is searched to 1e-4, at a slope of less than one.
    assert found.reward == pytest.approx(random.reward, abs=1e-4)
    assert _at_budget(campaign, policy, found.cost * 0.98).reward < random.reward


def test_planning_ahead_is_worth_more_than_the_bandit() -> None:
    campaign = EnvelopeCampaign(population=12)
    random = campaign.uniform()
    bandit, plan = (_at_reward(campaign, policy, random).cost for policy in ("bandit", "constrained MDP"))
    assert plan < bandit < random.cost
