"""Memory: what there is, asked before much of it is taken, and given back when it is not needed any more."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

from redenvelope.errors import UsageError

__all__ = ["available_bytes", "give_back", "require_memory"]

_GROUP = Path("/sys/fs/cgroup")
_ENDLESS = 2**60


def available_bytes() -> int:
    """What this process may still take: the least of what the machine has free, its group's limit and its own."""
    least = _ENDLESS
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                least = min(least, int(line.split()[1]) * 1024)
    # A container's limit: version two of control groups, or version one.
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            least = min(least, int((_GROUP / limit).read_text()) - int((_GROUP / used).read_text()))
    if sys.platform != "win32":
        import resource

        with suppress(OSError, ValueError):
            soft = resource.getrlimit(resource.RLIMIT_AS)[0]
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            if soft != resource.RLIM_INFINITY:
                least = min(least, soft - taken)
    return max(least, 0)


def require_memory(needed: int, what: str, remedy: str) -> None:
    """Refuse work that needs more memory than there is, before any of it is taken."""
    there = available_bytes()
    if needed > there:
        raise UsageError(
            f"{what} would need about {_size(needed)} of memory, and {_size(there)} are available; {remedy}"
        )


def give_back() -> None:
    """Give what was freed back to the system, where the C library keeps it: a stage's memory would else be held in
    pieces that do not fit the next one's."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**29 else f"{count / 2**20:,.0f} MiB"
