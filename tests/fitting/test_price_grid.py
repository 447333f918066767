import numpy as np
import pytest

from redenvelope.fitting.encoded import EncodedLog, encode
from redenvelope.fitting.price_grid import grid_of_prices, temperature_for
from redenvelope.fitting.settings import FitSettings, SearchSettings
from redenvelope.log.log import Log
from redenvelope.plan.plan import Plan
from redenvelope.planning.tree import MODERATE_TREE, fit_depth

SETTINGS = SearchSettings()


@pytest.fixture(scope="module")
def encoded(plan: Plan, log: Log) -> EncodedLog:
    return encode(log, plan.policy.encoder, plan.policy.specification.steps)


@pytest.mark.parametrize(
    ("actions", "steps", "horizon"), [(6, 5, 3), (5, 6, 4), (10, 9, 3), (2, 4, 4), (200, 5, 1), (3, 1, 1)]
)
def test_the_horizon_keeps_the_deepest_level_small(actions: int, steps: int, horizon: int) -> None:
    assert fit_depth(actions, steps, MODERATE_TREE) == horizon
    assert actions ** (horizon - 1) <= 128


def test_the_same_users_are_taken_whatever_else_is_in_the_log(encoded: EncodedLog) -> None:
    some = encoded.pilot_users(100, 0)
    assert len(some.log.users) == 100
    assert some.pilot_users(100, 0) is some
    users = encoded.log.users
    half = encoded.select(users.is_in(some.log.users.to_list()).to_numpy() | (np.arange(len(users)) % 2 == 0))
    assert half.pilot_users(100, 0).log.users.to_list() == some.log.users.to_list()


def test_states_stay_with_their_rows(plan: Plan, encoded: EncodedLog) -> None:
    some = encoded.pilot_users(100, 0)
    np.testing.assert_array_equal(some.states, plan.policy.encoder.encode(some.log))
    batches = list(encoded.batches())
    assert len(batches) > 1
    np.testing.assert_array_equal(np.concatenate([batch.states for batch in batches]), encoded.states)


def test_the_grid_spans_all_prices_in_one_block(plan: Plan, encoded: EncodedLog) -> None:
    prices = grid_of_prices(plan.policy, encoded.pilot_users(500, 0), SETTINGS, 32)
    assert prices[0] == 0
    assert np.isinf(prices[-1])
    assert (np.diff(prices[:-1]) > 0).all()
    assert 16 <= len(prices) <= 32


def test_the_temperature_is_far_below_the_differences_it_must_respect(plan: Plan, encoded: EncodedLog) -> None:
    temperature = temperature_for(plan.policy, encoded.pilot_users(500, 0), FitSettings())
    # Actions of the two-step problem differ by half a unit of penalised reward.
    assert 0 < temperature < 0.1
