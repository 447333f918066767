"""A plan from several waves of the same users: sequences by wave, folds and errors by user."""

import numpy as np
import polars as pl
import pytest

from redenvelope import ColumnMap, FitSettings, evaluate_plan, fit, log_from_frame, split, two_step
from tests.quick_programs import quick_programs
from tests.two_step_plan import BUDGET, QUICK

CHOOSING = ("magic", "more_robust", "marginalised")
"""Estimators that learn, or choose between parts, and do so otherwise with twice the rows."""


@pytest.mark.slow
def test_copied_waves_make_nobody_surer() -> None:
    """The same wave twice tells nothing new: the error stays that of one wave, where sequences would claim less."""
    once = two_step().log(2_000, seed=8).with_columns(wave=pl.lit(1))
    twice = pl.concat([once, once.with_columns(wave=pl.lit(2))])
    columns, settings = ColumnMap(episode="wave"), FitSettings(neural=QUICK)
    with quick_programs():
        log = log_from_frame(twice, columns)
        plan = fit(log, budget=BUDGET, settings=settings)
        check = split(log, settings.parts, settings.seed)[-1]
        assert plan.certificate.users == check.people == len(check.users) // 2
        assert plan.record.folds["check"].users == check.people
        assert plan.columns == columns
        both = evaluate_plan(plan, log, all_users=True)
        one = evaluate_plan(plan, log_from_frame(once, columns), all_users=True)
    assert (both["users"], one["users"]) == (2_000, 2_000)
    for row, single in zip(both["estimates"], one["estimates"], strict=True):
        if row["estimator"] in CHOOSING:
            continue
        assert row["estimate"] == pytest.approx(single["estimate"], rel=0.02)
        assert row["standard_error"] == pytest.approx(single["standard_error"], rel=0.05)
    assert np.isfinite(plan.certificate.cost.upper)
