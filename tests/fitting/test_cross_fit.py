"""With groups of users, all of them check: each the member of the plan that was made without them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from redenvelope import (
    Budget,
    Campaign,
    FiniteCampaign,
    FiniteProblem,
    FitSettings,
    Log,
    Plan,
    UsageError,
    evaluate_plan,
    fit,
    two_step,
)
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.fitting.encoded import EncodedLog, encode
from redenvelope.fitting.fit import folds_of
from redenvelope.fitting.holdout import CandidatePolicy, Check, check_policies
from redenvelope.fitting.lake import fit_lake
from redenvelope.randomness import member_of
from tests.plan.test_members import cross_fitted_plan
from tests.two_step_plan import BUDGET, QUICK

SETTINGS = FitSettings(neural=QUICK, cross_fit=2)


@pytest.fixture
def halves(log: Log) -> Plan:
    return cross_fitted_plan(log)


@pytest.mark.parametrize("members", [2, 3])
def test_nobody_makes_the_member_that_they_check_and_everybody_checks_one(log: Log, members: int) -> None:
    checking: list[int] = []
    for number in range(members):
        folds = folds_of(log, number, replace(SETTINGS, cross_fit=members))
        made, checked = {*folds.train.users, *folds.tune.users}, {*folds.check.users}
        assert not made & checked
        assert made | checked == {*log.users}
        assert {*member_of(folds.check.user_keys, members)} == {number}
        assert len(made) == pytest.approx(len(log.users) * (1 - 1 / members), rel=0.1)
        checking += checked
    assert sorted(checking) == sorted(log.users)


def test_what_a_group_earned_does_not_reach_the_member_that_it_checks(log: Log, halves: Plan) -> None:
    """End to end: the first group's rewards are changed, so the member that it follows must come out the same, and the
    other one, which it trains, must not."""
    own = np.repeat(member_of(log.user_keys, 2) == 0, log.lengths)
    again = fit(replace(log, reward=np.where(own, 3 - log.reward, log.reward)), budget=BUDGET, settings=SETTINGS)
    same = []
    for before, after in zip(halves.policy.members, again.policy.members, strict=True):
        one, other = before.source.state()[1], after.source.state()[1]
        same.append(all(np.array_equal(one[name], other[name]) for name in one))
    assert same == [True, False]


def _checked(plan: Plan, encoded: EncodedLog, members: int) -> Check:
    candidate = CandidatePolicy(plan.policy, plan.ladder.prices)
    return check_policies({"plan": candidate}, encoded, Marginalised(members=members), 50, 0)


def test_the_check_is_the_mean_of_the_groups_each_by_its_own_member(log: Log, halves: Plan) -> None:
    def encoded(users: np.ndarray) -> EncodedLog:
        return encode(log.select(users), halves.policy.encoder, 2)

    member = member_of(log.keys, 2)
    together = _checked(halves, encoded(member >= 0), 2)
    values, influence = 0.0, np.empty_like(together.evaluation.influence())
    for number, policy in enumerate(halves.policy.members):
        alone = _checked(replace(halves, policy=policy), encoded(member == number), 1)
        values = values + alone.evaluation.value * (member == number).mean()
        influence[:, member == number] = alone.evaluation.influence()
    np.testing.assert_allclose(together.evaluation.value, values, rtol=1e-6)
    np.testing.assert_allclose(together.evaluation.influence(), influence, rtol=1e-5, atol=1e-6)


def test_evaluating_on_its_own_log_verifies_the_certificate_on_everybody(log: Log, halves: Plan) -> None:
    content = evaluate_plan(halves, log)
    assert content["certificate"]["verified"] is True
    assert (content["users"], content["left_out"]) == (len(log.users), 0)
    assert content["verdict"]["status"] == "confirmed"


def test_groups_that_make_no_sense_are_refused(log: Log) -> None:
    for groups in (0, -1, 21, 1.5, True):
        with pytest.raises(UsageError, match="cross_fit is a whole number"):
            FitSettings(cross_fit=groups)  # type: ignore[arg-type]


def _truth(plan: Plan, problem: FiniteProblem) -> np.ndarray:
    """Reward and costs of a plan whose users follow its members in equal shares, exactly."""
    wide, shares = replace(two_step(), problem=problem), np.array(plan.policy.pricing.shares)
    each = [
        [wide.value(partial(own.probabilities, row=row)).outcomes for row in range(len(shares))]
        for own in plan.policy.members
    ]
    return np.asarray(shares @ np.mean(each, axis=0))


def test_several_budgets_are_kept_in_truth(log: Log, campaign: FiniteCampaign) -> None:
    counted, problem = ("a2", "a3"), campaign.problem
    budgets = (Budget("money", per_user=2.9), Budget("large ones", count=counted, per_user=0.75))
    plan = fit(log, campaign=Campaign(budgets=budgets), settings=replace(SETTINGS, explore=0.0, history="none"))
    assert plan.certificate.is_certified
    costs = np.stack([problem.costs[0], np.broadcast_to(np.isin(campaign.actions, counted), problem.rewards.shape)])
    _, *true = _truth(plan, replace(problem, costs=costs.astype(float)))
    for each, cost in zip(plan.certificate.budgets, true, strict=True):
        assert cost <= each.budget
        # Two figures; four standard errors leave no room for chance.
        assert each.cost.estimate == pytest.approx(cost, abs=4 * each.cost.standard_error + 1e-6)
    tighter = plan.reprice(budget={"large ones": 0.5}).certificate
    assert tighter.is_certified
    assert tighter.budgets[1].cost.upper <= 0.5


def test_clusters_stay_together_and_a_bandit_has_members_too(log: Log) -> None:
    clustered = replace(log, clusters=np.sort(log.user_keys // 5))
    number = member_of(clustered.keys, 2)
    for group in (0, 1):
        folds = folds_of(clustered, group, SETTINGS)
        assert not {*folds.train.keys, *folds.tune.keys} & {*folds.check.keys}
    assert 0.4 < number.mean() < 0.6
    plan = fit(clustered, budget=BUDGET, settings=replace(SETTINGS, method="bandit"))
    assert plan.certificate.clusters == plan.ladder.users == clustered.independent < len(log.users)
    assert plan.certificate.members == 2
    assert plan.certificate.cost.upper <= BUDGET


def test_a_lake_has_one_member() -> None:
    with pytest.raises(UsageError, match="whole log in memory"):
        fit_lake(None, settings=SETTINGS)  # type: ignore[arg-type]
