"""What goes with a draw: zero for what was known before, one for what is made of the outcome; cells and shares told."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.audit.leakage import beyond, share_told, shares_by_step, step_agreement
from redenvelope.audit.randomization import Lottery, lottery
from redenvelope.audit.statistics import Cells, category_cells, number_cells

ROWS, FOLDS = 4_000, 5


def draws(seed: int, effect: float, factor: float = 1.0) -> tuple[Lottery, np.ndarray, np.ndarray, np.random.Generator]:
    """A trait decides the odds of three actions and most of the outcome, to which the action adds; the propensity of
    the dearest action is noted with a factor."""
    generator = np.random.default_rng(seed)
    trait = generator.standard_normal(ROWS)
    weights = np.exp(0.5 * trait[:, None] * np.array([-1.0, 0.0, 1.0]))
    odds = weights / weights.sum(axis=1, keepdims=True)
    action = (generator.random(ROWS)[:, None] > odds.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    outcome = 2 * trait + effect * action + generator.standard_normal(ROWS)
    propensity = odds[np.arange(ROWS), action] * np.where(action == 2, factor, 1.0)
    step, fold = np.zeros(ROWS, dtype=np.int64), generator.integers(FOLDS, size=ROWS)
    return lottery(action, propensity, step, outcome[None], fold, FOLDS), trait, outcome, generator


def test_a_trait_goes_with_no_draw_and_a_copy_goes_as_the_outcome_does() -> None:
    of_trait, of_copy, z = [], [], []
    for seed in range(60):
        lots, trait, outcome, generator = draws(seed, effect=1.0)
        known = lots.moved(number_cells(trait.astype(np.float32)), 0)
        noisy = outcome + 2 * generator.standard_normal(ROWS)
        copy = lots.moved(number_cells(noisy.astype(np.float32)), 0)
        of_trait.append(known.share)
        of_copy.append((copy.share - 1) / copy.error)
        z.append(known.z)
    # Means of 60 draws, whose deviations are known: three standard errors.
    assert np.mean(of_trait) == pytest.approx(0.0, abs=3 * np.std(of_trait) / 60**0.5)
    assert np.mean(z) == pytest.approx(0.0, abs=3 / 60**0.5)
    assert np.std(z) == pytest.approx(1.0, abs=0.3)  # three standard errors of a deviation from 60
    assert np.abs(of_copy).max() < 4 and np.mean(of_copy) == pytest.approx(0.0, abs=0.6)


def test_an_effect_that_cannot_be_seen_gives_no_share() -> None:
    lots, trait, _, _ = draws(0, effect=0.0)
    moved = lots.moved(number_cells(trait.astype(np.float32)), 0)
    assert (moved.share, moved.error) == (0.0, np.inf)


def test_odds_off_the_logged_ones_have_the_size_they_are_off_by() -> None:
    generator = np.random.default_rng(1)
    rows = 40_000
    action = generator.integers(2, size=rows)
    fold, step = generator.integers(FOLDS, size=rows), np.zeros(rows, dtype=np.int64)
    lots = lottery(action, np.full(rows, 0.5), step, generator.random((1, rows)), fold, FOLDS)
    opened = Cells((generator.random(rows) < np.where(action == 1, 0.6, 0.2)).astype(np.int64), 2)
    size, z = lots.departure(opened)
    # P(open) is .4; given it, odds of the actions are .5 ± .25, without it .5 ± 1/6: off by .5 and 1/3.
    assert size == pytest.approx((0.4 * 0.5**2 + 0.6 / 9) ** 0.5, abs=0.02)
    assert z > 100
    size, z = lots.departure(Cells(generator.integers(10, size=rows), 10))
    assert size < 0.03 and abs(z) < 4


def test_a_propensity_that_is_off_for_all_alike_is_no_columns_fault() -> None:
    lots, trait, _, _ = draws(3, effect=1.0, factor=0.6)
    np.testing.assert_allclose(np.bincount(lots.action, weights=lots.weights), ROWS)
    assert abs(lots.departure(number_cells(trait.astype(np.float32)))[1]) < 4


def test_the_share_told_is_that_of_held_out_users() -> None:
    generator = np.random.default_rng(2)
    rows = 20_000
    label, fold = generator.integers(12, size=rows), generator.integers(FOLDS, size=rows)
    effects = generator.standard_normal(12)
    values = effects[label] - effects[label].mean() + generator.standard_normal(rows)
    truth = effects.var() / (effects.var() + 1)
    assert share_told(values, Cells(label.astype(np.int64), 12), fold, FOLDS) == pytest.approx(truth, abs=0.02)
    # Cells that mean nothing tell less than nothing: 2,000 of them are learned from eight rows each.
    nothing = Cells(generator.integers(2_000, size=rows), 2_000)
    assert -0.15 < share_told(values, nothing, fold, FOLDS) < 0
    assert beyond(0.8, 0.6) == pytest.approx(0.5)
    assert beyond(0.3, -0.2) == pytest.approx(0.3)


def test_steps_agree_where_a_trait_is_behind_them_and_cancel_given_their_sum() -> None:
    generator = np.random.default_rng(3)
    user = np.repeat(np.arange(5_000), 4)
    noise = generator.standard_normal(20_000)
    trait = np.repeat(generator.standard_normal(5_000), 4)
    assert step_agreement(noise, user) == pytest.approx(1.0, abs=0.06)
    assert step_agreement(trait + noise, user) == pytest.approx((16 + 4) / 8, abs=0.15)
    means = np.bincount(user, weights=noise) / 4
    assert step_agreement(noise - means[user], user) == pytest.approx(0.0, abs=1e-9)
    step, fold = np.tile(np.arange(4), 5_000), np.repeat(generator.integers(FOLDS, size=5_000), 4)
    third = number_cells(noise[step == 2].repeat(4).astype(np.float32))
    shares = shares_by_step(noise, third, step, 4, fold, FOLDS)
    assert shares[2] > 0.95  # 16 quantiles of a normal tell 98 %
    np.testing.assert_allclose(shares[[0, 1, 3]], 0.0, atol=0.01)


def test_cells_keep_values_apart_that_are_few_and_one_that_is_frequent() -> None:
    few = number_cells(np.array([3.0, np.nan, 1.0, 3.0, 2.0], dtype=np.float32))
    assert few.of_row[0] == few.of_row[3]
    assert len(set(few.of_row[[0, 1, 2, 4]])) == 4
    values = np.concatenate([np.zeros(700), np.linspace(-1, 1, 301)]).astype(np.float32)
    many = number_cells(values)
    zero = many.of_row[0]
    assert set(values[many.of_row == zero]) == {0.0}
    others = np.bincount(many.of_row)[np.unique(many.of_row[many.of_row != zero])]
    assert len(others) >= 14 and others.max() <= 40
    assert number_cells(np.full(3, np.nan, dtype=np.float32)).count == 1


def test_labels_beyond_the_most_frequent_share_a_cell() -> None:
    codes = np.concatenate([np.repeat(np.arange(10), 50), np.arange(10, 200), [-1]]).astype(np.int32)
    cells = category_cells(codes, 200)
    assert cells.of_row.max() < cells.count == 66
    assert len(set(cells.of_row[:500])) == 10
    assert cells.of_row[-1] not in cells.of_row[:-1]
    assert np.bincount(cells.of_row).max() == 200 - 64
