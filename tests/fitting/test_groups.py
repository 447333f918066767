"""Groups in words, against allocations whose groups are known."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from redenvelope import Log, Plan, log_from_frame
from redenvelope.fitting.explain import all_bins, grouped_steps
from redenvelope.fitting.holdout import DecidedRows
from redenvelope.plan.record import StepGroups
from tests.two_step_plan import campaign, log, plan, stages

__all__ = ["campaign", "log", "plan", "stages"]

USERS = 600


@pytest.fixture(scope="module")
def shop() -> Log:
    draw = np.random.default_rng(5)
    frame = pl.DataFrame(
        {
            "user": range(USERS),
            "step": 0,
            "action": draw.integers(0, 2, USERS),
            "propensity": 0.5,
            "reward": draw.random(USERS),
            "cost": draw.random(USERS),
            "city": draw.choice(["cedar", "oak", "pine", "elm", "ash"], USERS),
            "active": draw.random(USERS) < 0.5,
            "visits": draw.poisson(2.0, USERS),
            "first_day": draw.integers(19_700, 19_830, USERS).astype(float) + 0.5,
            "noise": draw.normal(size=USERS),
        }
    )
    return log_from_frame(frame)


def column(log: Log, name: str) -> np.ndarray:
    features = log.features
    if name in features.numeric_names:
        return np.asarray(features.numeric[:, features.numeric_names.index(name)])
    place = features.category_names.index(name)
    return np.array(features.labels[place])[features.codes[:, place]]


def told(log: Log, coupon: np.ndarray) -> StepGroups:
    """The groups of the only step, where coupons are given with these probabilities [rows]."""
    decided = DecidedRows(log, np.stack([1 - coupon, coupon], axis=1), coupon)
    (step,) = grouped_steps(decided, list(all_bins(log.features)))
    assert sorted(np.concatenate(step.rows).tolist()) == list(range(len(log)))
    return step.groups


def conditions(step: StepGroups) -> list[set[str]]:
    return [{f"{part.feature} {part.words}" for part in group.conditions} for group in step.groups]


def test_the_groups_that_decide_are_found_and_named(shop: Log) -> None:
    cedar, active = column(shop, "city") == "cedar", column(shop, "active") == 1
    found = told(shop, np.where(cedar & active, 0.9, 0.1))
    assert conditions(found)[0] == {"city is cedar", "active is yes"}
    assert found.explained == pytest.approx(1.0)
    first = found.groups[0]
    assert first.rows == int((cedar & active).sum())
    assert first.probabilities == pytest.approx((0.1, 0.9))
    others = {frozenset(words) for words in conditions(found)[1:]}
    assert others == {frozenset({"city is cedar", "active is no"}), frozenset({"city is not cedar"})}


def test_counts_are_named_by_what_they_can_be(shop: Log) -> None:
    visits = column(shop, "visits")
    labels = next(part.labels for part in all_bins(shop.features) if part.feature == "visits")
    assert labels == ["0", "1", "2", "3", "4 or more", "(missing)"]
    assert conditions(told(shop, (visits >= 3) * 0.8)) == [{"visits is 3 or more"}, {"visits is at most 2"}]
    assert {"active is yes"} in conditions(told(shop, column(shop, "active") * 0.5))


def test_large_numbers_have_no_exponents(shop: Log) -> None:
    days = column(shop, "first_day")
    labels = next(part.labels for part in all_bins(shop.features) if part.feature == "first_day")
    assert not any("e+" in label for label in labels)
    assert len(set(labels)) == len(labels) == 6
    (after, _) = conditions(told(shop, (days > np.quantile(days, 0.6)) * 0.5))
    assert after == {f"first_day is {labels[3].partition(' to ')[0].join(('over ', ''))}"}


def test_what_is_the_same_for_all_is_one_group_and_noise_is_none(shop: Log) -> None:
    same = told(shop, np.full(USERS, 0.3))
    assert conditions(same) == [set()]
    assert same.explained == 0
    chance = np.random.default_rng(1).random(USERS)
    assert len(told(shop, chance).groups) <= 3, "five groups of noise would be invented"


def test_missing_values_go_where_they_belong() -> None:
    draw = np.random.default_rng(2)
    age = [None if user % 4 == 0 else float(draw.integers(20, 60)) for user in range(USERS)]
    frame = pl.DataFrame(
        {"user": range(USERS), "step": 0, "action": draw.integers(0, 2, USERS), "propensity": 0.5}
        | {"reward": draw.random(USERS), "cost": draw.random(USERS), "age": age}
    )
    log = log_from_frame(frame)
    found = told(log, np.isnan(column(log, "age")) * 0.7)
    assert conditions(found) == [{"age is missing"}, {"age is known"}]


def test_examples_say_what_the_plan_goes_by(plan: Plan) -> None:
    shares = plan.record.shares
    assert shares is not None
    assert shares.groups[0].step == 0
    assert shares.examples
    for example in shares.examples:
        assert [part.action for part in example.alternatives] == list(plan.catalogue.labels)
        assert sum(part.probability for part in example.alternatives) == pytest.approx(1.0, abs=1e-5)
        best = max(example.alternatives, key=lambda part: part.worth)
        assert best.probability == max(part.probability for part in example.alternatives)
        price = plan.policy.pricing.prices[int(np.argmax(plan.policy.pricing.shares))][0]
        # Worth is reward less priced cost, and what entropy adds later: little at the plan's temperature.
        slack = 2 * plan.policy.specification.temperature * np.log(len(plan.catalogue))
        for part in example.alternatives:
            assert 0 <= part.worth - (part.reward - price * part.cost) + 1e-4 <= slack + 2e-4
