"""The stage cache: results of finished stages of a fit, stored in a folder under the hash of all their inputs.

Deleting the folder loses only time. No code read from it is run: content is checked against its own hash and decoded by
type. An entry that is damaged, from another version or too large counts as absent, and the stage runs again.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax
import msgspec
import numpy as np
from numpy.typing import NDArray

from redenvelope import __version__
from redenvelope.errors import RedenvelopeError, UsageError
from redenvelope.files import cache_folder, read_regular, replacing
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.log import Log
from redenvelope.serialization import from_plain, to_plain

_SUFFIX = ".stage"
_LIMIT_BYTES = 2 * 2**30
_DIGEST = hashlib.sha256().digest_size
_LENGTH = 8

_FORMAT = 3  # raise it whenever the same inputs lead to another result

Arrays = dict[str, NDArray[Any]]
_Words = tuple[dict[str, Any], list[tuple[str, str, tuple[int, ...]]]]
Result = TypeVar("Result")


@dataclass(eq=False)
class Cache:
    """Stored results in a folder of limited size; the least recently used are removed first."""

    folder: Path
    limit_bytes: int = _LIMIT_BYTES
    notes: list[str] = field(default_factory=list)
    """What was found, stored or not stored, for debugging."""

    def __post_init__(self) -> None:
        if self.limit_bytes < 0:
            raise UsageError(f"the limit of a cache must be 0 bytes or more, not {self.limit_bytes}")

    def get(self, key: str) -> tuple[dict[str, Any], Arrays] | None:
        """The record and the arrays stored under a key; None if there are none, or they are damaged."""
        path = self._path(key)
        try:
            content = read_regular(path, self.limit_bytes)
            found = _unpacked(content)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, msgspec.DecodeError) as error:
            self.notes.append(f"{path.name}: damaged ({error}); the stage runs again")
            return None
        with suppress(OSError):
            os.utime(path)
        self.notes.append(f"{path.name}: found")
        return found

    def put(self, key: str, record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store a record and arrays under a key; a failure is only noted."""
        size = sum(array.nbytes for array in arrays.values())
        if size > self.limit_bytes // 2:
            self.notes.append(f"{key[:16]}: {size:,} bytes are too many to store")
            return
        path = self._path(key)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # entries derive from users' data
            with replacing(path) as file:
                file.writelines(_packed(record, arrays))
            self._make_room()
            self.notes.append(f"{path.name}: stored")
        except (OSError, UsageError) as error:
            self.notes.append(f"{path.name}: not stored ({error})")

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _make_room(self) -> None:
        """Remove the least recently used entries until the rest fits."""
        stages = [(path.stat(), path) for path in self.folder.glob(f"*{_SUFFIX}")]
        total = sum(stat.st_size for stat, _ in stages)
        for stat, path in sorted(stages, key=lambda pair: pair[0].st_mtime_ns):
            if total <= self.limit_bytes:
                return
            with suppress(OSError):
                path.unlink()
            total -= stat.st_size


def usual_cache() -> Cache | None:
    """The cache of the current user; None if the environment disables it."""
    folder = cache_folder()
    return None if folder is None else Cache(folder / "stages")


def _packed(record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Iterator[Any]:
    """Yield a file's content in pieces, because arrays are large; wide types first, so that all are aligned."""
    kept = sorted(arrays.items(), key=lambda pair: -pair[1].itemsize)
    words = msgspec.json.encode((record, [(name, array.dtype.str, array.shape) for name, array in kept]))
    words += b" " * (-len(words) % _LENGTH)
    digest = hashlib.sha256(head := len(words).to_bytes(_LENGTH, "little") + words)
    yield head
    for _, array in kept:
        digest.update(piece := np.ascontiguousarray(array).data)
        yield piece
    yield digest.digest()


def _unpacked(content: bytes) -> tuple[dict[str, Any], Arrays]:
    body = memoryview(content)[:-_DIGEST]
    if hashlib.sha256(body).digest() != content[-_DIGEST:]:
        raise ValueError("its hash does not match its content")
    end = _LENGTH + int.from_bytes(body[:_LENGTH], "little")
    record, shapes = msgspec.json.decode(body[_LENGTH:end], type=_Words)
    arrays: Arrays = {}
    for name, kind, shape in shapes:
        arrays[name] = np.frombuffer(body, kind, math.prod(shape), end).reshape(shape)
        end += arrays[name].nbytes
    return record, arrays


@dataclass(frozen=True)
class Codec(Generic[Result]):
    """Encodes the result of a stage as a record and arrays, and decodes it."""

    encode: Callable[[Result], tuple[Any, Arrays]]
    decode: Callable[[Any, Arrays], Result]


def record_codec(kind: type[Result]) -> Codec[Result]:
    """A codec for a record without arrays."""
    return Codec(lambda result: (result, {}), lambda record, _: from_plain(kind, record, f"the {kind.__name__}"))


def flat_codec(kind: type[Result]) -> Codec[Result]:
    """A codec for a dataclass whose fields are arrays, numbers, texts, tuples of these, or None."""

    def encode(result: Result) -> tuple[Any, Arrays]:
        values = {each.name: getattr(result, each.name) for each in fields(kind)}  # type: ignore[arg-type]
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        return {name: value for name, value in values.items() if name not in arrays}, arrays

    def decode(record: Any, arrays: Arrays) -> Result:
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
        return kind(**arrays, **plain)

    return Codec(encode, decode)


class StageCache:
    """Looks up each stage of a fit before running it, and stores its result afterwards.

    The key of a stage contains those of the stages before it. Another budget therefore reuses everything that does not
    depend on it, other search settings reuse the model, and an interrupted fit resumes after its last finished stage.
    """

    def __init__(self, cache: Cache | None, log: Log, settings: FitSettings, inputs: tuple[object, ...] = ()) -> None:
        """`inputs` are the records, numbers and texts that all stages depend on, besides log, seed and folds."""
        self._cache, self._key = cache, ""
        if cache is not None:
            versions = f"{_FORMAT} {__version__} {jax.__version__} {np.__version__}"
            self._key = _sha256(versions, log_sha256(log), settings.seed, settings.parts, *inputs)
        self.hits: list[str] = []
        """Names of the stages that were found."""

    def stage(self, name: str, inputs: tuple[Any, ...], make: Callable[[], Result], codec: Codec[Result]) -> Result:
        """The result of a stage: from the cache if the same inputs were run before, else computed and stored."""
        if self._cache is None:
            return make()
        self._key = _sha256(self._key, name, *inputs)
        found = self._cache.get(self._key)
        if found is not None:
            try:
                result = codec.decode(*found)
            except (RedenvelopeError, KeyError, TypeError, ValueError, IndexError) as error:
                self._cache.notes.append(f"{name}: the entry does not fit ({error}); the stage runs again")
            else:
                self.hits.append(name)
                return result
        result = make()
        record, arrays = codec.encode(result)
        self._cache.put(self._key, to_plain(record), arrays)
        return result

    def marked(self, name: str, text: str) -> str:
        """The text that reports a stage, marked if it was found in the cache."""
        return f"{text} (cached)" if name in self.hits else text


def log_sha256(log: Log) -> str:
    """A hash of everything that a fit reads from a log."""
    features = log.features
    words = (
        log.catalogue,
        log.outcome_names,
        [name for name, _ in (*log.further, *log.charged)],
        log.propensity_source,
        features.numeric_names,
        features.category_names,
        features.labels,
        sorted(features.static),
    )
    digest = hashlib.sha256(_sha256(*words).encode())
    charged = (array for _, array in (*log.further, *log.charged))
    listed = [array for array in (log.eligible, log.attributes) if array is not None]
    for array in (log.keys, log.starts, log.step, log.action, log.propensity, log.outcomes, *charged, *listed):
        digest.update(np.ascontiguousarray(array).data)
    for table in (features.numeric, features.codes):
        for column in table.T:
            digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def _sha256(*parts: Any) -> str:
    content = msgspec.json.encode([to_plain(part) for part in parts], enc_hook=repr, order="sorted")
    return hashlib.sha256(content).hexdigest()
