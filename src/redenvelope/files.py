"""Reading regular files only, replacing files atomically, and locking folders."""

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
"""How the names of files end that a killed process may leave behind; the next that writes there removes them."""

_ROOM_BYTES = 2**20
_LONGEST_SHOWN = 200
_PATIENCE = 60.0


def cache_folder() -> Path | None:
    """The folder of what this user's runs keep: where the environment says, or where caches are; None where it says
    off."""
    said = os.environ.get(CACHE_VARIABLE, "")
    if said.strip().lower() in ("off", "0", "no", "none"):
        return None
    if said:
        return Path(said)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    return Path(home) / "redenvelope"


def is_address(place: object) -> bool:
    """Whether a place is the address of an object store or the URL of a database, instead of a path."""
    return "://" in str(place)


def read_regular(path: Path, largest: int) -> bytes:
    """The content of a regular file of at most so many bytes.

    Anything else raises an OSError before a byte is read: a pipe would never answer, a device never end.
    """
    # Without blocking: else opening a pipe nobody writes to would wait for ever.
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(opened, "rb") as handle:
        facts = os.fstat(opened)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if facts.st_size > largest:
            raise OSError(errno.EFBIG, f"{facts.st_size:,} bytes, and {largest:,} are allowed")
        return handle.read(largest + 1)


def same_file(one: Path, other: Path) -> bool:
    """Whether two names stand for one file that is there."""
    with suppress(OSError):
        return one.samefile(other)
    return False


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within, whatever cannot be written (no space, no permission, no such folder) is refused in words."""
    import polars as pl

    try:
        yield
    except (OSError, ValueError) as error:
        if not isinstance(error, OSError) and "null" not in str(error):
            raise
        shown = str(path) if len(str(path)) <= _LONGEST_SHOWN else str(path)[:_LONGEST_SHOWN] + "…"
        raise UsageError(f"{shown}: cannot be written ({_in_words(error)})") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        # polars tells what the system said inside of its own words.
        if "os error" not in str(error):
            raise
        said = str(error).splitlines()[0].rpartition("error: ")[2].split(" (os error")[0]
        raise UsageError(f"{path}: cannot be written ({said})") from None


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[IO[bytes]]:
    """A file that takes a path's place when the block ends well; before, and if it does not, nothing is seen of it.

    A link is followed: what it points to is replaced. What need not be `durable`, a loss of power may damage: then it
    must be known by its hash.
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
    """A new file on the same disk as another: without a name where the system has such, so that a kill leaves nothing.

    Elsewhere its name tells that it is unfinished, and it is removed when the block ends.
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
    """Within, nobody else is inside of such a block for the same folder, or only others who share it.

    A killed process lets go by itself; waiting for one that does not ends in an OSError after `patience` seconds.
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
    """Whether a lock was taken, or the file system has none: then the last one that writes wins all the same."""
    import fcntl

    try:
        fcntl.flock(opened, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def put_in_place(handle: IO[bytes], target: Path, durable: bool = True) -> None:
    """Give a file from `nameless` its name, in one step, when all of it is on the disk, or at least written."""
    handle.flush()
    if durable:
        os.fsync(handle.fileno())
    aside = named(handle, _aside(target))
    aside.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else usual_mode())
    aside.replace(target)
    if durable:
        settle(target.parent)


def named(handle: IO[bytes], path: Path) -> Path:
    """Where a file from `nameless` can be seen: under this name, or under the one it has."""
    if not isinstance(handle.name, int):
        return Path(handle.name)
    # A directory to start from makes Python follow the link, which is what gives a nameless file its name.
    os.link(f"/proc/self/fd/{handle.fileno()}", path, src_dir_fd=handle.fileno(), follow_symlinks=True)
    return path


def settle(folder: Path) -> None:
    """Make sure that new names in a folder outlive a loss of power."""
    with suppress(OSError):  # some file systems cannot; the names are there all the same
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def forget(folder: Path, prefix: str) -> None:
    """Remove what a killed process left unfinished under names that begin so; what is being written is left alone."""
    for left in folder.glob(f"{glob.escape(prefix)}*{_UNFINISHED}"):
        with suppress(OSError), left.open("rb") as handle:
            if left.is_file() and not left.is_symlink() and _owned(handle):
                left.unlink()


def require_writable(path: Path) -> None:
    """Refuse a path that cannot be written to; worth asking before hours of work."""
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
    """Where a path leads, links followed; what is not there yet stays as it is written."""
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
    """A name beside a file that nobody else has."""
    return target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}{_UNFINISHED}")


def _owned(handle: IO[bytes]) -> bool:
    """Whether a file could be taken for this process alone, until it is closed: then nobody else is writing it."""
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
