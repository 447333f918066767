"""Numbers that depend on the user alone."""

from __future__ import annotations

import numpy as np

from redenvelope.planning.draws import uniform_numbers


def test_uniform_numbers_are_uniform_and_repeat():
    names = np.arange(200_000)
    numbers = uniform_numbers(5, names, 3)
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    # Chi-squared with 19 degrees of freedom: 99.9 % are below 43.8.
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 43.8
    np.testing.assert_array_equal(uniform_numbers(5, names[100:200], 3), numbers[100:200])
    other_step, other_seed = uniform_numbers(5, names, 2), uniform_numbers(6, names, 3)
    for other in (other_step, other_seed, np.roll(numbers, 1)):
        # A correlation of 200,000 independent pairs has standard deviation 0.0022.
        assert abs(np.corrcoef(numbers, other)[0, 1]) < 0.01
