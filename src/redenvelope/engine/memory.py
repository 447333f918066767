"""Memory of this process: how much is available, and returning what was freed."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

from redenvelope.errors import UsageError

_PROCESS = Path("/proc/self/status")
_MOST_ARENAS = -8  # M_ARENA_MAX in malloc.h


def give_back() -> None:
    """Return freed memory to the system; otherwise it stays in fragments that the next stage cannot use."""
    gc.collect()
    _glibc("malloc_trim", 0)


def share_arena() -> None:
    """Let threads started from now on share one heap; otherwise each keeps what it freed, a fifth of a large fit."""
    _glibc("mallopt", _MOST_ARENAS, 1)


def _glibc(name: str, *arguments: int) -> None:
    """Call a function of the C library if it has it; musl and other systems have none of these."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), name):
        getattr(library, name)(*arguments)


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still allocate: the least of what the machine, its control groups and its own limit
    leave; None if unknown. Linux reports these in files under `root`."""
    found = [_kilobytes(root / "proc/meminfo", "MemAvailable"), *_left_of_groups(root), _left_of_limit()]
    known = [value for value in found if value is not None]
    return max(min(known), 0) if known else None


def _kilobytes(path: Path, name: str) -> int | None:
    """The value of a line such as `MemAvailable:  1024 kB`, in bytes."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def number_in(path: Path) -> int | None:
    """The number in a file; None if there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max" means no limit
        return None


def _left_of_groups(system: Path) -> list[int]:
    """What the control groups of this process leave, from its own up to the root, for cgroup versions 1 and 2."""
    try:
        lines = (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    left, groups = [], system / "sys/fs/cgroup"
    for _, controllers, name in (parts for parts in (line.split(":", 2) for line in lines) if len(parts) == 3):
        root = groups / "memory" if "memory" in controllers.split(",") else groups
        limit, used = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
        place = root / name.strip("/")
        for group in (place, *place.parents):
            most, now = number_in(group / f"memory.{limit}"), number_in(group / f"memory.{used}")
            if most is not None and now is not None:
                left.append(most - now)
            if group == root:
                break
    return left


def _left_of_limit() -> int | None:
    """What the limit on this process's address space leaves; None without a limit."""
    try:
        import resource
    except ImportError:  # no such limits on this system
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _kilobytes(_PROCESS, "VmSize")
    return None if most == resource.RLIM_INFINITY or used is None else most - used


def require_memory(needed: int, what: str, remedy: str) -> None:
    """Raise if work needs more memory than is available, before it begins."""
    there = available_memory()
    if there is not None and needed > there:
        raise UsageError(
            f"{what} would need about {_size(needed)} of memory, and {_size(there)} are available; {remedy}"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**29 else f"{count / 2**20:,.0f} MiB"
