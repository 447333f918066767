"""One hash for every fold, sample and draw: uniform, named by stream, the same everywhere."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from redenvelope.errors import UsageError
from redenvelope.policies.pricing import Pricing
from redenvelope.randomness import draw, fold, fraction, user_key, user_keys
from redenvelope.serialization import from_plain, to_plain


def test_integer_and_text_ids_agree_at_the_edges() -> None:
    ids = [0, 7, -7, 2**63 - 1, -(2**63), 10**18]
    numbers, texts = pl.Series(ids, dtype=pl.Int64), pl.Series([str(user) for user in ids])
    np.testing.assert_array_equal(user_keys(numbers), user_keys(texts))
    assert [user_key(user) for user in ids] == user_keys(numbers).tolist()
    assert user_key("007") != user_key("7")


def test_keys_of_text_have_all_64_bits() -> None:
    keys = user_keys(pl.Series([f"user-{number}" for number in range(200_000)]))
    # 200,000 keys of 32 bits would share a key in about five pairs.
    assert len(np.unique(keys)) == len(keys)
    bits = (keys[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    # 4.5 standard deviations of a share of 200,000 fair coins, in each of 64 places.
    np.testing.assert_allclose(bits.mean(axis=0), 0.5, atol=4.5 * 0.5 / np.sqrt(len(keys)))


@pytest.mark.parametrize("ids", [pl.Series(range(200_000)), pl.Series(range(200_000)).cast(pl.String) + "x"])
def test_fractions_are_uniform_and_streams_seeds_and_steps_independent(ids: pl.Series) -> None:
    first = fraction(user_keys(ids), "fold", 0)
    assert first.min() >= 0
    assert first.max() < 1
    # 4.5 standard deviations of a binomial share, and of the correlation of independent numbers.
    tolerance = 4.5 * np.sqrt(0.1 * 0.9 / len(ids))
    np.testing.assert_allclose(np.histogram(first, 10, (0, 1))[0] / len(ids), 0.1, atol=tolerance)
    others = [
        fraction(user_keys(ids), "fold", 1),
        fraction(user_keys(ids), "summary", 0),
        fraction(user_keys(ids), "fold", 0, step=1),
        np.roll(first, 1),
    ]
    for other in others:
        assert abs(np.corrcoef(first, other)[0, 1]) < 4.5 / np.sqrt(len(ids))
    # Another seed, stream or step is another draw, not another order of users.
    assert not any(np.intersect1d(first, other).size for other in others[:3])


def test_a_number_depends_on_the_user_and_its_own_step_alone() -> None:
    keys, steps = user_keys(pl.Series(range(1_000))), np.arange(1_000) % 5
    whole = fraction(keys, "action", 3, steps)
    np.testing.assert_array_equal(fraction(keys[400:500], "action", 3, steps[400:500]), whole[400:500])
    np.testing.assert_array_equal(whole[steps == 2], fraction(keys[steps == 2], "action", 3, 2))


def test_folds_are_about_equally_large() -> None:
    found = np.bincount(fold(user_keys(pl.Series(range(50_000))), 5, "cross-fit", 0), minlength=5)
    # 4.5 standard deviations of a binomial count.
    np.testing.assert_allclose(found, 10_000, atol=4.5 * np.sqrt(50_000 * 0.2 * 0.8))


def test_actions_are_drawn_with_their_probabilities() -> None:
    keys = user_keys(pl.Series(range(100_000)))
    probabilities = np.array([0.0, 0.25, 0.7, 0.05, 0.0])
    drawn = draw(np.tile(probabilities, (len(keys), 1)), fraction(keys, "action", 0))
    shares = np.bincount(drawn, minlength=5) / len(keys)
    # 4.5 standard deviations of a share; an action of probability 0 is never drawn.
    np.testing.assert_allclose(shares, probabilities, atol=4.5 * np.sqrt(0.25 / len(keys)))
    assert shares[0] == shares[4] == 0
    assert draw([[0.5, 0.5]], [1 - 2**-53]).tolist() == [1]
    assert draw(np.full((2, 3, 4), 0.25), np.zeros((2, 3))).shape == (2, 3)


PRICING = Pricing(((0.1,), (0.5,), (np.inf,)), (0.2, 0.7, 0.1))


@pytest.mark.parametrize("ids", [pl.Series(range(50_000)), pl.Series([f"user-{number}" for number in range(50_000)])])
def test_users_follow_prices_by_their_shares_and_keep_them(ids: pl.Series) -> None:
    keys = user_keys(ids)
    drawn = PRICING.drawn(keys, seed=1)
    # 4.5 standard deviations of a share of 50,000 users.
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 50_000, PRICING.shares, atol=4.5 * 0.5 / 223)
    np.testing.assert_array_equal(PRICING.drawn(keys[400:500], seed=1), drawn[400:500])
    assert (PRICING.drawn(keys, seed=2) != drawn).any()
    assert (Pricing(((0.1,), (0.5,)), (0.0, 1.0)).drawn(keys, seed=0) == 1).all()


def test_a_pricing_survives_json_and_mixes_values() -> None:
    assert from_plain(Pricing, to_plain(PRICING), "the pricing") == PRICING
    np.testing.assert_allclose(PRICING.mix(np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])), [1.9, 19.0])
    assert Pricing.at(2.0, 3.0).prices == ((2.0, 3.0),)


@pytest.mark.parametrize("shares", [(0.5, 0.6), (1.5, -0.5), (1.0,), (float("nan"), 1.0)])
def test_shares_that_are_none_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(UsageError):
        Pricing(((0.1,), (0.5,)), shares)


def test_one_row_is_drawn_as_in_a_table() -> None:
    """The way of one row is another, and its sums must be the same to the last bit: on edges too."""
    generator = np.random.default_rng(4)
    shares = generator.dirichlet(np.full(5, 0.3), 500)
    shares[::7, 2] = 0.0
    edges = np.cumsum(shares, axis=1)
    uniforms = np.where(generator.uniform(size=500) < 0.5, edges[:, 1] / edges[:, -1], generator.uniform(size=500))
    alone = [draw(shares[[row]], uniforms[[row]])[0] for row in range(500)]
    assert np.array_equal(alone, draw(shares, uniforms))
