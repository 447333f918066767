from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from redenvelope.errors import ModelError, UsageError
from redenvelope.fitting import learn as method
from redenvelope.fitting.fit import fit
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.log import Log
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.models.fit import NeuralFit, fit_neural
from redenvelope.plan.plan import Plan
from redenvelope.policies.pricing import Pricing
from redenvelope.progress import Event
from redenvelope.simulate.finite import FiniteCampaign
from tests.two_step_plan import BUDGET, QUICK, exploring, true_value


def _taught_that_nothing_leads_anywhere(examples: Examples, *arguments: object) -> NeuralFit:
    """A model of a log in which the states of second steps were dealt anew: right on average, wrong for everyone."""
    states = examples.states.copy()
    second = np.flatnonzero(examples.continues) + 1
    states[second] = states[np.random.default_rng(0).permutation(second)]
    return fit_neural(replace(examples, states=states), *arguments)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fallen_back(log: Log) -> Plan:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method, "fit_neural", _taught_that_nothing_leads_anywhere)
        return fit(log, budget=BUDGET, settings=FitSettings(neural=QUICK))


def test_a_wrong_model_is_not_trusted_and_values_are_learned_without_it(fallen_back: Plan) -> None:
    assert not fallen_back.record.fidelity.trusted
    assert fallen_back.policy.specification.method == "learned"
    assert fallen_back.certificate.method == "learned"
    assert fallen_back.certificate.status == "certified"


def test_falling_back_earns_more_than_planning_with_the_wrong_model(
    fallen_back: Plan, log: Log, campaign: FiniteCampaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(method, "fit_neural", _taught_that_nothing_leads_anywhere)
    stubborn = fit(log, budget=BUDGET, settings=FitSettings(neural=QUICK, method="planned"))
    learned, planned = (true_value(campaign, plan) for plan in (fallen_back, stubborn))
    assert learned.cost <= BUDGET
    # Shares of what the same cost buys at best: the two plans need not spend the same, and both explore.
    best = exploring(campaign, fallen_back.policy.specification.explore)
    assert learned.reward > 0.99 * best.optimum(learned.cost).reward
    assert planned.reward < 0.99 * best.optimum(planned.cost).reward
    assert learned.reward > best.bandit(learned.cost).reward > 0


def test_a_learned_plan_is_the_same_after_saving(fallen_back: Plan, log: Log, tmp_path: Path) -> None:
    again = Plan.load(fallen_back.save(tmp_path / "plan"))
    sample = log.select(np.arange(len(log.users)) < 200)
    encoder, pricing = fallen_back.policy.encoder, Pricing(((0.0,), (0.7,), (np.inf,)), (0.2, 0.3, 0.5))
    for mine, theirs in zip(
        replace(fallen_back.policy, pricing=pricing).values(sample),
        replace(again.policy, pricing=pricing).values(sample),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert again.policy.encoder == encoder
    assert again.policy.valuer.notes == fallen_back.policy.valuer.notes


def test_a_learned_plan_allocates_with_its_own_probabilities(
    fallen_back: Plan, log: Log, campaign: FiniteCampaign
) -> None:
    users = campaign.log(300, seed=9).filter(step=0).drop("action", "propensity", "reward", "cost")
    decisions, findings = fallen_back.allocate(users)
    assert not findings
    assert decisions["propensity"].is_between(0, 1, closed="right").all()
    # The first step's costs of the two-step problem are 0.71475 + 0.5 a; the noise of a mean of 1,000 rows is 0.01.
    places = np.array([fallen_back.catalogue.labels.index(label) for label in decisions["action"]])
    expected = 0.71475 + 0.5 * places
    assert np.abs(decisions["expected_cost"].to_numpy() - expected).max() < 0.05


def test_where_nothing_can_be_learned_the_bandit_is_the_last_resort(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise ModelError("too few users get that far")

    monkeypatch.setattr(method.SoftQ, "prepare", refuse)
    monkeypatch.setattr(method, "fit_neural", _taught_that_nothing_leads_anywhere)
    told: list[Event] = []
    plan = fit(log, budget=BUDGET, settings=FitSettings(neural=QUICK), progress=told.append)
    assert plan.policy.specification.method == "bandit"
    assert any("too few users get that far" in event.message for event in told)
    with pytest.raises(ModelError, match="too few users"):
        fit(log, budget=BUDGET, settings=FitSettings(neural=QUICK, method="learned"))


def test_a_method_by_another_name_is_refused() -> None:
    with pytest.raises(UsageError, match="planned, learned or bandit"):
        FitSettings(method="magic")  # type: ignore[arg-type]


def test_one_step_needs_no_looking_ahead(campaign: FiniteCampaign) -> None:
    frame = campaign.log(1_000, seed=4).filter(step=0)
    plan = fit(log_from_frame(frame), budget=1.4, settings=FitSettings(neural=QUICK))
    assert plan.policy.specification.method == "bandit"
