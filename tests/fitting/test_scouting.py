import numpy as np
import pytest

from redenvelope.fitting.scouting import grid_of_duals, horizon_for, some_users, temperature_for
from redenvelope.log.log import Log
from redenvelope.plan.plan import Plan


@pytest.mark.parametrize(
    ("actions", "steps", "horizon"), [(6, 5, 3), (5, 6, 4), (10, 9, 3), (2, 4, 4), (200, 5, 1), (3, 1, 1)]
)
def test_the_horizon_keeps_the_deepest_level_small(actions: int, steps: int, horizon: int) -> None:
    assert horizon_for(actions, steps) == horizon
    assert actions ** (horizon - 1) <= 128


def test_the_same_users_are_taken_whatever_else_is_in_the_log(log: Log) -> None:
    some = some_users(log, 100)
    assert len(some.users) == 100
    assert some_users(some, 100) is some
    half = log.select(log.users.is_in(some.users.to_list()).to_numpy() | (np.arange(len(log.users)) % 2 == 0))
    assert some_users(half, 100).users.to_list() == some.users.to_list()


def test_the_grid_spans_all_prices_in_one_block(plan: Plan, log: Log) -> None:
    duals = grid_of_duals(plan.policy, log)
    assert duals[0] == 0
    assert np.isinf(duals[-1])
    assert (np.diff(duals[:-1]) > 0).all()
    assert 32 <= len(duals) <= 65


def test_the_temperature_is_far_below_the_differences_it_must_respect(plan: Plan, log: Log) -> None:
    temperature = temperature_for(plan.policy, log)
    # Actions of the two-step problem differ by half a unit of penalised reward.
    assert 0 < temperature < 0.1
