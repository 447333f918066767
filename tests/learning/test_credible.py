"""Regressions that speak only when there is something to say."""

from __future__ import annotations

import numpy as np

from redenvelope.learning.late_effects import credible_means

ROWS, LEADING, WIDTH, SERIES = 4_000, 3, 8, 4


def rows(seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    generator = np.random.default_rng(seed)
    columns = generator.standard_normal((ROWS, WIDTH)).astype(np.float32)
    columns[:, 0] = 1.0
    return columns, generator.integers(2, size=ROWS), generator


# Nothing is there: three standard errors are exceeded by chance in one of 740 cases, here less often, because
# a regression on noise raises the error of rows that it has not seen.
def test_noise_is_never_told_of() -> None:
    told = 0
    for seed in range(40):
        columns, half, generator = rows(seed)
        values = generator.standard_normal((ROWS, 2, SERIES)).astype(np.float32)
        told += int(credible_means(columns, LEADING, values, half).confirmed.sum())
    assert told <= 1


# A coefficient is known to 1 / sqrt(2,000 rows of the other half) = 0.022; the penalty shrinks the columns behind
# the leading ones by a tenth, 0.05. A row's mean adds up eight of them.
def test_what_is_there_is_found_kind_by_kind_in_its_own_unit() -> None:
    columns, half, generator = rows(0)
    truth = np.zeros((WIDTH, SERIES))
    truth[[1, 5]] = 0.5
    values = np.zeros((ROWS, 2, SERIES), np.float32)
    units = np.array([1.0, 10.0, 0.01, 1.0])
    values[:, 0] = (columns @ truth + generator.standard_normal((ROWS, SERIES))) * units
    values[:, 1] = generator.standard_normal((ROWS, SERIES))
    found = credible_means(columns, LEADING, values, half)
    assert found.confirmed.tolist() == [True, False]
    means = found.means(columns, half)
    assert (means[:, 1] == 0).all()
    errors = (means[:, 0] / units - columns @ truth).std(axis=0)
    assert (errors < 0.15).all()


def test_means_of_a_row_do_not_depend_on_its_own_half() -> None:
    columns, half, generator = rows(0)
    values = (columns[:, 1, None, None] + generator.standard_normal((ROWS, 1, SERIES))).astype(np.float32)
    other = values.copy()
    other[half == 1] += columns[half == 1, 1, None, None]
    first, second = (credible_means(columns, LEADING, each, half).means(columns, half) for each in (values, other))
    scale = [np.abs(means[half == 1]).mean() for means in (first, second)]
    # Half of the rows now say twice as much, of which only the rows of the other half hear.
    assert np.isclose(scale[0], scale[1], rtol=0.02)
    assert np.abs(second[half == 0]).mean() > 1.8 * np.abs(first[half == 0]).mean()


def test_few_rows_and_still_series_say_nothing() -> None:
    columns, half, _ = rows(0)
    values = np.repeat(columns[:, 1, None, None], SERIES, axis=2)
    assert not credible_means(columns[:40], LEADING, values[:40], half[:40]).confirmed.any()
    still = np.ones_like(values)
    assert not credible_means(columns, LEADING, still, half).confirmed.any()
    assert not credible_means(columns, LEADING, values, np.zeros(ROWS, int)).confirmed.any()
