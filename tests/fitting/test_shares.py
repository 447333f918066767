"""Who gets what, against means taken by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from redenvelope import Log, log_from_frame
from redenvelope.fitting.explain import action_shares
from redenvelope.fitting.holdout import DecidedRows

USERS = 400


def campaign(seed: int = 3) -> Log:
    """Two steps for even users, one for odd ones; features of every kind."""
    draw = np.random.default_rng(seed)
    rows = []
    for user in range(USERS):
        member = {
            "group": "abc"[user % 3],
            "age": float(draw.integers(20, 60)) if user % 10 else None,
            "channel": None if user % 8 == 0 else ("app", "web")[user % 2],
            "lucky": float(draw.normal()),
            "mostly_nine": 9.0 if user % 20 else float(user),
        }
        for step in range(2 - user % 2):
            action = int(draw.integers(0, 2))
            rows.append(
                {"user": user, "step": step, "action": ("none", "coupon")[action], "propensity": 0.5}
                | {"reward": float(action), "cost": float(action)}
                | member
            )
    return log_from_frame(pl.DataFrame(rows, infer_schema_length=None))


@pytest.fixture(scope="module")
def log() -> Log:
    return campaign()


def given(log: Log, coupon: np.ndarray, costs: np.ndarray) -> DecidedRows:
    """Coupons with these probabilities [rows]."""
    return DecidedRows(log, np.stack([1 - coupon, coupon], axis=1), costs)


def by_group(log: Log) -> DecidedRows:
    """Coupons for group a with certainty, for b with 0.5, for c never; a coupon costs 2."""
    place = log.features.category_names.index("group")
    labels = np.array(log.features.labels[place])[log.features.codes[:, place]]
    coupon = np.select([labels == "a", labels == "b"], [1.0, 0.5], 0.0)
    return given(log, coupon, 2 * coupon)


def test_shares_and_costs_by_step_are_means(log: Log) -> None:
    allocation = by_group(log)
    first, second = action_shares(allocation).by_step
    assert (first.step, second.step) == (0, 1)
    assert (first.rows, second.rows) == (USERS, USERS // 2)
    assert second.probabilities == pytest.approx(allocation.probabilities[log.step == 1].mean(axis=0))
    assert first.logged[1] == pytest.approx(np.mean(log.action[log.step == 0] == 1))
    # Users who have left cost nothing more: the steps add up to what a user costs in all.
    assert first.cost + second.cost == pytest.approx(allocation.costs.sum() / USERS)


def test_the_feature_that_decides_comes_first_and_explains_all(log: Log) -> None:
    strongest = action_shares(by_group(log)).by_feature[0]
    assert strongest.feature == "group"
    assert strongest.strength == pytest.approx(1.0)
    assert {part.label: part.probabilities[1] for part in strongest.bins} == {"a": 1.0, "b": 0.5, "c": 0.0}
    assert {part.label: part.cost for part in strongest.bins} == {"a": 2.0, "b": 1.0, "c": 0.0}


def test_strength_is_the_explained_variance_less_that_of_chance(log: Log) -> None:
    noise = np.random.default_rng(0).random(len(log))
    allocation = by_group(log)
    coupon = 0.5 * allocation.probabilities[:, 1] + 0.5 * noise
    mixed = given(log, coupon, coupon)
    group = next(part for part in action_shares(mixed).by_feature if part.feature == "group")
    of_row = allocation.probabilities[:, 1]
    members = [coupon[of_row == value] for value in (0.0, 0.5, 1.0)]
    within = sum(((part - part.mean()) ** 2).sum() for part in members)
    total = ((coupon - coupon.mean()) ** 2).sum()
    by_chance = (len(members) - 1) * within / (len(coupon) - len(members))
    assert group.strength == pytest.approx((total - within - by_chance) / total)


def test_an_allocation_that_is_the_same_for_all_has_no_strong_feature(log: Log) -> None:
    same = given(log, np.full(len(log), 2 / 3), np.ones(len(log)))
    assert action_shares(same).by_feature == ()


def test_bins_hold_every_row_once_and_name_the_missing(log: Log) -> None:
    age = log.features.numeric[:, log.features.numeric_names.index("age")]
    coupon = np.where(np.isnan(age), 0.9, age / 100)
    found = action_shares(given(log, coupon, coupon)).by_feature
    bins = next(part.bins for part in found if part.feature == "age")
    assert sum(part.rows for part in bins) == len(log)
    assert [part.label for part in bins][-1] == "(missing)"
    assert bins[-1].rows == int(np.isnan(age).sum())
    shares = [part.probabilities[1] for part in bins[:-1]]
    assert shares == sorted(shares)


def test_missing_categories_are_apart(log: Log) -> None:
    codes = log.features.codes[:, log.features.category_names.index("channel")]
    coupon = (codes + 1) / 4
    strongest = action_shares(given(log, coupon, coupon)).by_feature[0]
    assert {part.label: part.cost for part in strongest.bins} == {"app": 0.25, "web": 0.5, "(missing)": 0.0}


def test_rare_labels_are_put_together() -> None:
    frame = pl.DataFrame(
        {
            "user": range(120),
            "step": 0,
            "action": [user % 2 for user in range(120)],
            "propensity": 0.5,
            "reward": 1.0,
            "cost": [float(user % 2) for user in range(120)],
            "city": [f"city {min(user % 16, 11):02d}" for user in range(120)],
        }
    )
    log = log_from_frame(frame)
    codes = log.features.codes[:, 0]
    coupon = codes / 12
    bins = action_shares(given(log, coupon, coupon)).by_feature[0].bins
    assert len(bins) == 9
    assert bins[-1].label == "(others)"
    assert sum(part.rows for part in bins) == 120
