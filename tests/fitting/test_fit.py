import numpy as np
import polars as pl
import pytest

from redenvelope.errors import UsageError
from redenvelope.fitting.fit import fit
from redenvelope.fitting.settings import FitSettings, SearchSettings
from redenvelope.log.log import Log
from redenvelope.log.read import log_from_frame
from redenvelope.plan.plan import Plan
from redenvelope.simulate.finite import FiniteCampaign
from tests.two_step_plan import BUDGET, QUICK


def test_a_certified_plan_keeps_to_its_budget_in_truth(plan: Plan, campaign: FiniteCampaign) -> None:
    assert plan.certificate.status == "certified"
    truth = campaign.value(plan.policy.probabilities)
    assert truth.cost <= BUDGET
    # On the frontier: what the same cost buys at best, less half a percent for what 4,000 users cannot teach.
    assert truth.reward >= 0.995 * campaign.optimum(truth.cost).reward
    assert truth.reward > campaign.bandit(truth.cost).reward


def test_the_certificates_figures_hold_in_truth(plan: Plan, campaign: FiniteCampaign) -> None:
    truth = campaign.value(plan.policy.probabilities)
    for figure, value in ((plan.certificate.cost, truth.cost), (plan.certificate.reward, truth.reward)):
        # Four standard errors: wrong once in 16,000 plans.
        assert abs(figure.estimate - value) < 4 * figure.standard_error
        assert figure.lower < figure.estimate < figure.upper


def test_the_safety_margin_aims_below_the_budget(plan: Plan) -> None:
    assert plan.record.search.target < BUDGET
    assert plan.certificate.cost.upper <= BUDGET


def test_the_record_tells_how_it_came_about(plan: Plan, log: Log) -> None:
    folds = plan.record.folds
    assert sum(fold.users for fold in folds.values()) == len(log.users)
    assert plan.certificate.users == folds["certify"].users
    assert plan.record.search.status == "converged"
    assert {row.policy for row in plan.record.comparison} == {"logged", "uniform", "bandit", "plan"}


def test_the_frontier_has_the_contracts_columns_and_never_rises(plan: Plan) -> None:
    bounds = [f"{name}_{side}" for name in ("cost", "reward") for side in ("lower", "upper")]
    assert {"dual", "cost", "reward", *bounds} <= set(plan.frontier.columns)
    assert np.isinf(plan.frontier["dual"][-1])
    assert (np.diff(plan.frontier["cost"]) <= 1e-12).all()


def test_a_target_reward_is_reached_at_least_cost(log: Log, campaign: FiniteCampaign) -> None:
    plan = fit(log, target_reward=4.2, settings=FitSettings(neural=QUICK))
    truth = campaign.value(plan.policy.probabilities)
    assert plan.certificate.status == "certified"
    assert plan.certificate.reward.lower >= 4.2
    assert truth.reward >= 4.2
    assert truth.reward >= 0.99 * campaign.optimum(truth.cost).reward
    assert "reaches the target of 4.2" in plan.certificate.sentence()
    # Not much more than asked for: the margin is three standard errors of about 0.03.
    assert truth.reward <= 4.2 + 0.25


def test_a_target_out_of_reach_is_refused(log: Log) -> None:
    with pytest.raises(UsageError, match="no plan earns 50"):
        fit(log, target_reward=50.0, settings=FitSettings(neural=QUICK))


def test_too_few_users_are_refused_before_anything_is_learned(campaign: FiniteCampaign) -> None:
    with pytest.raises(UsageError, match="the log has 40 users"):
        fit(log_from_frame(campaign.log(40, seed=0)), budget=BUDGET)


def test_the_bandit_can_be_asked_for(log: Log, campaign: FiniteCampaign) -> None:
    plan = fit(log, budget=BUDGET, settings=FitSettings(method="bandit", neural=QUICK))
    assert plan.policy.specification.horizon == 1
    truth = campaign.value(plan.policy.probabilities)
    assert truth.reward <= campaign.optimum(truth.cost).reward + 1e-9


def test_what_makes_no_sense_is_refused(log: Log) -> None:
    with pytest.raises(UsageError, match="either a budget"):
        fit(log)
    with pytest.raises(UsageError, match="either a budget"):
        fit(log, budget=1.0, target_reward=1.0)


def test_a_log_with_gaps_is_refused_before_anything_is_learned(campaign: FiniteCampaign) -> None:
    frame = campaign.log(300, seed=0).with_columns(step=pl.col("step") * 2)
    with pytest.raises(UsageError, match="steps of some users are missing"):
        fit(log_from_frame(frame), budget=BUDGET)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"method": "magic"}, "planned, learned or bandit"),
        ({"horizon": 0}, "at least 1"),
        ({"temperature": -1.0}, "zero or a positive"),
        ({"confidence": 95.0}, "between 0.5 and 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        FitSettings(**wrong)  # type: ignore[arg-type]


def test_search_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="users must not be negative"):
        SearchSettings(users=-1)


def test_a_budget_below_the_cheapest_is_not_blamed_on_the_log(log: Log) -> None:
    with pytest.raises(UsageError, match=r"below the .* that the cheapest action costs; ask for at least"):
        fit(log, budget=0.1, settings=FitSettings(neural=QUICK))
