import numpy as np
import pytest

from redenvelope import Plan
from redenvelope.fitting.record import compare, logged_by_user
from redenvelope.plan.reprice import answer


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


def test_questions_are_answered_from_the_frontier(plan: Plan) -> None:
    content = answer(plan, None, 4.0)
    less, same, more = content["at"]
    assert less["budget"] == pytest.approx(0.9 * plan.certificate.budget)
    assert less["reward"] < same["reward"] < more["reward"]
    gained = (more["reward"] - same["reward"]) / (more["budget"] - same["budget"])
    assert gained <= same["shadow_price"] + 1e-9
    assert answer(plan, content["least_cost"]["cost"], None)["at"][0]["reward"] == pytest.approx(4.0, abs=1e-6)
