"""A folder of finished stages, found by the hash of all that went into them; whoever deletes it loses only time.

What comes back from a disk is data: checked against its own hash, decoded by types, and never run. What is damaged, of
another version or too large is not there, and is made anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from redenvelope.errors import UsageError
from redenvelope.files import cache_folder, read_regular, replacing

__all__ = ["Arrays", "Cache", "usual_cache"]

_SUFFIX = ".stage"
_LIMIT_BYTES = 2 * 2**30
_DIGEST = hashlib.sha256().digest_size
_LENGTH = 8

Arrays = dict[str, NDArray[Any]]


@dataclass(eq=False)
class Cache:
    """Finished stages in a folder of at most so many bytes; those not used for longest go first."""

    folder: Path
    limit_bytes: int = _LIMIT_BYTES
    notes: list[str] = field(default_factory=list)
    """What was found, kept or could not be, for whoever looks for a fault."""

    def __post_init__(self) -> None:
        if self.limit_bytes < 0:
            raise UsageError(f"a cache holds 0 bytes or more, not {self.limit_bytes}")

    def get(self, key: str) -> tuple[dict[str, Any], Arrays] | None:
        """The record and the arrays kept under a key; None where there are none that can be believed."""
        path = self._path(key)
        try:
            content = read_regular(path, self.limit_bytes)
            found = _unpacked(content)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, msgspec.DecodeError) as error:
            self.notes.append(f"{path.name}: damaged ({error}); made anew")
            return None
        with suppress(OSError):
            os.utime(path)
        self.notes.append(f"{path.name}: found")
        return found

    def put(self, key: str, record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep a record and arrays under a key; where that cannot be, nothing happens."""
        size = sum(array.nbytes for array in arrays.values())
        if size > self.limit_bytes // 2:
            self.notes.append(f"{key[:16]}: {size:,} bytes are too many to keep")
            return
        path = self._path(key)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # what is kept is made of users' data
            with replacing(path) as file:
                file.write(_packed(record, arrays))
            self._make_room()
            self.notes.append(f"{path.name}: kept")
        except (OSError, UsageError) as error:
            self.notes.append(f"{path.name}: not kept ({error})")

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _make_room(self) -> None:
        """Remove what was not used for longest until the rest fits."""
        stages = [(path.stat(), path) for path in self.folder.glob(f"*{_SUFFIX}")]
        total = sum(stat.st_size for stat, _ in stages)
        for stat, path in sorted(stages, key=lambda pair: pair[0].st_mtime_ns):
            if total <= self.limit_bytes:
                return
            with suppress(OSError):
                path.unlink()
            total -= stat.st_size


def usual_cache() -> Cache | None:
    """The cache of this user; None where the environment says that nothing is kept."""
    folder = cache_folder()
    return None if folder is None else Cache(folder / "stages")


def _packed(record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A hash, the length of the record, the record, and the arrays."""
    words = msgspec.json.encode(record)
    # Asked for in one piece: of anything else the file would hold another array.
    tensors = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    body = len(words).to_bytes(_LENGTH, "little") + words + tensors
    return hashlib.sha256(body).digest() + body


def _unpacked(content: bytes) -> tuple[dict[str, Any], Arrays]:
    digest, body = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("its hash is not that of its content")
    end = _LENGTH + int.from_bytes(body[:_LENGTH], "little")
    record = msgspec.json.decode(body[_LENGTH:end])
    if not isinstance(record, dict):
        raise ValueError("it holds no record")
    return record, dict(load(body[end:]))
