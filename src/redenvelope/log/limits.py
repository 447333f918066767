"""Limits on the size of a log, a table and their values, and why. What exceeds one is refused before memory or time is
spent on it.
"""

from __future__ import annotations

from redenvelope.engine.memory import available_memory

LEAST_PROPENSITY = 1e-9
"""Of a logged action: a row with less would weigh more than a billion others, and products over a few steps leave what
32-bit numbers can hold."""

TINY_PROPENSITY = 0.001
"""Rows with a smaller propensity weigh more than a thousand others each: they are reported."""

LARGEST_AMOUNT = 1e15
"""Of a reward or a cost, either way: squares of it, summed over all rows of a log, stay within 32-bit numbers, and
whole amounts are exact."""

LARGEST_STEP = 10**9
"""Of a step's number, either way: sums and differences of steps stay within 32 bits."""

MOST_STEPS = 10_000
"""Of a campaign, from the first step seen to the last: much is counted step by step."""

MOST_ACTIONS = 1_000
"""Different labels: more are amounts or ids, not a catalogue."""

MOST_COLUMNS = 1_000
"""Of a table: every feature is a column of the states that all later stages work on."""

LONGEST_TEXT = 10_000
"""Bytes of a value: longer ones are documents, neither labels nor numbers."""

MOST_UNPACKED = 200
"""Bytes of text that one packed byte of a file may become: logs differ from row to row, so that none is packed so
tightly."""

UNPACKED_AT_EASE = 1 << 26
"""Bytes up to which it does not matter how tightly a file is packed."""

TEXT_MEMORY = 10
"""Bytes of memory that a byte of text needs while it is read: itself, its line ends and delimiters, and its fields."""

PARQUET_MEMORY = 2
"""Bytes of memory that a byte of a table needs while it is read: as stored, and in the types and order of a log."""


def memory_lacks(needed: int) -> int | None:
    """How many bytes there are, where they are fewer than needed; None where they suffice, or nobody knows."""
    available = available_memory()
    return available if available is not None and needed > available else None


def amount_of_memory(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"
