"""New actions: drawn beside the plan, never part of what is certified, and paid for by what the budget sets aside."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import Cache, Campaign, Catalogue, FitSettings, NewAction, Plan, Rule, UsageError, fit, log_from_frame
from redenvelope.errors import PlanError
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.plan.decide import Decider
from redenvelope.policies.new_actions import known_history
from redenvelope.report.sections import rules_sentences
from redenvelope.simulate.finite import FiniteCampaign
from tests.quick_programs import quick_programs
from tests.serve.coupons import Coupons
from tests.two_step_plan import QUICK

SHARE, AT_MOST = 0.05, 4.0
NEW = NewAction("a4", like="a3", at_most=AT_MOST, share=SHARE)
ITEMS = Catalogue.of(pl.DataFrame({"action": ["a0", "a1", "a2", "a3", "a4"], "amount": [0.0, 1, 2, 3, 4]}))


def fitted(log: Log, stages: Path, **campaign: object) -> Plan:
    settings = FitSettings(neural=QUICK)
    with quick_programs():
        return fit(log, budget=4.0, campaign=Campaign(**campaign), settings=settings, cache=Cache(stages))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def introducing(log: Log, stages: Path) -> Plan:
    return fitted(log, stages, new=(NEW,), items=ITEMS)


@pytest.fixture(scope="module")
def users(campaign: FiniteCampaign) -> pl.DataFrame:
    return campaign.log(4_000, seed=9).select("user", "step", "state").filter(pl.col("step") == 0)


def test_the_budget_sets_aside_what_it_can_cost(introducing: Plan, log: Log, stages: Path) -> None:
    """In the worst case each of two steps gives it for 4, and the second step costs the most that any decision does."""
    dearest = max(float(log.outcomes[1].max()), AT_MOST)
    aside = SHARE * (2 * AT_MOST + dearest)
    certificate = introducing.certificate
    assert certificate.budget == 4.0
    assert certificate.budgets[0].set_aside == pytest.approx(aside)
    assert certificate.cost.upper <= 4.0 - aside
    assert "is set aside for new actions" in certificate.sentence()
    assert "set_aside" not in json.dumps(fitted(log, stages).certificate.as_dict())
    again = introducing.reprice(budget=3.6)
    assert again.certificate.cost.upper <= 3.6 - aside
    assert again.policy.new == introducing.policy.new
    with pytest.raises(UsageError, match="new actions, which may add"):
        introducing.reprice(budget=aside / 2)
    with pytest.raises(UsageError, match="a target reward cannot be promised with new actions"):
        introducing.reprice(target_reward=4.0)


def test_it_is_drawn_beside_the_plan(introducing: Plan, users: pl.DataFrame) -> None:
    without = replace(introducing, policy=replace(introducing.policy, new=()))
    given, _ = introducing.allocate(users, seed=3)
    usual, _ = without.allocate(users, seed=3)
    new = given["action"] == "a4"
    # 4,000 users: the share is known to 0.0034, one standard error.
    assert new.mean() == pytest.approx(SHARE, abs=0.011)
    assert set(given.filter(new)["propensity"]) == {SHARE}
    assert set(given.filter(new)["expected_cost"]) == {AT_MOST}, "the most that it can cost, not what is predicted"
    same = given["action"] == usual["action"]
    # Both draw by the same numbers, so only users at the edges of the shares differ.
    assert same.filter(~new).mean() > 0.97
    ratio = (given["propensity"] / usual["propensity"]).filter(same)
    np.testing.assert_allclose(ratio.to_numpy(), 1 - SHARE)
    np.testing.assert_allclose(introducing.policy.probabilities(users), without.policy.probabilities(users))


def test_one_at_a_time_as_in_a_table(introducing: Plan, users: pl.DataFrame) -> None:
    some = users.head(200)
    table, _ = introducing.allocate(some, seed=5)
    decider = Decider(introducing, seed=5)
    each = [decider.decide(row) for row in some.iter_rows(named=True)]
    assert [one.action for one in each] == table["action"].to_list()
    assert {one.probabilities["a4"] for one in each} == {SHARE}
    assert all(sum(one.probabilities.values()) == pytest.approx(1) for one in each)
    explained = decider.explain(some.row(0, named=True))
    assert [one.action for one in explained.alternatives if one.extrapolated] == ["a4"]
    assert any("'a4' is new" in said and "Extrapolated" in said for said in explained.sentences())
    said = "\n".join(rules_sentences(introducing))
    assert "New: 'a4' is not in the log" in said
    assert "The certificate does not cover it" in said


def test_rules_lists_and_history_count_it_as_what_it_is_like(log: Log, stages: Path, users: pl.DataFrame) -> None:
    plan = fitted(log, stages, new=(NEW,), rules=(Rule(("a3",), at_most=1),))
    decider, later = Decider(plan), {"user": 1, "step": 1, "state": users["state"][0]}
    for action, left in (("a4", 0.0), ("a3", 0.0), ("a0", SHARE)):
        past = [{"step": 0, "action": action, "reward": 1.0, "cost": 1.0}]
        assert decider.decide(later, history=past).probabilities["a4"] == left
        frame = pl.DataFrame(past).with_columns(user=pl.lit(1))
        decided, _ = plan.allocate(pl.DataFrame([later]), history=frame)
        assert ("a4" in decided["eligible"][0]) == (left > 0)
    first = later | {"step": 0}
    assert decider.decide(first | {"eligible": ["a0", "a1"]}).probabilities["a4"] == 0
    assert decider.decide(first | {"eligible": ["a0", "a4"]}).probabilities["a4"] == SHARE
    listed = pl.DataFrame([first | {"eligible": ["a0", "a1"]}, first | {"user": 2, "eligible": ["a0", "a4"]}])
    decided, _ = plan.allocate(listed)
    assert ["a4" in given for given in decided["eligible"]] == [False, True]


def test_control_groups_do_not_get_it(log: Log, stages: Path, users: pl.DataFrame) -> None:
    decided, _ = fitted(log, stages, new=(NEW,), holdout=0.5).allocate(users)
    given = decided.filter(pl.col("action") == "a4")
    assert not given["holdout"].any()
    assert len(given) / len(users) == pytest.approx(SHARE / 2, abs=0.0075)  # three standard errors


def test_numbers_are_read_as_numbers(introducing: Plan) -> None:
    new, catalogue = (
        [replace(introducing.policy.new[0], label="4", like=3)],
        ActionCatalogue(("0", "1", "2", "3.5"), True),
    )
    frame = known_history(new, catalogue, pl.DataFrame({"action": ["4.0", "1"], "step": [0, 1]}))
    assert frame["action"].to_list() == [3.5, 1.0]
    rows = known_history(new, catalogue, [{"action": 4.0}, {"action": 1}])
    assert [row["action"] for row in rows] == ["3.5", 1]


def test_it_is_stored_and_hashed(introducing: Plan, tmp_path: Path) -> None:
    again = Plan.load(introducing.save(tmp_path / "plan"))
    assert again.policy.new == introducing.policy.new
    assert again.certificate == introducing.certificate
    more = replace(introducing.policy.new[0], share=0.1)
    altered = replace(introducing, policy=replace(introducing.policy, new=(more,)))
    with pytest.raises(PlanError, match="not this policy's"):
        Plan.load(altered.save(tmp_path / "altered", {}))


def test_attributes_predict_it(introducing: Plan, log: Log, stages: Path) -> None:
    """Costs of the two-step problem rise evenly with the action: the next amount goes on along the line, as far as the
    penalty and the range of what is known let it."""
    (new,) = introducing.policy.new
    assert sum(new.mixture) == pytest.approx(1)
    assert np.dot(new.mixture, [0.0, 1, 2, 3]) > 3
    known = fitted(log, stages, new=(replace(NEW, action="a2"),))
    assert not known.policy.new, "the log has it: it is an action like any other"
    lonely = Catalogue.of(pl.DataFrame({"action": [0, 1, 2, 3], "amount": [0.0, 1, 2, 3]}))
    with pytest.raises(UsageError, match="has no '4'"):
        lonely.mixtures(log_from_frame(pl.DataFrame(_rows())), ["4"])


def _rows() -> dict[str, object]:
    actions = [0, 1, 2, 3] * 5
    noughts = [0.0] * 20
    own = {"user": list(range(20)), "step": [0] * 20, "action": actions, "propensity": [0.25] * 20}
    return own | {"reward": noughts, "cost": [float(action) for action in actions]}


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ('action = "5 €"\nlike = "2 €"\nat_most = 5', r"\[\[new\]\] 1, like: the log has no action '2 €'"),
        (
            'action = "5 €"\nlike = "3 €"\nat_most = 5\n[[new]]\naction = "5 €"\nlike = "1 €"\nat_most = 5',
            "an action twice",
        ),
        ('action = "5 €"\nlike = "3 €"', r"\[\[new\]\] 1, at_most: must be the most"),
        ('action = "5 €"\nlike = "3 €"\nat_most = 5\nshare = 2', r"\[\[new\]\] 1, share: must be a share"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, entries: str, said: str) -> None:
    (tmp_path / "campaign.toml").write_text(f"[[new]]\n{entries}\n")
    with pytest.raises(UsageError, match=said):
        Campaign.from_toml(tmp_path / "campaign.toml").check(log_from_frame(Coupons().log(100, 0)))
