"""Memory: how much there still is, asked before much is taken; what is not needed any more, given back."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from pathlib import Path

from redenvelope.errors import UsageError

__all__ = ["available_memory", "forget_programs", "give_back", "require_memory"]

_SYSTEM = Path("/proc/meminfo")
_PROCESS = Path("/proc/self/status")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_PIECES = Path("/proc/self/maps")
_MOST_PIECES = Path("/proc/sys/vm/max_map_count")
_ROOM_FOR_PROGRAMS = 0.6  # of the pieces; a fit with new shapes takes a tenth of what Linux grants by default


def give_back() -> None:
    """Give what was freed back to the system, where the C library keeps it: a stage's memory would else be held in
    pieces that do not fit the next one's."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)


def forget_programs() -> None:
    """Drop what was compiled before where the process comes near the pieces of memory that the system grants it.

    A long-lived process that fits logs of many shapes keeps the programs of each; past the limit the compiler ends
    the process.
    """
    most = _number(_MOST_PIECES)
    if most is None or "jax" not in sys.modules:
        return
    with suppress(OSError), _PIECES.open("rb") as lines:
        if sum(1 for _ in lines) > _ROOM_FOR_PROGRAMS * most:
            import jax

            jax.clear_caches()  # type: ignore[no-untyped-call]
            gc.collect()


def available_memory() -> int | None:
    """Bytes that this process may still ask for: of the machine, of its group and of its own limit, whichever is
    least; None where nothing says so."""
    found = [_kilobytes(_SYSTEM, "MemAvailable"), *_left_of_groups(), _left_of_limit()]
    known = [value for value in found if value is not None]
    return max(min(known), 0) if known else None


def _kilobytes(path: Path, name: str) -> int | None:
    """A line such as `MemAvailable:  1024 kB`, in bytes."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max" is no limit
        return None


def _left_of_groups() -> list[int]:
    """What the control groups of this process leave, from its own up to the root, in both versions of them."""
    try:
        own = [line.split(":", 2) for line in _OWN_GROUP.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return []
    left = []
    for _, controllers, name in (line for line in own if len(line) == 3):
        root = _GROUPS / "memory" if "memory" in controllers.split(",") else _GROUPS
        limit, used = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
        place = root / name.strip("/")
        for group in (place, *place.parents):
            most, now = _number(group / f"memory.{limit}"), _number(group / f"memory.{used}")
            if most is not None and now is not None:
                left.append(most - now)
            if group == root:
                break
    return left


def _left_of_limit() -> int | None:
    """What the limit on this process's address space leaves."""
    try:
        import resource
    except ImportError:  # no such limits on this system
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _kilobytes(_PROCESS, "VmSize")
    return None if most == resource.RLIM_INFINITY or used is None else most - used


def require_memory(needed: int, what: str, remedy: str) -> None:
    """Refuse work that needs more memory than there is, before any of it is taken."""
    there = available_memory()
    if there is not None and needed > there:
        raise UsageError(
            f"{what} would need about {_size(needed)} of memory, and {_size(there)} are available; {remedy}"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**29 else f"{count / 2**20:,.0f} MiB"
