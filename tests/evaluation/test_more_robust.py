"""More robust doubly robust: unbiased, never much worse than what it is between, and its scales by least squares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope import UsageError
from redenvelope import randomness as chance
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.doubly_robust import MoreRobust, doubly_robust
from redenvelope.evaluation.evaluate import evaluate, evaluate_partitions
from redenvelope.evaluation.importance_sampling import per_decision

from .conftest import FloatArray, World


def more_robust(data: OffPolicyData) -> FloatArray:
    """[outcomes, prices]."""
    return evaluate(data, "more_robust").value


def by_least_squares(data: OffPolicyData, discount: float, fold: np.ndarray) -> FloatArray:
    """What each user adds, [outcomes, users, prices], all users at once: the columns of each step regressed, on the
    users of other folds [users], by a solver that never forms products."""
    values, action_values = data.baseline()
    plain = per_decision(data, discount).plain
    columns = np.zeros((len(plain), data.users, data.steps, data.prices))
    weight = np.ones((data.users, data.prices))
    for position, (users, rows) in enumerate(data.positions):
        before = weight[users].copy()
        weight[users] *= data.ratio[rows]
        change = before * values[:, rows] - weight[users] * action_values[:, rows]
        columns[:, users, position] = change * discount**position
    result = plain.copy()
    for number in np.unique(fold):
        inside, outside = fold == number, fold != number
        for outcome in range(len(plain)):
            for price in range(data.prices):
                known, wanted = columns[outcome, outside, :, price], plain[outcome, outside, price]
                centred = known - known.mean(axis=0)
                scale = np.linalg.lstsq(centred, wanted - wanted.mean(), rcond=1e-10)[0]
                result[outcome, inside, price] -= columns[outcome, inside, :, price] @ scale
    return result


@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("name", ["world", "leaving_world"])
def test_scales_by_least_squares(name: str, discount: float, request: pytest.FixtureRequest) -> None:
    data = request.getfixturevalue(name).draw(300, seed=1).data(0.4)
    expected = by_least_squares(data, discount, chance.fold(data.keys, 4, "cross-fit", 3))
    estimator = MoreRobust(folds=4, seed=3)
    found = evaluate_partitions(list(data.batches(77)), [estimator], discount)["more_robust"]
    np.testing.assert_allclose(found.influence(), expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.value, expected.mean(axis=1), rtol=1e-9)


def test_columns_that_say_nothing_new(leaving_world: World) -> None:
    """A baseline of the first step alone, large numbers, and one that is nothing at all: least squares all the same."""
    data = leaving_world.draw(200, seed=2).data(0.4)
    values, action_values = (1e3 * table for table in data.baseline())
    later = np.concatenate([rows for _, rows in data.positions[1:]])
    values[:, later] = action_values[:, later] = 0.0
    values[1] = action_values[1] = 0.0
    poor = replace(data, values=values, action_values=action_values)
    expected = by_least_squares(poor, 1.0, chance.fold(data.keys, 5, "cross-fit", 0))
    found = evaluate(poor, "more_robust").influence()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_array_equal(found[1], per_decision(poor).plain[1])


def test_more_robust_is_unbiased_and_never_much_worse_than_either(leaving_world: World) -> None:
    logs = [leaving_world.draw(200, seed=seed).data(0.6) for seed in range(200)]
    values = np.array([more_robust(log) for log in logs])
    spread = values.std(axis=0, ddof=1)
    assert (np.abs(values.mean(axis=0) - leaving_world.truth) < 4 * spread / np.sqrt(len(logs))).all()
    others = [
        np.std([function(log).moments.value for log in logs], axis=0) for function in (doubly_robust, per_decision)
    ]
    # Five coefficients from 160 users cost 3 %; the spread itself is known to 5 %.
    assert (spread < 1.1 * np.minimum(*others)).all()


def test_more_robust_throws_a_senseless_baseline_away(leaving_world: World) -> None:
    logs = [leaving_world.draw(200, seed=seed).data(1.0) for seed in range(100)]
    spreads = [
        np.std([more_robust(log)[0] for log in logs], axis=0),
        np.std([doubly_robust(log).moments.value[0] for log in logs], axis=0),
    ]
    assert (spreads[0] < 0.9 * spreads[1]).all()


def test_more_robust_errors_match_the_spread(leaving_world: World) -> None:
    results = [evaluate(leaving_world.draw(300, seed=seed).data(0.5), "more_robust") for seed in range(200)]
    claimed = np.sqrt(np.mean([result.standard_error**2 for result in results], axis=0))
    spread = np.std([result.value for result in results], axis=0, ddof=1)
    np.testing.assert_allclose(claimed / spread, 1.0, atol=0.2)


def test_folds_must_fit(leaving_world: World) -> None:
    with pytest.raises(UsageError, match="at least 5 users"):
        evaluate(leaving_world.draw(3, seed=0).data(0.0), "more_robust")
    with pytest.raises(UsageError, match="at least 2 folds"):
        evaluate(leaving_world.draw(30, seed=0).data(0.0), MoreRobust(folds=1))


def test_all_users_in_one_fold(leaving_world: World) -> None:
    """Nobody else to learn from: importance sampling is all there is."""
    data = leaving_world.draw(5, seed=0).data(0.5)
    seed = next(seed for seed in range(10**5) if np.ptp(chance.fold(data.keys, 5, "cross-fit", seed)) == 0)
    found = evaluate(data, MoreRobust(seed=seed))
    np.testing.assert_array_equal(found.influence(), per_decision(data).plain)
