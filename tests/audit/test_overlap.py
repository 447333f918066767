from dataclasses import replace

import numpy as np
import pytest

from redenvelope.audit.overlap import overlap_by_step, steps_alive
from tests.audit.campaigns import SKEWED_3, calibration_of, campaign, log_of, overlaps_of

REWARDS = [[0.0, 0.5, 1.0], [1.0, 1.5, 2.0]]
COSTS = [[0.1, 0.6, 1.1], [0.3, 0.8, 1.3]]


def test_effective_size_of_equal_and_of_lonely_weights() -> None:
    # Sum and squares of seven weights of 3, of weights 0, 5, 0, and of none but zeros.
    (overlap,) = overlap_by_step(np.array([[7, 7, 7 * 3.0, 7 * 9.0, 5.0, 25.0, 0.0, 0.0]]))
    assert overlap.uniform == pytest.approx(7)
    assert overlap.greedy == pytest.approx(1)
    assert overlap.alone == 0


def test_a_uniform_logger_speaks_fully_for_the_uniform_policy() -> None:
    log = log_of(campaign(REWARDS, COSTS), users=3_000)
    for overlap in overlaps_of(log, 1):
        assert overlap.uniform == pytest.approx(3_000)
        # All matching users have the same weight, 3 to the power of the step.
        assert overlap.greedy == pytest.approx(overlap.matching)
        expected = 3_000 / 3**overlap.step
        assert abs(overlap.matching - expected) < 4 * np.sqrt(expected)


def test_matching_users_are_counted_by_hand() -> None:
    log = log_of(campaign(REWARDS, COSTS, SKEWED_3), users=500)
    actions = log.action.reshape(500, 4)
    for overlap in overlaps_of(log, 0):
        assert overlap.matching == (actions[:, : overlap.step] == 0).all(axis=1).sum()


def test_weights_die_where_too_few_users_are_left() -> None:
    overlaps = overlaps_of(log_of(campaign(REWARDS, COSTS), users=3_000), 2)
    # 1,000, 333, 111 and 37 users match after 1, 2, 3 and 4 steps; 50 are needed of those who certify.
    assert [steps_alive(overlaps, share) for share in (1.0, 0.3, 0.1)] == [3, 2, 1]


def test_a_step_weighed_alone_keeps_its_share_of_users() -> None:
    # A third of the users got the action at each step, all with the same weight: 1,000 effective ones at every step.
    for overlap in overlaps_of(log_of(campaign(REWARDS, COSTS), users=3_000), 2):
        assert abs(overlap.alone - 1_000) < 4 * np.sqrt(3_000 * (1 / 3) * (2 / 3))


def test_right_propensities_add_up_and_wrong_ones_are_seen() -> None:
    log = log_of(campaign(REWARDS, COSTS, SKEWED_3), users=4_000)
    assert not any(entry.is_off for entry in calibration_of(log))
    wrong = replace(log, propensity=np.full(len(log), 1 / 3))
    entries = calibration_of(wrong)
    # The share of the middle action is 0.2 in both states: 0.2 · 3 = 0.6.
    assert entries[1].ratio == pytest.approx(0.6, abs=0.03)
    assert entries[1].is_off


def test_users_with_fewer_steps_are_not_counted_later() -> None:
    log = log_of(campaign(REWARDS, COSTS), users=400)
    ragged = log.select(np.arange(400) < 1)
    overlaps = overlaps_of(ragged, 0)
    assert [overlap.users for overlap in overlaps] == [1, 1, 1, 1]
