import jax.numpy as jnp
import numpy as np

from redenvelope.models.dataset import Rows
from redenvelope.models.networks import event_chances, event_count, logged_events
from redenvelope.models.targets import (
    BinaryReward,
    ConsumedCost,
    NumberCost,
    NumberReward,
    OutcomeTargets,
    RewardedCost,
)

NUMBER_COST = NumberCost(jnp.float32(0), jnp.float32(1))
AMOUNTS = jnp.asarray([0.0, 2.0])


def rows(reward: list[float], cost: list[float]) -> Rows:
    nothing = np.zeros((len(reward), 0), np.float32)
    zeros = np.zeros(len(reward), np.int32)
    return Rows(nothing, zeros, np.array([reward, cost], np.float32).T, nothing, zeros)


def test_the_targets_say_what_can_happen() -> None:
    assert event_count(OutcomeTargets(BinaryReward(), (RewardedCost(AMOUNTS),))) == 3
    assert event_count(OutcomeTargets(BinaryReward(), (ConsumedCost(AMOUNTS),))) == 2
    assert event_count(OutcomeTargets(NumberReward(jnp.float32(0), jnp.float32(1)), (NUMBER_COST,))) == 1


def test_the_first_cost_is_the_payment() -> None:
    first = OutcomeTargets(BinaryReward(), (RewardedCost(AMOUNTS), NUMBER_COST))
    second = OutcomeTargets(BinaryReward(), (NUMBER_COST, RewardedCost(AMOUNTS)))
    assert (event_count(first), event_count(second)) == (3, 2)


def test_rows_know_their_event() -> None:
    logged = rows([0, 1, 1], [0, 0, 2])
    np.testing.assert_array_equal(logged_events(logged, 3).argmax(axis=1), [0, 1, 2])
    np.testing.assert_array_equal(logged_events(logged, 2).argmax(axis=1), [0, 1, 1])
    np.testing.assert_array_equal(logged_events(logged, 1), np.ones((3, 1)))


def test_chances_follow_from_rewards_and_costs() -> None:
    outcomes = jnp.asarray([[[0.3], [0.5]], [[0.0], [0.4]]])  # of two actions, for one user
    paying, number = (OutcomeTargets(BinaryReward(), (cost,)) for cost in (RewardedCost(AMOUNTS), NUMBER_COST))
    three = np.stack(event_chances(outcomes, paying, 3), axis=-1)
    np.testing.assert_allclose(three[:, 0], [[0.7, 0.3, 0.0], [0.5, 0.3, 0.2]], atol=1e-6)
    two = np.stack(event_chances(outcomes, number, 2), axis=-1)
    np.testing.assert_allclose(two[:, 0], [[0.7, 0.3], [0.5, 0.5]], atol=1e-6)
    np.testing.assert_allclose(event_chances(outcomes, number, 1), [[[1.0], [1.0]]])
