"""Why a user gets what they get: the figures are those the plan decides by."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from redenvelope import Decider, Plan, Rule, UsageError
from tests.program import run_here
from tests.two_step_plan import plan, stages

__all__ = ["plan", "stages"]

ROW = {"user": 17, "step": 0, "state": "s0"}


def test_an_explanation_is_of_the_decision_that_is_made(plan: Plan) -> None:
    decided, explained = Decider(plan).decide(ROW), plan.explain(ROW)
    assert (explained.action, explained.propensity) == (decided.action, decided.propensity)
    assert {one.action: one.probability for one in explained.alternatives} == decided.probabilities
    (price,) = explained.prices.values()
    assert price == decided.prices[0]
    for one in explained.alternatives:
        assert one.worth == pytest.approx(one.reward - price * one.costs["cost"])
    worth = [one.worth or 0 for one in explained.alternatives]
    assert worth == sorted(worth, reverse=True)
    assert explained.missing == ()
    assert "is worth most to the end of the campaign" in str(explained)
    assert "costs" in explained._repr_html_()


def test_features_that_the_row_lacks_are_named(plan: Plan) -> None:
    """The decision is made without them; whoever reads its explanation must know."""
    explained = plan.explain({"user": 17, "step": 0})
    assert explained.missing == ("state",)
    assert "The row lacks state, taken as missing: trust this less." in explained.sentences()


def test_the_rule_that_forbids_an_action_is_named(plan: Plan) -> None:
    rules = (Rule(("a3",), only_where="step >= 1"), Rule(("a0", "a1"), at_most=2))
    ruled = replace(plan, policy=replace(plan.policy, rules=rules))
    by_action = {one.action: one for one in ruled.explain(ROW, history=[]).alternatives}
    assert not by_action["a3"].eligible
    assert by_action["a3"].probability == 0
    assert by_action["a3"].forbidden_by == ("the rule 'a3: only where step >= 1'",)
    assert all(by_action[name].eligible and not by_action[name].forbidden_by for name in ("a0", "a1", "a2"))
    listed = ruled.explain(ROW | {"eligible": ["a0"]}, history=[])
    assert "'a1' is not eligible: it is not in the list of what this user may get." in listed.sentences()


def test_the_command_says_it_in_words_and_in_json(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan", {"report.html": b""})
    pl.DataFrame([ROW, ROW | {"user": 18}]).write_csv(tmp_path / "users.csv")
    said = run_here("explain", "plan", "18", "17", "--users", "users.csv", folder=tmp_path)
    assert said.returncode == 0, said.stderr
    assert said.stdout.index("User 18 ") < said.stdout.index("User 17 ")
    content = json.loads(run_here("explain", "plan", "17", "--users", "users.csv", "--json", folder=tmp_path).stdout)
    assert content["users"][0] == json.loads(json.dumps(plan.explain(ROW).as_dict()))
    missing = run_here("explain", "plan", "5", "--users", "users.csv", folder=tmp_path)
    assert missing.returncode == 2
    assert "no user '5'" in missing.stderr
    pl.DataFrame([ROW]).rename({"user": "customer"}).write_csv(tmp_path / "unnamed.csv")
    unnamed = run_here("explain", "plan", "17", "--users", "unnamed.csv", folder=tmp_path)
    assert unnamed.returncode == 2
    assert "no column 'user'" in unnamed.stderr
    with pytest.raises(UsageError):
        plan.reprice(budget=-1)
