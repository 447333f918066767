"""Limits on the size of a log, of a table and of values, and the reasons. Whatever exceeds one is refused before memory
or time is spent on it.
"""

from __future__ import annotations

from redenvelope.engine.memory import available_memory

LEAST_PROPENSITY = 1e-9
"""Of a logged action: a row with less would outweigh a billion others, and products over steps would leave 32 bits."""

TINY_PROPENSITY = 0.001
"""Rows with a smaller propensity are reported: each outweighs more than a thousand others."""

LARGEST_AMOUNT = 1e15
"""Absolute value of a reward or a cost: its squares, summed over all rows of a log, stay within the range of 32-bit
numbers, and whole amounts are exact."""

LARGEST_STEP = 10**9
"""Absolute value of a step number: sums and differences of steps stay within 32 bits."""

MOST_STEPS = 10_000
"""Steps of a campaign, from the first one seen to the last: much is counted for every step."""

MOST_ACTIONS = 1_000
"""Distinct labels: more of them are amounts or ids rather than a catalogue."""

MOST_COLUMNS = 1_000
"""Columns of a table: every feature is a column of the states that all later stages process."""

LONGEST_TEXT = 10_000
"""Bytes of a value: longer ones are documents rather than labels or numbers."""

MOST_UNPACKED = 200
"""Bytes of text per compressed byte of a file: no log compresses so well, because its rows differ."""

UNPACKED_AT_EASE = 1 << 26
"""Bytes up to which the rate of compression is not checked."""

TEXT_MEMORY = 10
"""Bytes of memory per byte of text while it is read: for itself, its line ends and delimiters, and its fields."""

PARQUET_MEMORY = 2
"""Bytes of memory per byte of a table while it is read: as stored, and in the types and the order of a log."""


def memory_lacks(needed: int) -> int | None:
    """The available bytes if fewer than needed; None if they suffice or are unknown."""
    available = available_memory()
    return available if available is not None and needed > available else None


def amount_of_memory(size: int) -> str:
    """A number of bytes as text."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"
