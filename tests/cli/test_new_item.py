"""The guide's way to a new coupon, from its campaign file to the plan of the week after, in a world that is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from redenvelope import Plan
from redenvelope.randomness import draw
from tests.documents import blocks, lines
from tests.program import run_here
from tests.two_step_plan import small_models

__all__ = ["small_models"]

GUIDE = "docs/guides/items.md"
LABELS = ("nothing", "5 € coupon", "10 € coupon", "15 € coupon")
FACES = np.array([0.0, 5.0, 10.0, 15.0])
SHARE = 0.01


def outcomes(taste: NDArray[np.float64], action: NDArray[np.intp], seed: int) -> tuple[pl.Series, pl.Series]:
    """Reward and cost: a coupon is redeemed more often the larger it is, and the more the user likes coupons."""
    redeemed = np.random.default_rng([seed, 1]).random(len(action)) < 0.02 * FACES[action] * (0.5 + taste)
    return pl.Series("reward", redeemed.astype(float)), pl.Series("cost", redeemed * FACES[action])


def users(count: int, seed: int) -> pl.DataFrame:
    generator = np.random.default_rng([seed, 2])
    return pl.DataFrame({"user": range(1_000_000 * seed, 1_000_000 * seed + count), "step": 0}).with_columns(
        taste=pl.Series(generator.random(count)), age=pl.Series(generator.normal(40, 9, count))
    )


@pytest.mark.usefixtures("small_models")
def test_a_new_coupon_next_week(tmp_path: Path) -> None:
    toml = next(block.content for block in blocks(GUIDE) if "[[new]]" in block.content)
    (tmp_path / "next-week.toml").write_text(toml)
    fit, allocate = [line.split() for block in blocks(GUIDE) for line in lines(block)][1:3]
    pl.DataFrame({"action": LABELS, "amount": FACES}).write_csv(tmp_path / "items.csv")
    before = users(8_000, 1)
    action = draw(np.full((8_000, 3), 1 / 3), np.random.default_rng(3).random(8_000))
    drawn = before.with_columns(action=pl.Series(LABELS).gather(action), propensity=pl.lit(1 / 3))
    drawn.with_columns(*outcomes(before["taste"].to_numpy(), action, 1)).write_parquet(tmp_path / "log.parquet")
    week = users(20_000, 2)
    week.write_parquet(tmp_path / "users.parquet")
    for line in (fit, allocate):
        done = run_here(*(word if word != "4" else "1.5" for word in line[1:]), folder=tmp_path)
        assert done.returncode == 0, (line, done.stderr)
    plan = Plan.load(tmp_path / "plan")
    # One step: the share times the face value.
    assert plan.certificate.budgets[0].set_aside == pytest.approx(SHARE * 15)
    assert plan.certificate.cost.upper <= 1.5 - SHARE * 15

    given = pl.read_parquet(tmp_path / "decisions.parquet")
    action = np.array([LABELS.index(label) for label in given["action"]])
    log = week.join(given.select("user", "action", "propensity"), on="user", maintain_order="left")
    log = log.with_columns(*outcomes(week["taste"].to_numpy(), action, 2))
    log.write_parquet(tmp_path / "log.parquet")
    assert log["cost"].mean() < 1.5
    assert (log["action"] == LABELS[-1]).mean() == pytest.approx(SHARE, abs=0.0022)  # three standard errors

    done = run_here(*(word if word != "4" else "1.5" for word in fit[1:]), folder=tmp_path)
    assert done.returncode in (0, 3, 4), done.stderr
    again = Plan.load(tmp_path / "plan")
    assert again.catalogue.labels == LABELS
    assert not again.policy.new, "an action like any other"
    effect = next(one for one in again.record.audit.actions if one.label == LABELS[-1])
    truth = 0.02 * 15 * (0.5 + 0.5)
    # Propensities say how often it was given, and so what it earns: about two hundred users redeem it with 0.3.
    assert effect.reward.estimate == pytest.approx(truth, abs=3 * effect.reward.standard_error)
    assert effect.reward.standard_error < 0.05
