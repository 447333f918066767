"""The published numbers hang together as printed, and every difference has its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments.document import differences_frame, markdown_table
from experiments.paper import BUDGET, DIFFERENCES, TABLE_ONE, TABLE_TWO

from redenvelope import two_step


@pytest.mark.parametrize("policy", ["bandit", "constrained MDP"])
def test_the_gains_of_the_first_table_follow_from_its_rewards(policy: str) -> None:
    # Two decimals of a percentage are printed.
    assert TABLE_ONE[policy].reward / TABLE_ONE["random"].reward - 1 == pytest.approx(
        TABLE_ONE[policy].change, abs=1e-4
    )


@pytest.mark.parametrize("policy", ["bandit", "constrained MDP"])
def test_the_changes_of_the_second_table_follow_from_its_figures(policy: str) -> None:
    random = TABLE_TWO["random", "random"]
    budget, reward = TABLE_TWO["fixed budget", policy], TABLE_TWO["fixed reward", policy]
    assert budget.reward / random.reward - 1 == pytest.approx(budget.change, abs=1e-4)
    assert reward.cost / random.cost - 1 == pytest.approx(reward.change, abs=1e-4)


def test_the_simulated_campaign_has_the_values_of_the_first_table() -> None:
    campaign = two_step()
    uniform = campaign.uniform()
    assert (round(uniform.cost, 4), round(uniform.reward, 4)) == (BUDGET, TABLE_ONE["random"].reward)
    assert round(campaign.bandit(BUDGET).reward, 4) == TABLE_ONE["bandit"].reward
    assert round(campaign.optimum(BUDGET).reward, 4) == TABLE_ONE["constrained MDP"].reward


def test_the_documentation_names_every_difference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for line in markdown_table(differences_frame()).splitlines()[2:]:
        assert line in page


def test_every_difference_says_what_and_why() -> None:
    assert len({item.subject for item in DIFFERENCES}) == len(DIFFERENCES)
    for item in DIFFERENCES:
        assert item.paper and item.here and item.reason
