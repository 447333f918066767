import numpy as np
import pytest

from redenvelope.fitting.record import compare, logged_by_user, possible


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


def test_estimates_that_no_log_could_show_are_left_out(log) -> None:  # type: ignore[no-untyped-def]
    logged = logged_by_user(log)
    added = {"logged": logged, "uniform": logged - 2 * log.cost.max(), "bandit": logged + 2 * log.cost.max()}
    rows = compare(added | {"untargeted": logged / 2, "plan": logged - 100}, 0.95)
    assert [row.policy for row in possible(rows, log)] == ["logged", "untargeted", "plan"]
