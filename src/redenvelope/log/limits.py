"""How large a log, a table and their values may be, and why. What is beyond is refused in words, before memory or time
is spent on it."""

from __future__ import annotations

__all__ = ["LARGEST_STEP", "MOST_STEPS"]

LARGEST_STEP = 10**9
"""Of a step's number, either way: sums and differences of steps stay within 32 bits."""

MOST_STEPS = 10_000
"""Of a campaign, from the first step seen to the last: much is counted step by step."""
