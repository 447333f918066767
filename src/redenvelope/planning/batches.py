"""How many users are planned for at once: in a call of a compiled program, and within it."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["parts", "power_of_two", "users_per_block", "users_per_call"]

# Users in one call of a compiled program: long enough to hide what a call costs. Every call has this size, so that
# nothing is compiled twice; those of the largest trees are smaller, so that the trees of a call fit in memory.
_USERS_PER_CALL = 1_024
_NODES_PER_CALL = 262_144
# Nodes at the deepest level times prices that are backed up at once. Each carries a value and its outcomes: a dozen
# bytes, so that a block stays within the second-level cache. Measured: half of it is as fast, twice as much is not.
_VALUES_PER_BLOCK = 32_768


def users_per_call(deepest_nodes: int) -> int:
    """Users whose trees, with so many nodes at the last level, are in memory at once: a power of two."""
    return power_of_two(min(_USERS_PER_CALL, _NODES_PER_CALL // deepest_nodes))


def users_per_block(deepest_nodes: int, prices: int) -> int:
    """Users whose trees are backed up at once at so many prices: a power of two, never more than in a call."""
    wanted = min(users_per_call(deepest_nodes), _VALUES_PER_BLOCK // (deepest_nodes * prices))
    return power_of_two(wanted)


def parts(users: int, size: int) -> Iterator[slice]:
    """Cut users into parts of at most so many."""
    for first in range(0, users, size):
        yield slice(first, min(first + size, users))


def power_of_two(most: int) -> int:
    """The largest that is not above `most`, and at least 1."""
    return 1 << max(0, most.bit_length() - 1)
