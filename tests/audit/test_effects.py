import time

import numpy as np
import pytest

from redenvelope import log_from_frame
from redenvelope.audit.effects import MOST_REVERSALS, ActionEffect, Mean, counted_reversals, reversals
from redenvelope.audit.statistics import group_sums, squares_by_user
from tests.audit.campaigns import SKEWED_3, campaign, effects_of, log_of

REWARDS = [[0.0, 0.5, 1.0], [1.0, 1.5, 2.0]]
COSTS = [[0.1, 0.6, 1.1], [0.1, 0.6, 1.1]]


def test_weights_undo_a_logger_that_chose_by_state() -> None:
    # The logger sends the dear action to the users who earn more anyway: raw means are off by 0.3.
    log = log_of(campaign(REWARDS, COSTS, SKEWED_3), users=8_000)
    effects = effects_of(log)
    truth = np.array(REWARDS).mean(axis=0)  # both states are equally frequent at every step
    raw = [log.reward[log.action == action].mean() for action in range(3)]
    assert abs(raw[2] - truth[2]) > 0.25
    for effect, expected in zip(effects, truth, strict=True):
        # Four standard errors: one false alarm in 16,000 figures.
        assert abs(effect.reward.estimate - expected) < 4 * effect.reward.standard_error
        assert effect.reward.standard_error < 0.03


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    covered = []
    for seed in range(100):
        log = log_of(campaign(REWARDS, COSTS, SKEWED_3, follow=0.8), users=300, seed=seed)
        # State 1 is reached by sending the dear action, so rows of a user are correlated.
        cost = effects_of(log)[1].cost
        covered.append(cost.lower <= 0.6 <= cost.upper)
    # 95 % nominal; a binomial of 100 draws falls below 88 once in 400 times.
    assert np.mean(covered) >= 0.88


def test_the_standard_error_is_the_textbook_one_for_one_step() -> None:
    log = log_of(campaign(REWARDS, COSTS, steps=1), users=2_000)
    sums = group_sums(log.action, np.ones(len(log)), log.reward[None], 3)
    (means,) = sums.means
    squares = squares_by_user(log, log.action, np.ones(len(log)), (log.reward - means[log.action])[None], 3)
    (errors,) = sums.errors(squares)
    for action in range(3):
        mine = log.reward[log.action == action]
        assert means[action] == pytest.approx(mine.mean())
        assert errors[action] == pytest.approx(mine.std() / np.sqrt(len(mine)))


def _effect(label: str, cost: float, reward: float, error: float = 0.01) -> ActionEffect:
    return ActionEffect(label, 1000, Mean.of(reward, error), Mean.of(cost, error))


def test_a_dearer_action_that_earns_less_is_a_reversal() -> None:
    found = reversals((_effect("none", 0, 0.1), _effect("small", 1, 0.6), _effect("large", 2, 0.4)))
    assert [(pair.cheap.label, pair.dear.label) for pair in found] == [("small", "large")]


def test_differences_within_the_noise_are_no_reversal() -> None:
    assert not reversals((_effect("small", 1, 0.60), _effect("large", 2, 0.58)))
    assert not reversals((_effect("small", 1, 0.6), _effect("equal", 1.01, 0.4)))


def test_an_action_nobody_got_has_no_figures() -> None:
    frame = campaign(REWARDS, COSTS).log(500, 0)
    log = log_from_frame(frame)
    train = log.select(np.arange(len(log.users)) < 1)
    (means,) = group_sums(train.action, np.ones(len(train)), train.reward[None], 5).means
    assert np.isnan(means[4])


def test_of_a_thousand_actions_the_clearest_pairs_are_kept() -> None:
    """Half a million pairs would take minutes to tell, and more room than a plan has."""
    effects = tuple(
        ActionEffect(str(place), 10, Mean.of(-float(place), 0.1), Mean.of(float(place), 0.1)) for place in range(1_000)
    )
    start = time.perf_counter()
    found = reversals(effects)
    assert time.perf_counter() - start < 2
    assert (found[0].cheap.label, found[0].dear.label) == ("0", "999")
    assert len(found) == MOST_REVERSALS
    assert counted_reversals(found) == "many such pairs"
    assert counted_reversals(found[:1]) == "1 such pair"
