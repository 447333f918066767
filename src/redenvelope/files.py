"""Files: reading regular files only, replacing files atomically, and locking folders.

A new file has no name, or one that ends in `.unfinished`, until it is complete; then it takes its place in one step.
"""

from __future__ import annotations

import errno
import glob
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from redenvelope.errors import UsageError

CACHE_VARIABLE = "REDENVELOPE_CACHE"
"""Environment variable with the cache folder; `off` for none."""

_UNFINISHED = ".unfinished"
"""The ending of files that a killed process may leave behind; the next process that writes there removes them."""

_ROOM_BYTES = 2**20
_LONGEST_SHOWN = 200
_PATIENCE = 60.0


def cache_folder() -> Path | None:
    """The folder for caches of this user's runs: as the environment says, else the usual one; None if it says off."""
    said = os.environ.get(CACHE_VARIABLE, "")
    if said.strip().lower() in ("off", "0", "no", "none"):
        return None
    if said:
        return Path(said)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    return Path(home) / "redenvelope"


def is_address(place: object) -> bool:
    """Whether a place is an address of an object store or a URL of a database rather than a path."""
    return "://" in str(place)


def read_regular(path: Path, largest: int) -> bytes:
    """The content of a regular file of at most `largest` bytes.

    Anything else raises an OSError before a byte is read: a pipe might never answer, a device never end.
    """
    # Without blocking: otherwise opening a pipe that nobody writes to would wait for ever.
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(opened, "rb") as handle:
        facts = os.fstat(opened)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if facts.st_size > largest:
            raise OSError(errno.EFBIG, f"{facts.st_size:,} bytes, and {largest:,} are allowed")
        return handle.read(largest + 1)


def same_file(one: Path, other: Path) -> bool:
    """Whether two names refer to the same existing file."""
    with suppress(OSError):
        return one.samefile(other)
    return False


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within the block, a failure to write (no space, no permission, no such folder) becomes a UsageError."""
    import polars as pl

    try:
        yield
    except (OSError, ValueError) as error:
        if not isinstance(error, OSError) and "null" not in str(error):
            raise
        shown = str(path) if len(str(path)) <= _LONGEST_SHOWN else str(path)[:_LONGEST_SHOWN] + "…"
        raise UsageError(f"{shown}: cannot be written ({_in_words(error)})") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        # polars wraps the message of the system in its own.
        if "os error" not in str(error):
            raise
        said = str(error).splitlines()[0].rpartition("error: ")[2].split(" (os error")[0]
        raise UsageError(f"{path}: cannot be written ({said})") from None


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[IO[bytes]]:
    """A file that replaces `path` if the block ends without an error; until then, the old file stays.

    A link is followed: its target is replaced. A file that is not `durable` may be damaged by a power failure, so its
    readers must check a hash.
    """
    with writing(path):
        target = resolved(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        forget(target.parent, f".{target.name}.")
        if target.exists() and not target.is_file():
            raise UsageError(f"{path}: is not a file; choose another name")
        with nameless(target) as handle:
            yield handle
            put_in_place(handle, target, durable)


@contextmanager
def nameless(near: Path) -> Iterator[IO[bytes]]:
    """A new file on the disk of `near`, without a name if the system can do that, so that a kill leaves nothing.

    Otherwise its name marks it as unfinished, and it is removed when the block ends.
    """
    handle = _without_name(near.parent)
    if handle is not None:
        with handle:
            _owned(handle)
            yield handle
        return
    aside = _aside(near)
    try:
        with aside.open("w+b") as visible:
            _owned(visible)
            yield visible
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, shared: bool = False, patience: float = _PATIENCE) -> Iterator[None]:
    """Within the block, this process holds the lock of a folder, alone or with others who share it.

    The lock of a killed process ends with it. Waiting for the lock ends in an OSError after `patience` seconds.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    opened = os.open(folder, os.O_RDONLY)
    try:
        until = time.monotonic() + patience
        while not _taken(opened, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            if time.monotonic() > until:
                raise OSError(errno.EBUSY, f"another process has been writing it for {patience:.0f} seconds")
            time.sleep(0.01)
        yield
    finally:
        os.close(opened)


def _taken(opened: int, how: int) -> bool:
    """Whether a lock was taken, or the file system has no locks; then the last writer wins."""
    import fcntl

    try:
        fcntl.flock(opened, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def put_in_place(handle: IO[bytes], target: Path, durable: bool = True) -> None:
    """Name a file from `nameless` in one step, once its content is on the disk (if `durable`) or at least written."""
    handle.flush()
    if durable:
        os.fsync(handle.fileno())
    aside = named(handle, _aside(target))
    aside.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else usual_mode())
    aside.replace(target)
    if durable:
        settle(target.parent)


def named(handle: IO[bytes], path: Path) -> Path:
    """The path at which a file from `nameless` is visible: the given one, or the one that it already has."""
    if not isinstance(handle.name, int):
        return Path(handle.name)
    # With a directory to start from, Python follows the link, which is what gives a nameless file its name.
    os.link(f"/proc/self/fd/{handle.fileno()}", path, src_dir_fd=handle.fileno(), follow_symlinks=True)
    return path


def settle(folder: Path) -> None:
    """Sync a folder, so that new names in it survive a power failure."""
    with suppress(OSError):  # some file systems cannot; the names exist anyway
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def forget(folder: Path, prefix: str) -> None:
    """Remove unfinished files with this prefix that a killed process left, but none that is being written."""
    for left in folder.glob(f"{glob.escape(prefix)}*{_UNFINISHED}"):
        with suppress(OSError), left.open("rb") as handle:
            if left.is_file() and not left.is_symlink() and _owned(handle):
                left.unlink()


def require_writable(path: Path) -> None:
    """Raise if a path cannot be written to; called before hours of work."""
    with writing(path):
        target = resolved(path)
        near = next(parent for parent in (target, *target.parents) if parent.exists())
        if near == target and not target.is_dir():
            if not target.is_file():
                raise UsageError(f"{path}: is a pipe, a socket or a device, not a file; choose another name")
            near = target.parent
        if not near.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{near} is not a folder")
        with nameless(near / "room") as handle:
            handle.write(bytes(_ROOM_BYTES))
            handle.flush()


def resolved(path: Path) -> Path:
    """The absolute path with links followed; missing parts stay as written."""
    found = Path(os.path.realpath(path))
    if found.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return found


def _without_name(folder: Path) -> IO[bytes] | None:
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not Path("/proc/self/fd").is_dir():
        return None
    try:
        return os.fdopen(os.open(folder, flag | os.O_RDWR, 0o600), "w+b")
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            return None  # the file system has no such files
        raise


def _aside(target: Path) -> Path:
    """A unique name for an unfinished file in the same folder."""
    return target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}{_UNFINISHED}")


def _owned(handle: IO[bytes]) -> bool:
    """Whether this process could lock a file for itself, until it is closed; if so, nobody else is writing it."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def usual_mode() -> int:
    """The permissions of a new file."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _in_words(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
