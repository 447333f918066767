"""How large a log, a table and their values may be, and why. What is beyond is refused in words, before memory or time
is spent on it."""

from __future__ import annotations

__all__ = ["LARGEST_AMOUNT", "LARGEST_STEP", "LEAST_PROPENSITY", "MOST_STEPS"]

LEAST_PROPENSITY = 1e-9
"""Of a logged action: a row with less would weigh more than a billion others, and products over a few steps leave what
32-bit numbers can hold."""

LARGEST_AMOUNT = 1e15
"""Of a reward or a cost, either way: squares of it, summed over all rows of a log, stay within 32-bit numbers, and
whole amounts are exact."""

LARGEST_STEP = 10**9
"""Of a step's number, either way: sums and differences of steps stay within 32 bits."""

MOST_STEPS = 10_000
"""Of a campaign, from the first step seen to the last: much is counted step by step."""
