from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from redenvelope import log_from_frame
from redenvelope.evaluation.data import off_policy_data
from redenvelope.evaluation.evaluate import evaluate_partitions
from redenvelope.fitting.holdout import CandidatePolicy, Check, are_impossible, concentrations, possible_means
from redenvelope.fitting.record import compare, compared_policies, logged_by_user
from redenvelope.plan.ladder import Place


def test_differences_are_paired() -> None:
    generator = np.random.default_rng(0)
    logged = generator.normal(5, 3, size=(2, 500))
    better = logged + generator.normal(0.2, 0.1, size=(2, 500))
    rows = compare({"logged": logged, "plan": better}, 0.95)
    assert rows[0].reward_difference == 0
    assert rows[1].reward_difference == pytest.approx((better - logged)[0].mean())
    width = rows[1].reward_difference_upper - rows[1].reward_difference_lower
    # By hand: 2 · 1.96 · 0.1 / √500; unpaired it would be thirty times as wide.
    assert width == pytest.approx(2 * 1.96 * 0.1 / np.sqrt(500), rel=0.1)


def test_logged_sums_are_by_user(log) -> None:  # type: ignore[no-untyped-def]
    sums = logged_by_user(log)
    assert sums.shape == (2, len(log.users))
    assert sums[1].sum() == pytest.approx(log.cost.sum())


def test_a_mean_lies_between_what_was_logged_least_and_most() -> None:
    rows = [("a", 0, 0.5, 1.0), ("a", 1, 2.0, 1.0), ("b", 0, 0.25, 0.0), ("b", 1, 3.0, 1.0), ("c", 0, 1.0, 1.0)]
    frame = pl.DataFrame(rows, schema=["user", "step", "cost", "reward"], orient="row")
    log = log_from_frame(frame.with_columns(action=pl.Series([0, 1, 0, 1, 1]), propensity=0.5))
    # User c has no second step, which then costs nothing.
    np.testing.assert_allclose(possible_means(log)[:, 1], [0.25 + 0.0, 1.0 + 3.0])
    below, above = are_impossible(np.array([[1.0, 1.0, 1.0], [0.2, 0.24, 4.2]]), log)
    assert below[1].tolist() == [True, False, False]  # a hundredth of 6.75 / 3 is rounding
    assert above[1].tolist() == [False, False, True]


def test_estimates_that_no_log_could_show_are_no_figures(log) -> None:  # type: ignore[no-untyped-def]
    """Weights of twice the right size, and a baseline that is far too high: the estimated cost is about −95."""
    wrong = replace(log, propensity=log.propensity / 2)
    probabilities, baseline = np.full((len(log), 3, 4), 0.25), np.zeros((2, len(log), 3, 4))
    baseline[1, :, 1] = np.where(log.step == log.step.max(), 100.0, 200.0)[:, None]
    data = off_policy_data(wrong, probabilities, baseline)
    found = evaluate_partitions([data], ["doubly_robust"])["doubly_robust"]
    policy: Any = SimpleNamespace(specification=SimpleNamespace(temperature=0.0, horizon=1))
    names, shown = ("plan", "bandit", "uniform"), cast(Any, None)
    candidates = {name: CandidatePolicy(policy, np.zeros((1, 1))) for name in names}
    check = Check(wrong, candidates, found, shown, concentrations(log))
    assert check.impossible.tolist() == [False, True, False]
    ladder = check.ladder("bandit")
    assert "impossible_estimate" in [reason.rule for reason in ladder.reasons(Place(0))]
    assert ladder.means[1, 0] == pytest.approx(possible_means(log)[0, 1])
    certificate: Any = SimpleNamespace(budgets=[SimpleNamespace(budget=3.0)], confidence=0.95)
    plan = check.added("plan", Place(0))
    for untargeted, shown_too in ((plan, ["untargeted"]), (plan - 100, [])):
        rows = compared_policies(check, plan, untargeted, certificate)
        assert [row.policy for row in rows] == ["logged", "uniform", *shown_too, "plan"]
