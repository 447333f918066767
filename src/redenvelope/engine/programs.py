"""Compiled programs kept between runs: compiling takes most of a short fit, and gives the same program every time.

XLA keeps them itself, in a folder that the environment names; here is chosen which, and when none may be used.
"""

from __future__ import annotations

import hashlib
import os
import platform
import warnings
from contextlib import suppress
from pathlib import Path

from redenvelope.files import cache_folder

__all__ = ["keep_programs"]

_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_MOST_BYTES = 2**29
_PROCESSOR = Path("/proc/cpuinfo")


def keep_programs() -> None:
    """Have programs kept in the user's cache folder; to be called before jax is imported.

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
        _make_room(folder)
    except OSError:
        return
    os.environ[_FOLDER] = str(folder)
    # By default only what took a second to compile is kept; a fit compiles a hundred programs of half a second.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
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


def _make_room(folder: Path) -> None:
    """Remove the oldest programs until the rest fits."""
    programs = sorted(((path.stat(), path) for path in folder.iterdir()), key=lambda pair: pair[0].st_mtime_ns)
    total = sum(facts.st_size for facts, _ in programs)
    for facts, path in programs:
        if total <= _MOST_BYTES:
            return
        with suppress(OSError):
            path.unlink()
        total -= facts.st_size
