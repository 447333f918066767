"""Direct, doubly robust and weighted doubly robust: definitions, both kinds of robustness, errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope import UsageError
from redenvelope.evaluation.doubly_robust import doubly_robust, weighted_doubly_robust
from redenvelope.evaluation.importance_sampling import direct, per_decision, self_normalised_per_decision

from .conftest import Drawn, FloatArray, World


def recursion(drawn: Drawn, price: int, discount: float) -> FloatArray:
    """Jiang and Li's recursion for the reward of each user: V + ρ (r + γ · what follows − Q)."""
    base = drawn.baseline(0.7)[0, :, price]
    result = np.zeros(drawn.users)
    for user in range(drawn.users):
        after = 0.0
        for row in reversed(range(drawn.starts[user], drawn.starts[user + 1])):
            share = drawn.probabilities[row, price]
            ratio = share[drawn.action[row]] / drawn.table[row, 4]
            surprise = drawn.table[row, 5] + discount * after - base[row, drawn.action[row]]
            after = share @ base[row] + ratio * surprise
        result[user] = after
    return result


@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("name", ["world", "leaving_world"])
def test_doubly_robust_is_the_recursion(name: str, discount: float, request: pytest.FixtureRequest) -> None:
    drawn = request.getfixturevalue(name).draw(50, seed=1)
    terms = doubly_robust(drawn.data(error=0.7), discount)
    for price in range(2):
        np.testing.assert_allclose(terms.plain[0, :, price], recursion(drawn, price, discount), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("error", [0.0, 0.7])
def test_right_propensities_and_any_baseline(error: float, paths: tuple[Drawn, FloatArray]) -> None:
    drawn, chances = paths
    data = drawn.data(error)
    plain = np.einsum("u,oup->op", chances, doubly_robust(data).plain)
    np.testing.assert_allclose(plain, drawn.world.truth, rtol=1e-11)
    weighted = weighted_doubly_robust(data)
    limit = np.einsum("u,oup->op", chances, weighted.plain) + np.einsum("u,osup->op", chances, weighted.numerators)
    np.testing.assert_allclose(limit, drawn.world.truth, rtol=1e-11)


def test_right_baseline_and_wrong_propensities(paths: tuple[Drawn, FloatArray]) -> None:
    """Importance sampling is far off with these propensities; doubly robust is not, to the last digits."""
    drawn, chances = paths
    wrong = 0.2 + 0.6 * np.abs(np.sin(drawn.step + 3 * drawn.state + 5 * drawn.action))
    data = drawn.data(0.0, propensity=wrong)
    plain = np.einsum("u,oup->op", chances, doubly_robust(data).plain)
    np.testing.assert_allclose(plain, drawn.world.truth, rtol=1e-11)
    weighted = weighted_doubly_robust(data)
    ratios = np.einsum("u,osup->osp", chances, weighted.numerators) / np.einsum("u,sup->sp", chances, weighted.weights)
    value = np.einsum("u,oup->op", chances, weighted.plain) + ratios.sum(axis=1)
    np.testing.assert_allclose(value, drawn.world.truth, rtol=1e-11)
    naive = np.einsum("u,oup->op", chances, per_decision(data).plain)
    assert (np.abs(naive / drawn.world.truth - 1) > 0.05).any()


def test_one_step_reading_of_a_sequence_is_biased(paths: tuple[Drawn, FloatArray]) -> None:
    """Each step weighed by its own ratio alone, as in the paper's appendix, misses where the policy leads."""
    drawn, chances = paths
    data = drawn.data(error=None)
    each = data.ratio[:, 0] * data.outcomes[0]
    totals = np.add.reduceat(each, data.starts[:-1])
    assert abs(chances @ totals - drawn.world.truth[0, 0]) > 0.02 * abs(drawn.world.truth[0, 0])


def test_direct_method(paths: tuple[Drawn, FloatArray]) -> None:
    drawn, chances = paths
    right = np.einsum("u,oup->op", chances, direct(drawn.data(0.0)).plain)
    np.testing.assert_allclose(right, drawn.world.truth, rtol=1e-11)
    wrong = np.einsum("u,oup->op", chances, direct(drawn.data(0.7)).plain)
    assert (np.abs(wrong / drawn.world.truth - 1) > 0.1).all()


def test_baseline_of_zero_is_importance_sampling(leaving_world: World) -> None:
    data = leaving_world.draw(100, seed=2).data(0.0)
    nothing = np.zeros_like(data.baseline()[0])
    flat = replace(data, values=nothing, action_values=nothing)
    np.testing.assert_allclose(doubly_robust(flat).plain, per_decision(flat).plain, rtol=1e-12)
    np.testing.assert_allclose(
        weighted_doubly_robust(flat).moments.value, self_normalised_per_decision(flat).moments.value, rtol=1e-12
    )


def test_a_good_baseline_lowers_the_error(leaving_world: World) -> None:
    data = leaving_world.draw(2_000, seed=3).data(0.0)
    with_baseline = doubly_robust(data).moments.standard_error
    assert (with_baseline < per_decision(data).moments.standard_error).all()


@pytest.mark.parametrize("function", [doubly_robust, weighted_doubly_robust])
@pytest.mark.parametrize("error", [0.0, 0.5])
def test_standard_errors_match_the_spread_over_logs(function, error: float, leaving_world: World) -> None:
    """300 logs know their spread to 4 %, more with heavy tails: 15 % is well beyond chance."""
    results = [function(leaving_world.draw(400, seed=seed).data(error)).moments for seed in range(300)]
    values = np.array([result.value for result in results])
    claimed = np.sqrt(np.mean([result.standard_error**2 for result in results], axis=0))
    np.testing.assert_allclose(claimed / values.std(axis=0, ddof=1), 1.0, atol=0.15)
    if function is doubly_robust:
        error_of_mean = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        assert (np.abs(values.mean(axis=0) - leaving_world.truth) < 4 * error_of_mean).all()


def test_a_baseline_is_asked_for(leaving_world: World) -> None:
    with pytest.raises(UsageError, match="needs a baseline"):
        doubly_robust(leaving_world.draw(5, seed=0).data(error=None))
