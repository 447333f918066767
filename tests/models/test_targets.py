import numpy as np
import pytest

from redenvelope import ModelError
from redenvelope.models import targets

ACTION = np.array([0, 1, 1, 2, 2, 2], dtype=np.int32)
REWARD = np.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0])


def test_zeros_and_ones_are_a_binary_reward() -> None:
    assert isinstance(targets.reward_target(REWARD), targets.BinaryReward)
    assert isinstance(targets.reward_target(REWARD * 2), targets.NumberReward)


def test_cost_paid_only_by_the_rewarded_hangs_on_the_reward() -> None:
    cost = np.array([0.0, 2.0, 0.0, 5.0, 0.0, 0.0])
    target = targets.cost_target(cost, REWARD, ACTION, 3)
    assert isinstance(target, targets.RewardedCost)
    np.testing.assert_allclose(target.amounts, [0, 2, 5])
    mean = target.mean(np.zeros((3, 1)), np.full((3, 1), 0.4))
    np.testing.assert_allclose(mean, [[0.0], [0.4], [1.0]], rtol=1e-6)  # 0.4 · ½ · amount


def test_cost_paid_without_a_reward_is_consumed_on_its_own() -> None:
    cost = np.array([0.0, 0.0, 2.0, 5.0, 0.0, 0.0])
    target = targets.cost_target(cost, REWARD, ACTION, 3)
    assert isinstance(target, targets.ConsumedCost)
    np.testing.assert_allclose(target.mean(np.zeros((3, 1)), np.ones((3, 1))), [[0.0], [1.0], [2.5]])


@pytest.mark.parametrize(
    "cost",
    [
        np.array([0.0, 2.0, 0.0, 5.0, 4.0, 0.0]),  # amounts of one action vary
        np.array([1.0, 2.0, 2.0, 5.0, 5.0, 5.0]),  # always paid
    ],
)
def test_any_other_cost_is_a_number(cost: np.ndarray) -> None:
    assert isinstance(targets.cost_target(cost, REWARD, ACTION, 3), targets.NumberCost)


def test_rows_that_cannot_consume_teach_nothing() -> None:
    target = targets.RewardedCost(np.array([0.0, 2.0]))
    loss = target.loss(
        score=np.zeros(4),
        action=np.array([0, 1, 1, 1]),
        cost=np.array([0.0, 0.0, 2.0, 0.0]),
        reward=np.array([1.0, 0.0, 1.0, 1.0]),
    )
    np.testing.assert_allclose(loss, [0, 0, np.log(2), np.log(2)], rtol=1e-6)


def test_starting_scores_give_the_observed_means() -> None:
    generator = np.random.default_rng(0)
    action = generator.integers(0, 2, 100_000).astype(np.int32)
    reward = (generator.random(100_000) < np.array([0.2, 0.6])[action]).astype(float)
    target = targets.reward_target(reward)
    scores = targets.starting_scores(target, reward, reward, action, 2)
    # Four standard errors of a share of 50,000 rows.
    np.testing.assert_allclose(target.mean(scores), [0.2, 0.6], atol=0.009)


def test_a_target_survives_json() -> None:
    for target in (
        targets.BinaryReward(),
        targets.reward_target(np.array([1.0, 3.5])),
        targets.RewardedCost(np.array([0.0, 2.0])),
    ):
        again = targets.new_target(targets.written_target(target), 2)
        assert type(again) is type(target)
        assert targets.written_target(again) == targets.written_target(target)


def test_a_reward_that_is_no_number_is_refused_in_words() -> None:
    with pytest.raises(ModelError, match="reward in row 1 is not a number"):
        targets.reward_target(np.array([0.5, np.nan]))
