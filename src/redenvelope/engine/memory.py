"""Memory of this process: how much is available, returning what was freed, and the cache of compiled programs."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import platform
import sys
import warnings
from contextlib import suppress
from pathlib import Path

from redenvelope.errors import UsageError
from redenvelope.files import cache_folder

_PROCESS = Path("/proc/self/status")
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


def forget_programs(most: int | None = None) -> None:
    """Drop what was compiled before where the process comes near the pieces of memory that the system grants it.

    A long-lived process that fits logs of many shapes keeps the programs of each; past the limit the compiler ends
    the process. `most` is the limit, that of the system if None.
    """
    most = most or _number(_MOST_PIECES)
    if most is None or "jax" not in sys.modules:
        return
    with suppress(OSError), _PIECES.open("rb") as lines:
        if sum(1 for _ in lines) > _ROOM_FOR_PROGRAMS * most:
            import jax

            jax.clear_caches()  # type: ignore[no-untyped-call]
            gc.collect()


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still ask for: of the machine, of its group and of its own limit, whichever is
    least; None where nothing says so. Linux says so in files under `root`."""
    found = [_kilobytes(root / "proc/meminfo", "MemAvailable"), *_left_of_groups(root), _left_of_limit()]
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


def _left_of_groups(system: Path) -> list[int]:
    """What the control groups of this process leave, from its own up to the root, in both versions of them."""
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


# The cache of compiled programs: compiling takes most of a short fit, and gives the same program every time.
#
# XLA keeps them itself, in a folder that the environment names; here is chosen which, and when none may be used.


_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_PROCESSOR = Path("/proc/cpuinfo")


def keep_programs() -> None:
    """Have programs kept in the user's cache folder; to be called before the first is compiled.

    Nothing is done where the environment says otherwise, or where somebody else could write into the folder: what
    lies there is run.
    """
    home = cache_folder()
    if home is None or _FOLDER in os.environ:
        return
    folder = home / "programs" / _kind_of_machine()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_ours_alone(folder) or not os.access(folder, os.W_OK):
            return
        make_room(folder)
    except OSError:
        return
    os.environ[_FOLDER] = str(folder)
    # By default only what took a second to compile is kept; a fit compiles a hundred programs of half a second.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    if "jax" in sys.modules:  # which has read the environment already
        config = sys.modules["jax"].config
        config.update("jax_compilation_cache_dir", str(folder))
        config.update("jax_persistent_cache_min_compile_time_secs", 0)
        config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # A program that a killed process left half written, or that does not fit on the disk, is compiled anew.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def _kind_of_machine() -> str:
    """What the processor can do, in a short word: in a home that machines share, a program is for its kind alone."""
    flags = ""
    with suppress(OSError), _PROCESSOR.open(encoding="utf-8", errors="replace") as lines:
        flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return hashlib.sha256(f"{platform.machine()} {flags}".encode()).hexdigest()[:16]


def _is_ours_alone(folder: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    facts = folder.stat()
    return facts.st_uid == os.getuid() and not facts.st_mode & 0o022


def make_room(folder: Path, most_bytes: int = 2**29) -> None:
    """Remove the oldest programs until the rest fits."""
    programs = sorted(((path.stat(), path) for path in folder.iterdir()), key=lambda pair: pair[0].st_mtime_ns)
    total = sum(facts.st_size for facts, _ in programs)
    for facts, path in programs:
        if total <= most_bytes:
            return
        with suppress(OSError):
            path.unlink()
        total -= facts.st_size
