"""Columns known too late are named, and columns that only tell much are not: against campaigns whose truth is known."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from redenvelope import LogError, UsageError, audit_log, log_from_frame
from redenvelope.audit.audit import AuditSample, audit_partitions
from redenvelope.audit.leakage import Evidence, Leak, suspected_leaks
from tests.partitioned_log import read_partitions

FOLDER = Path(__file__).parents[2] / "benchmarks"
KINDS = (
    "the reward in text tiers",
    "the reward with noise (80 % of it told)",
    "the reward with much noise (30 % told)",
    "the cost, bent: exp(−cost)",
    "the cost with noise",
    "rewards so far, this step's among them",
    "spent so far, this step's cost among it",
    "the next step's reward",
    "the next step's cost",
    "all rewards of the user in tiers, static",
    "all costs of the user beside what was before, static",
    "the last step's reward, static",
    "opened: only what was sent can be",
    "redeemed, yes or no",
    "day of redemption, missing without",
    "any number, missing where nothing was redeemed",
)


def module(name: str) -> Any:
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)


def family(name: str) -> Any:
    return module("trials.families.registry").FAMILIES[name]


def named(frame: pl.DataFrame) -> dict[str, Leak]:
    return {leak.column: leak for leak in suspected_leaks([log_from_frame(frame)])}


@pytest.fixture(scope="module")
def control() -> pl.DataFrame:
    frame: pl.DataFrame = family("control").campaign(1).log(3_000, seed=1)
    return frame


@pytest.fixture(scope="module")
def leaks(control: pl.DataFrame) -> dict[str, pl.Series]:
    columns: dict[str, pl.Series] = module("trials.leak_columns").leaked_columns(control, 1)
    assert tuple(columns) == KINDS
    return columns


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_leak_is_named_and_nothing_else(
    kind: str, control: pl.DataFrame, leaks: dict[str, pl.Series]
) -> None:
    # `benchmarks/leaks.py` finds each kind in every log of this family.
    assert named(control.with_columns(leaks[kind])).keys() == {"leak"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "next" not in kind])
def test_with_one_step_a_user_there_is_no_row_before_and_leaks_are_named_all_the_same(
    kind: str, control: pl.DataFrame, leaks: dict[str, pl.Series]
) -> None:
    frame = control.with_columns(leaks[kind]).filter(pl.col("step") == 3)
    try:
        found = named(frame)
    except LogError as error:  # a copy of the outcome is refused when it is read
        assert {finding.rule for finding in error.findings} == {"feature_leak"}
    else:
        assert found.keys() == {"leak"}


@pytest.mark.parametrize("name", ["finite", "envelopes", "hidden_habit", "whales", "wrong_propensity", "leaving"])
def test_columns_that_tell_all_there_is_to_know_are_not_named(name: str) -> None:
    columns = module("trials.leak_columns")
    laws = columns.Telling(family(name).laws(4))
    frame = module("trials.families.campaign").SimulatedCampaign(laws).log(1_500, seed=4)
    # No statistic of a log without leaks comes near its threshold: the largest of 363 such logs was 3 of 5 deviations.
    assert named(columns.honest_columns(frame)) == {}


def test_a_trait_that_tells_most_of_the_reward_is_cleared_by_the_draws() -> None:
    spenders = module("trials.leak_columns").spenders
    # 80 % of the reward is told; with 6,000 rows an effect of 0.4 is known to 0.04, so a copy would show it.
    assert named(spenders(6_000, 1, seed=0, lift=0.4)) == {}
    assert named(spenders(1_500, 4, seed=0, lift=0.0)) == {}
    # Where actions do nothing, nothing distinguishes it from a copy with noise, and it is asked about.
    (leak,) = named(spenders(3_000, 1, seed=0, lift=0.0)).values()
    assert (leak.column, leak.kind, leak.outcome) == ("spent_last_year", "only row", "reward")
    assert leak.now == pytest.approx(0.8, abs=0.03)  # 4 of 4 + 1; cells of 16 quantiles lose two percent


def test_figures_say_how_much_is_told_now_and_how_much_before(
    control: pl.DataFrame, leaks: dict[str, pl.Series]
) -> None:
    leak = named(control.with_columns(leaks["redeemed, yes or no"]))["leak"]
    assert (leak.kind, leak.outcome) == ("same row", "cost")
    assert leak.now > 0.5 > 0.2 > leak.before
    assert (
        f"predicts the cost in the same row (held-out R² {leak.now:.0%} of what action and step leave" in leak.evidence
    )
    assert leak.z > 10  # nobody redeems what was not sent: it goes with the action, too
    ahead = named(control.with_columns(leaks["the next step's reward"]))["leak"]
    assert (ahead.kind, ahead.outcome) == ("next row", "reward")
    last = named(control.with_columns(leaks["the last step's reward, static"]))["leak"]
    assert (last.kind, last.outcome, last.step) == ("one step", "reward", 3)
    total = named(control.with_columns(leaks["all rewards of the user in tiers, static"]))["leak"]
    assert (total.kind, total.outcome) == ("total", "reward")


def test_a_consequence_of_the_action_is_named_as_such(control: pl.DataFrame, leaks: dict[str, pl.Series]) -> None:
    audit = audit_log(log_from_frame(control.with_columns(leaks["opened: only what was sent can be"])))
    (leak,) = audit.leaks
    assert (leak.column, leak.kind) == ("leak", "action")
    (finding,) = (finding for finding in audit.findings if finding.column == "leak")
    assert finding.rule == "feature_tells_action"
    assert "recorded after the decision" in finding.message
    assert "--ignore leak" in finding.remedy and "--known-before leak" in finding.remedy


def test_a_logger_that_looked_where_its_probabilities_say_it_did_not_is_named() -> None:
    generator = np.random.default_rng(5)
    rich = generator.random(3_000) < 0.5
    action = (generator.random(3_000) < np.where(rich, 0.6, 0.4)).astype(int)
    frame = pl.DataFrame(
        {
            "user": np.arange(3_000),
            "step": np.zeros(3_000, dtype=int),
            "action": action,
            "propensity": np.full(3_000, 0.5),
            "reward": generator.standard_normal(3_000),
            "cost": action * generator.random(3_000),
            "rich": rich,
            "noise": generator.random(3_000),
        }
    )
    (leak,) = named(frame).values()
    assert (leak.column, leak.kind) == ("rich", "action")
    # Odds of 0.6 and 0.4 where 0.5 is logged are 20 % off; 3,000 rows know it to about 2 %.
    assert leak.now == pytest.approx(0.2, abs=0.06)
    honest = frame.with_columns(propensity=np.where(rich == (action == 1), 0.6, 0.4))
    assert named(honest) == {}


def test_estimated_propensities_know_nothing_of_draws_but_what_is_told_is_told(
    control: pl.DataFrame, leaks: dict[str, pl.Series]
) -> None:
    frame = control.with_columns(leaks["the reward in text tiers"])
    (leak,) = suspected_leaks([log_from_frame(frame.drop("propensity"), estimate_propensity=True)])
    assert (leak.column, leak.kind, leak.z) == ("leak", "same row", 0.0)


def test_parts_of_a_log_say_the_same(control: pl.DataFrame, leaks: dict[str, pl.Series]) -> None:
    frame = control.with_columns(leaks["the cost with noise"])
    whole = audit_log(log_from_frame(frame))
    _, parts = read_partitions(frame, parts=3)
    (here,), (there,) = whole.leaks, audit_partitions(parts).leaks
    assert here.evidence == there.evidence
    assert here.now == pytest.approx(there.now, rel=1e-9)


def test_a_sample_of_users_stands_for_a_large_log(control: pl.DataFrame, leaks: dict[str, pl.Series]) -> None:
    log = log_from_frame(control.with_columns(leaks["the reward in text tiers"]))
    assert [leak.column for leak in audit_log(log, sample=AuditSample(rows=4_000)).leaks] == ["leak"]


def test_what_is_said_to_have_been_known_is_reported_and_asked_no_more(
    control: pl.DataFrame, leaks: dict[str, pl.Series]
) -> None:
    log = log_from_frame(control.with_columns(leaks["the reward in text tiers"]))
    rules = {known: _rules(audit_log(log, known_before=known).findings) for known in ((), ("leak",))}
    assert rules[()] == {"feature_suspected_leak"}
    assert rules["leak",] == {"feature_said_known"}
    assert any("'leak'" in sentence for sentence in audit_log(log).as_dict()["verdicts"])
    assert not any("'leak'" in word for word in audit_log(log, known_before=["leak"]).as_dict()["verdicts"])
    with pytest.raises(UsageError, match="'laek' is not a feature of this log; did you mean 'leak'"):
        audit_log(log, known_before=["laek"])


def test_what_a_sum_remembers_in_its_last_digits_is_no_change() -> None:
    generator = np.random.default_rng(6)
    before, this = generator.gamma(0.05, size=2_000), generator.random(2_000)
    known = np.stack([np.full(2_000, 1.0), (1.0 + before + this) - this], axis=1).ravel()
    frame = pl.DataFrame(
        {
            "user": np.repeat(np.arange(2_000), 2),
            "step": np.tile([0, 1], 2_000),
            "action": np.tile([0, 1], 2_000),
            "propensity": np.full(4_000, 0.5),
            "reward": np.zeros(4_000),
            "cost": generator.random(4_000),
            "spent": known,
        }
    )
    (column,) = Evidence(log_from_frame(frame)).columns()
    assert column.change is not None
    tiny = before < 1e-7
    assert tiny.sum() > 500  # half of them, whose last digits are those of what came later
    assert len(np.unique(column.change.of_row[tiny])) == 1


def test_too_few_users_say_nothing(control: pl.DataFrame, leaks: dict[str, pl.Series]) -> None:
    frame = control.with_columns(leaks["the reward in text tiers"]).filter(pl.col("user") < 150)
    assert named(frame) == {}


def _rules(findings: Iterable[Any]) -> set[str]:
    return {finding.rule for finding in findings if finding.column == "leak"}
