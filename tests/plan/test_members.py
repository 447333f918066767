"""A cross-fitted plan has members; each user follows the one made without them, whoever decides."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load, save

from redenvelope import FiniteCampaign, FitSettings, Log, Plan, PlanError, fit
from redenvelope.plan.decide import Decider
from redenvelope.plan.policy import CrossFittedSource
from redenvelope.randomness import member_of, user_keys
from redenvelope.serve.active_plan import LoadedPlan
from redenvelope.serve.messages import DecisionQuery
from tests.adversary.signed import edit, sign
from tests.quick_programs import quick_programs
from tests.two_step_plan import BUDGET, QUICK


@cache
def cross_fitted_plan(log: Log) -> Plan:
    with quick_programs():
        return fit(log, budget=BUDGET, settings=FitSettings(neural=QUICK, cross_fit=2))


@pytest.fixture
def halves(log: Log) -> Plan:
    """A plan of two members, each of which trained without the users who follow it."""
    return cross_fitted_plan(log)


@pytest.fixture
def users(campaign: FiniteCampaign) -> pl.DataFrame:
    """Users of the log and new ones, at their first step."""
    return (
        campaign.log(7_000, seed=4)
        .filter(pl.col("step") == 0, pl.col("user") % 70 == 0)
        .select("user", "step", "state")
    )


def test_the_members_differ_and_share_the_rest(halves: Plan) -> None:
    first, second = halves.policy.members
    weights = [member.source.state()[1] for member in (first, second)]
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])
    assert (first.specification, first.pricing) == (second.specification, second.pricing)
    assert halves.certificate.users == 6_000
    assert "each by the one of 2 members made without them" in halves.certificate.sentence()


def test_a_user_gets_what_their_member_decides_bit_for_bit(halves: Plan, users: pl.DataFrame) -> None:
    found, _ = halves.allocate(users, seed=3)
    member = member_of(user_keys(users["user"]), 2)
    assert 20 < member.sum() < 80
    for number, policy in enumerate(halves.policy.members):
        own = users.filter(member == number)
        rows = np.stack([policy.probabilities(own, row) for row in range(len(policy.pricing.shares))])
        followed = policy.pricing.drawn(user_keys(own["user"]), 3)
        action = found.filter(member == number)["action"].cast(pl.String)
        places = np.array([halves.catalogue.labels.index(label) for label in action])
        expected = rows[followed, np.arange(len(own)), places]
        np.testing.assert_array_equal(found.filter(member == number)["propensity"], expected)


def test_tables_single_users_and_the_service_agree(halves: Plan, users: pl.DataFrame) -> None:
    found, _ = halves.allocate(users, seed=3)
    asked = [DecisionQuery(row["user"], 0, {"state": row["state"]}, ()) for row in users.iter_rows(named=True)]
    served = LoadedPlan(halves, seed=3).propose(asked, halves.policy.pricing)
    decider = Decider(halves, seed=3)
    for place, row in enumerate(users.iter_rows(named=True)):
        alone = decider.decide(row)
        explained = decider.explain(row)
        assert alone.action == found["action"][place] == explained.action
        assert alone.propensity == pytest.approx(found["propensity"][place], abs=1e-4)
        assert list(alone.probabilities.values()) == pytest.approx(served[place].probabilities, abs=1e-4)
        best = max(explained.alternatives, key=lambda one: one.worth or -np.inf)
        assert best.probability > 0.3


def test_a_user_keeps_the_member_at_every_seed_and_among_any_others(halves: Plan, users: pl.DataFrame) -> None:
    whole = halves.policy.probabilities(users)
    np.testing.assert_array_equal(whole[::-1], halves.policy.probabilities(users.reverse()))
    np.testing.assert_allclose(whole[5:6], halves.policy.probabilities(users[5:6]), atol=1e-6)
    with pytest.raises(PlanError, match="add the column 'user'"):
        halves.policy.probabilities(users.drop("user"))


def test_each_member_is_warmed(halves: Plan) -> None:
    ids = halves.policy.one_of_each()
    assert member_of(user_keys(pl.Series(ids)), 2).tolist() == [0, 1]


@pytest.fixture
def folder(halves: Plan, tmp_path: Path) -> Path:
    return halves.save(tmp_path / "plan", {})


def test_it_comes_back_as_it_was(halves: Plan, folder: Path, users: pl.DataFrame) -> None:
    opened = Plan.load(folder)
    assert opened.certificate == halves.certificate
    assert isinstance(opened.policy.source, CrossFittedSource)
    assert opened.allocate(users)[0].equals(halves.allocate(users)[0])


def test_a_damaged_member_is_refused(halves: Plan, folder: Path) -> None:
    manifest = json.loads((folder / "plan.json").read_text())
    weights = load((folder / "weights.safetensors").read_bytes())
    # Arrays without entries cannot be damaged; the order of a file's arrays is not fixed.
    name = max((name for name in weights if name.startswith("1 ")), key=lambda name: (weights[name].size, name))

    def written(changed: dict[str, np.ndarray]) -> None:
        sign(folder, manifest, weights_safetensors=save(changed))
        with pytest.raises(PlanError):
            Plan.load(folder)

    written({key: value for key, value in weights.items() if key != name})
    written(weights | {name: weights[name] + 1})
    written(weights | {name: weights[name][..., :-1].copy()})
    written(weights | {"2 further": np.zeros(3, np.float32)})
    swapped = {("10"[int(key[0])] + key[1:]): value for key, value in weights.items()}
    written(swapped)


@pytest.mark.parametrize(
    "members", [[], [{}] * 2, "two", *([{"kind": kind, "config": {}}] * 2 for kind in ("model", "cross-fitted"))]
)
def test_members_that_are_none_are_refused(folder: Path, members: object) -> None:
    edit(folder, source={"kind": "cross-fitted", "config": {"members": members}})
    with pytest.raises(PlanError):
        Plan.load(folder)


def test_a_single_member_is_refused(halves: Plan, folder: Path) -> None:
    listed = json.loads((folder / "plan.json").read_text())["source"]["config"]["members"]
    edit(folder, source={"kind": "cross-fitted", "config": {"members": listed[:1]}})
    with pytest.raises(PlanError, match="not listed"):
        Plan.load(folder)


def test_repricing_certifies_as_a_fit_with_that_budget_does(halves: Plan, log: Log) -> None:
    settings = FitSettings(neural=QUICK, cross_fit=2, explore=halves.policy.specification.explore)
    again = fit(log, budget=2.6, settings=settings)
    repriced = halves.reprice(budget=2.6)
    assert repriced.certificate.cost == again.certificate.cost
    assert repriced.certificate.policy_sha256 == again.certificate.policy_sha256
    assert repriced.certificate.members == 2


def test_the_report_says_how_it_was_checked(halves: Plan, tmp_path: Path) -> None:
    page = halves.report(tmp_path / "report.html").read_text()
    assert "by what the 2 members of the plan predict for users who did not train them" in page
    assert "who neither trained the model nor chose the price" not in page
