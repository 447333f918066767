"""Weights over groups of items, against weights of items and the truth of a problem with many of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from redenvelope.evaluation.data import off_policy_data
from redenvelope.evaluation.evaluate import Evaluation, evaluate
from redenvelope.evaluation.item_groups import GroupedRows, behaviour_of, grouped, with_group_ratios
from redenvelope.log.log import Log
from redenvelope.log.read import log_from_frame
from redenvelope.randomness import draw

ITEMS, USERS, TASTES = 120, 3_000, 4

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Visits:
    """Users of a shop, as rows of its log."""

    log: Log
    likely: Array
    """Probability of each item in the log, [users, items], items in the order of the log's catalogue."""
    policy: Array
    """[users, items]"""
    believed: Array
    """Reward and cost, [2, users, items]."""
    truth: Array
    """Reward and cost of the policy for these users."""


@dataclass(frozen=True, eq=False)
class Shop:
    """One step: users with tastes each get one of many items. What a policy believes of items is wrong by item and by
    taste, and it gives everybody what it believes to be best."""

    states_matter: bool = False
    """Whether the behaviour policy looks at tastes."""

    def visits(self, seed: int, users: int = USERS) -> Visits:
        """New users."""
        fixed, generator = np.random.default_rng(5), np.random.default_rng([7, seed])
        tastes = generator.normal(0, 1, (users, TASTES))
        amount = np.r_[0.0, fixed.uniform(0.5, 6, ITEMS - 1)]
        wanted = 0.9 * np.log1p(amount) - 2.2 + tastes @ fixed.normal(0, 0.7, (TASTES, ITEMS))
        wrong = fixed.normal(0, 0.8, ITEMS) + tastes @ fixed.normal(0, 0.05, (TASTES, ITEMS))
        true, thought = (1 / (1 + np.exp(-logit)) for logit in (wanted, wanted + wrong))
        best = np.eye(ITEMS)[(thought * (1 - 0.15 * amount)).argmax(axis=1)]
        policy = 0.95 * best + 0.05 / ITEMS
        bent = tastes @ fixed.normal(0, 0.5, (TASTES, ITEMS)) if self.states_matter else 0
        likely = np.exp(np.broadcast_to(-amount / 6 + bent, true.shape))
        likely /= likely.sum(axis=1, keepdims=True)
        action = draw(likely, generator.random(users))
        redeemed = generator.random(users) < true[np.arange(users), action]
        log = log_from_frame(
            pl.DataFrame(
                {
                    "user": np.arange(users),
                    "step": 0,
                    "action": action,
                    "propensity": likely[np.arange(users), action],
                    "reward": redeemed.astype(float),
                    "cost": np.where(redeemed, amount[action], 0.0),
                    **{f"taste {place}": own for place, own in enumerate(tastes.T)},
                }
            )
        )
        own = np.array([int(str(user)) for user in log.users])
        place = [int(label) for label in log.catalogue.labels]
        truth = (policy * np.stack([true, true * amount])).sum(axis=2).mean(axis=1)
        believed = np.stack([thought, thought * amount])[:, own][..., place]
        return Visits(log, likely[own][:, place], policy[own][:, place], believed, truth)


def rows_of(visits: Visits, likely: Array) -> GroupedRows:
    return GroupedRows.of(visits.log, visits.policy[:, None], likely, visits.believed, 1)


def both(visits: Visits) -> tuple[Evaluation, Evaluation]:
    """By items and over groups."""
    data = off_policy_data(visits.log, visits.policy[:, None], visits.believed[:, :, None])
    behaviour = behaviour_of(visits.log)
    assert behaviour is not None
    (found,) = with_group_ratios([data], [rows_of(visits, behaviour(visits.log))])
    return evaluate(found), evaluate(found.over_groups())


@pytest.mark.parametrize(("states_matter", "logs", "holding"), [(False, 40, 69), (True, 12, 18)])
def test_groups_know_the_truth_more_exactly_than_items(states_matter: bool, logs: int, holding: int) -> None:
    shops = [Shop(states_matter).visits(seed) for seed in range(logs)]
    items, groups = zip(*map(both, shops), strict=True)
    truth = np.array([visits.truth for visits in shops])
    errors = np.array([each.value[:, 0] for each in groups]) - truth
    stated = np.array([each.standard_error[:, 0] for each in groups])
    by_items = np.array([each.standard_error[:, 0] for each in items])
    assert (stated.mean(axis=0) < 0.75 * by_items.mean(axis=0)).all()
    # What users differ by within a group may add a bias, which has to stay small beside the error of one log; the mean
    # of 40 logs is known to 0.16 of that.
    assert (np.abs(errors.mean(axis=0)) < 0.5 * stated.mean(axis=0)).all()
    # So many of the bounds of reward and cost hold, unless one in a thousand times (binomial), if 95 % do.
    assert (errors <= 1.645 * stated).sum() >= holding
    beliefs = np.array([(each.policy * each.believed).sum(axis=2).mean(axis=1) for each in shops]) - truth
    assert np.abs(beliefs.mean(axis=0) / stated.mean(axis=0)).max() > 1.5  # the beliefs alone are wrong by far more


def test_weighted_users_get_each_item_as_often_as_under_the_policy() -> None:
    visits = Shop().visits(1)
    rows = rows_of(visits, visits.likely)
    factor = rows.planned / np.where(rows.weighted > 0, rows.weighted, 1)
    np.testing.assert_allclose((factor * rows.weighted)[0, 0], visits.policy.sum(axis=0), rtol=1e-4)
    groups = grouped(visits.likely, visits.believed)
    user = 3
    same = groups[user] == groups[user, visits.log.action[user]]
    expected = visits.policy[user, same].sum() / visits.likely[user, same].sum()
    np.testing.assert_allclose(rows.ratio[user, 0], expected, rtol=1e-5)


def test_groups_are_about_equally_likely_and_ordered_by_cost_and_reward() -> None:
    generator = np.random.default_rng(0)
    likely = np.full((1, 160), 1 / 160)
    outcomes = generator.uniform(0, 1, (2, 1, 160))
    groups = grouped(likely, outcomes)[0]
    assert np.bincount(groups, minlength=16).tolist() == [10] * 16
    for group in range(15):
        here, following = groups == group, groups == group + 1
        ordered = outcomes[0] if group % 4 < 3 else outcomes[1]
        assert ordered[0, here].max() < ordered[0, following].min()


def test_where_propensities_depend_on_the_step_alone_they_are_known_of_every_action() -> None:
    visits = Shop().visits(2)
    known = behaviour_of(visits.log)
    assert known is not None
    np.testing.assert_allclose(known(visits.log), visits.likely, rtol=1e-12)


def test_else_a_model_says_it_of_the_others_and_the_logged_one_is_as_logged() -> None:
    visits = Shop(states_matter=True).visits(2, users=6_000)
    log, known = visits.log, behaviour_of(visits.log)
    assert known is not None
    found = known(log)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-9)
    np.testing.assert_allclose(found[np.arange(len(log)), log.action], log.propensity)
    # A hundred rows of each action know its slopes to a tenth or so.
    assert np.corrcoef(found.ravel(), visits.likely.ravel())[0, 1] > 0.9


def test_lists_of_eligible_actions_leave_weights_to_items() -> None:
    frame = pl.DataFrame(
        {
            "user": [1, 2, 3, 4],
            "step": 0,
            "action": ["a", "b", "a", "b"],
            "propensity": 0.5,
            "reward": 0.0,
            "cost": [0.0, 1.0, 0.0, 1.0],
            "eligible": [["a", "b"]] * 4,
        }
    )
    assert behaviour_of(log_from_frame(frame)) is None
