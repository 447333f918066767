"""No decision breaks a rule: in tables and one by one, whatever the rules, from the first step to the last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest

from redenvelope import Decider, ModelError, Plan, Rule
from tests.plan.rule_world import LABELS, STEPS, breaks, plan_with, random_rules, rows_at
from tests.quick_programs import quick_programs


@pytest.fixture(autouse=True)
def programs() -> Iterator[None]:
    with quick_programs():
        yield


def with_lists(frame: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Every other user has a list; sending nothing is always in it."""
    rng = np.random.default_rng(seed)
    lists = [
        None if user % 2 else ["none", *(label for label in LABELS[1:] if rng.random() < 0.7)]
        for user in frame["user"].to_list()
    ]
    return frame.with_columns(eligible=pl.Series(lists, dtype=pl.List(pl.String)))


def campaign_of(plan: Plan, users: int, seed: int, lists: bool = False) -> tuple[int, dict[int, list[str]]]:
    """Decide for users from step to step; how many decisions broke a rule, and what everybody got."""
    past: dict[int, list[str]] = {user: [] for user in range(users)}
    history: list[pl.DataFrame] = []
    broken = 0
    for step in range(STEPS):
        frame = rows_at(step, users, seed)
        frame = with_lists(frame, seed) if lists else frame
        before = pl.concat(history) if history else None
        decisions, _ = plan.allocate(frame, seed, before)
        for row, action in zip(frame.iter_rows(named=True), decisions["action"].to_list(), strict=True):
            broken += breaks(plan.policy.rules, row, past[row["user"]], action)
            past[row["user"]].append(action)
        history.append(decisions.select("user", "step", "action", reward=pl.lit(0.5), cost=pl.lit(1.0)))
    return broken, past


@pytest.mark.parametrize("kind", ["model", "learned"])
def test_no_decision_for_a_table_breaks_a_rule(kind: str) -> None:
    seen = set()
    for seed in range(4):
        broken, given = campaign_of(plan_with(random_rules(seed), kind=kind), 100, seed, lists=seed % 2 == 1)
        assert broken == 0
        seen |= {action for actions in given.values() for action in actions}
    assert seen == set(LABELS)


@pytest.mark.parametrize("kind", ["model", "learned"])
def test_no_single_decision_breaks_a_rule_and_all_are_those_of_a_table(kind: str) -> None:
    plan = plan_with((*random_rules(3), Rule(("10 off",), at_most=1)), kind=kind)
    decider, users = Decider(plan, seed=5).warm(), 25
    pasts: list[list[dict[str, Any]]] = [[] for _ in range(users)]
    for step in range(STEPS):
        frame = with_lists(rows_at(step, users, 5), 5)
        flat = [{"user": user, **one} for user, rows in enumerate(pasts) for one in rows]
        table, _ = plan.allocate(frame, 5, pl.DataFrame(flat) if flat else None)
        for row, together in zip(frame.iter_rows(named=True), table.iter_rows(named=True), strict=True):
            past = pasts[row["user"]]
            decision = decider.decide(row, history=past)
            assert not breaks(plan.policy.rules, row, [one["action"] for one in past], str(decision.action))
            assert decision.action == together["action"]
            assert decision.propensity == pytest.approx(together["propensity"], rel=1e-4)
            chances = {label for label, chance in decision.probabilities.items() if chance > 0}
            assert chances == set(together["eligible"])  # exploration reaches everything that is eligible
            past.append({"step": step, "action": decision.action, "reward": 0.5, "cost": 1.0})


def test_what_was_eligible_is_written_with_the_decisions() -> None:
    plan = plan_with((Rule(("push",), only_where="tenure >= 30"),))
    frame = rows_at(0, 40, 1)
    decisions, findings = plan.allocate(frame)
    for row, listed in zip(frame.iter_rows(named=True), decisions["eligible"].to_list(), strict=True):
        assert ("push" in listed) == (row["tenure"] >= 30)
    assert findings == ()
    assert "eligible" not in plan_with(()).allocate(frame)[0].columns


def test_caps_need_the_past() -> None:
    plan = plan_with((Rule(("push",), at_most=1),))
    assert plan.needs_history
    with pytest.raises(ModelError, match="pass their earlier steps as the history"):
        plan.allocate(rows_at(1, 5, 0))
    with pytest.raises(ModelError, match="pass their earlier steps as the history"):
        Decider(plan).decide({"user": 1, "step": 2})


def test_whoever_is_left_with_nothing_gets_the_cheapest_and_that_is_said() -> None:
    plan = plan_with((Rule(LABELS, only_where="tenure >= 30"),))
    frame = rows_at(0, 60, 1)
    decisions, findings = plan.allocate(frame)
    barred = frame["tenure"] < 30
    assert set(decisions.filter(barred)["action"]) == {"none"}
    assert set(decisions.filter(barred)["propensity"]) == {1.0}
    (finding,) = findings
    assert finding.rule == "serving_nothing_eligible" and finding.count == int(barred.sum())
    row = frame.filter(barred).row(0, named=True)
    assert Decider(plan).decide(row).action == "none"


@pytest.mark.slow
def test_no_decision_of_a_million_breaks_a_rule() -> None:
    decisions, users = 0, 12_500
    for seed in range(100, 120):
        kind = "learned" if seed % 4 == 3 else "model"
        broken, _ = campaign_of(plan_with(random_rules(seed), kind=kind), users, seed, lists=seed % 2 == 1)
        assert broken == 0
        decisions += users * STEPS
    assert decisions == 1_000_000


@pytest.mark.slow
def test_no_single_decision_of_many_breaks_a_rule() -> None:
    for seed in range(200, 210):
        plan = plan_with(random_rules(seed), kind="learned" if seed % 2 else "model")
        decider = Decider(plan, seed=seed)
        pasts: list[list[dict[str, Any]]] = [[] for _ in range(250)]
        for step in range(STEPS):
            for row in rows_at(step, 250, seed).iter_rows(named=True):
                past = pasts[row["user"]]
                decision = decider.decide(row, history=past)
                assert not breaks(plan.policy.rules, row, [one["action"] for one in past], str(decision.action))
                past.append({"step": step, "action": decision.action, "reward": 0.5, "cost": 1.0})
