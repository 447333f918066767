"""The service keeps the plan's rules, whoever asks, and whatever can be paid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope import Decider, Plan, Rule
from redenvelope.serve.active_plan import DecisionQuery, LoadedPlan
from tests.serve.coupons import LABELS

PAST = ({"step": 0, "action": "1 €", "reward": 1.0, "cost": 0.0},)
ROW = {"taste": 0.9, "city": "Lyon"}


@pytest.fixture(scope="module")
def ruled(plan: Plan) -> Plan:
    rules = (Rule(actions=("1 €", "3 €"), at_most=1), Rule(actions=("3 €",), only_where="city == 'Graz'"))
    return replace(plan, policy=replace(plan.policy, rules=rules))


@pytest.mark.parametrize("waiting", [1, 40])
def test_caps_and_conditions_hold_one_by_one_and_together(ruled: Plan, waiting: int) -> None:
    in_use = LoadedPlan(ruled)
    pricing = ruled.policy.pricing
    first = in_use.propose([DecisionQuery(user, 0, ROW, ()) for user in range(waiting)], pricing)
    then = in_use.propose([DecisionQuery(user, 1, ROW, PAST) for user in range(waiting)], pricing)
    order = [ruled.catalogue.labels.index(label) for label in LABELS]
    for proposals, allowed in ((first, [True, True, False]), (then, [True, False, False])):
        for proposal in proposals:
            assert proposal.allowed is not None
            assert [proposal.allowed[place] for place in order] == allowed
            assert not np.array(proposal.probabilities)[~np.array(proposal.allowed)].any()


def test_exploration_and_rules_are_those_of_single_decisions(ruled: Plan, plan: Plan) -> None:
    for own, past, step in ((ruled, (), 0), (ruled, PAST, 1), (plan, (), 0)):
        decider, in_use = Decider(own), LoadedPlan(own)
        asked = [DecisionQuery(user, step, ROW, past) for user in range(9)]
        for one, proposal in zip(asked, in_use.propose(asked, own.policy.pricing), strict=True):
            wanted = decider.decide({"user": one.user, "step": step, **ROW}, history=past).probabilities
            # Together they are planned in single precision, whose rounding counts over a low temperature.
            np.testing.assert_allclose(proposal.probabilities, list(wanted.values()), atol=1e-4)
