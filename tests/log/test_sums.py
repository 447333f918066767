"""Sums of parts: equal to those of the whole, and to what textbooks say they are."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from redenvelope.log.schema.statistics import changes_within, exact_mean, exact_sums, number_sums
from redenvelope.log.schema.text import MOST_LABELS, label_sums, words_of
from redenvelope.merging import merged

SETTINGS = settings(derandomize=True, deadline=None, database=None, max_examples=100)


@SETTINGS
@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60),
    groups=st.integers(1, 4),
    cut=st.integers(0, 60),
)
def test_exact_sums_are_exact_in_any_order(values: list[float], groups: int, cut: int) -> None:
    numbers = np.array(values)
    group = np.arange(len(numbers), dtype=np.int32) % groups
    whole = exact_sums(numbers, group, groups)
    for number in range(groups):
        mine = [Fraction(value) for value in numbers[group == number]]
        assert Fraction(whole[number], 1 << 1200) == sum(mine, Fraction(0))
        if mine:
            assert exact_mean(whole[number], len(mine)) == float(sum(mine, Fraction(0)) / len(mine))
    parts = [exact_sums(numbers[part], group[part], groups) for part in (slice(cut, None), slice(None, cut))]
    assert tuple(map(sum, zip(*parts, strict=True))) == whole


def test_exact_sums_of_many_rows_do_not_round() -> None:
    rows = 300_000
    tenth = exact_sums(np.full(rows, 0.1), np.zeros(rows, np.int32), 1)
    assert exact_mean(tenth[0], rows) == 0.1
    assert np.cumsum(np.full(rows, 0.1))[-1] / rows != 0.1  # which rounding does


@SETTINGS
@given(
    values=arrays(np.float32, st.integers(1, 80), elements=st.floats(-1e6, 1e6, width=32) | st.just(float("nan"))),
    cut=st.integers(1, 79),
)
def test_moments_of_parts_are_those_of_the_whole(values: np.ndarray, cut: int) -> None:
    beside = np.random.default_rng(len(values)).normal(size=(2, len(values)))
    within = np.arange(len(values)) % 3 > 0
    slices = [part for part in (slice(None, cut), slice(cut, None)) if len(values[part])]
    sums = merged(number_sums(values[part], within[part], beside[:, part]) for part in slices)
    present = ~np.isnan(values)
    assert (sums.rows, sums.missing) == (len(values), int((~present).sum()))
    assert sums.moments.count == present.sum()
    if not present.any():
        return
    seen = values[present].astype(np.float64)
    size = np.abs(seen).max()
    assert (sums.low, sums.high) == (seen.min(), seen.max())
    assert sums.binary == np.isin(seen, (0, 1)).all()
    assert sums.moments.mean[0] == pytest.approx(seen.mean(), rel=1e-12, abs=1e-12 * size)
    # Deviations are known to some 1e-16 of the size of the values.
    deviations = seen - seen.mean()
    assert sums.moments.spread[0] == pytest.approx((deviations**2).sum(), rel=1e-11, abs=1e-13 * size**2)
    others = beside[:, present] - beside[:, present].mean(axis=1, keepdims=True)
    for variable in (1, 2):
        expected = (deviations * others[variable - 1]).sum()
        assert sums.moments.shared[variable] == pytest.approx(expected, rel=1e-9, abs=1e-11 * size)


def test_a_long_column_is_summed_in_blocks() -> None:
    chance = np.random.default_rng(0)
    values = chance.normal(1e4, 1, 200_000).astype(np.float32)
    values[::1000] = np.nan
    outcome = values.astype(np.float64) + chance.normal(size=len(values))
    sums = number_sums(values, np.ones(len(values), bool), np.nan_to_num(outcome)[None])
    seen = ~np.isnan(values)
    assert sums.missing == 200
    assert sums.moments.mean[0] == pytest.approx(values[seen].mean(dtype=np.float64), rel=1e-14)
    assert sums.moments.spread[0] == pytest.approx(values[seen].var(dtype=np.float64) * seen.sum(), rel=1e-11)
    expected = np.corrcoef(values[seen].astype(np.float64), outcome[seen])[0, 1]
    assert sums.moments.correlation(1) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(
    ("values", "changes"),
    [
        ([1, 1, 2, 2], False),
        ([1, 2, 2, 2], True),
        ([np.nan, np.nan, 2, 2], False),
        ([np.nan, 1, 2, 2], True),
        ([1, 1, 2, np.nan], True),
    ],
)
def test_changes_are_looked_for_within_users_only(values: list[float], changes: bool) -> None:
    within = np.array([False, True, False, True])  # two users of two rows
    assert changes_within(np.array(values, dtype=np.float32), within) == changes


def test_more_labels_than_a_category_has_are_only_counted() -> None:
    rows = 2 * MOST_LABELS - 100
    text = pl.Series([f"label {number}" for number in range(rows)])

    def sums(part: slice) -> object:
        words = words_of(text[part], text[part])
        user = np.arange(len(words.codes))
        return label_sums(words, user, np.zeros(len(user), bool))

    # The two halves share a hundred labels, and neither is too many by itself.
    both = sums(slice(0, MOST_LABELS)).merge(sums(slice(MOST_LABELS - 100, rows)))
    assert both.distinct == rows
    assert both.labels == ()
    assert both.merge(sums(slice(0, 50))).distinct == rows
