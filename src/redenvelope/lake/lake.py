"""A partitioned lake in its work folder: parts with complete users, one file each, and records of the progress."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from redenvelope.errors import PlanError, UsageError
from redenvelope.files import read_regular, replacing
from redenvelope.log.findings import Finding
from redenvelope.progress import Stages
from redenvelope.serialization import decoded, from_plain, to_plain


@dataclass(frozen=True)
class Notes:
    """The manifest of a partitioned lake."""

    files: tuple[str, ...]
    """The inputs by name."""
    rows: int
    buckets: int
    """Number of buckets that ids are hashed into; a part holds some consecutive buckets."""
    columns: dict[str, str]
    """Name -> type."""
    whole_ids: bool
    """Whether text ids are read as integers, because all of them are integers."""
    filled: int
    """Number of missing costs that were filled in."""
    episodes: tuple[str, ...]
    """Values of the column that distinguishes episodes."""
    findings: tuple[Finding, ...]
    """Findings about the files."""
    parts: tuple[PartRecord, ...]


@dataclass(frozen=True)
class LakePart:
    """A part by its path, which is what workers receive."""

    number: int
    path: str
    rows: int

    def frame(self) -> pl.DataFrame:
        """All rows, in the order of the inputs."""
        try:
            return pl.read_parquet(self.path, glob=False, hive_partitioning=False)
        except (OSError, pl.exceptions.PolarsError) as error:
            reason = (str(error).splitlines() or ["damaged"])[0]
            raise UsageError(
                f"{self.path}: cannot be read ({reason}); remove the file and run again: it will be recreated"
            ) from None


@dataclass(frozen=True)
class Lake:
    """A partitioned lake: its work folder, its manifest and its parts."""

    folder: Path
    notes: Notes
    parts: tuple[LakePart, ...]


# Records of a work folder: its settings and its progress, each written atomically with a checksum.


Record = TypeVar("Record")

_LARGEST_BYTES = 2**28
_SEAL = "seal"


@dataclass(frozen=True)
class SliceRecord:
    """The record of a divided slice."""

    rows: int
    offsets: tuple[int, ...]
    """Where each part's rows begin in the slice's file, and where the last end, [parts + 1], after an empty table."""
    check: int
    """CRC-32 of the slice's file; if it does not match, the file is made again."""
    whole_ids: bool
    """Whether all text ids are integers."""
    findings: tuple[dict[str, Any], ...]
    """Findings about the rows, in the form of `Finding.as_dict`."""
    filled: int
    """Number of missing costs that were filled in."""
    guessed: tuple[str, ...]
    """Text columns that hold formatted numbers, dates, or words for yes and no."""
    present: tuple[str, ...]
    """Columns that are not entirely null."""
    episodes: tuple[str, ...]
    """Distinct values of the column that distinguishes episodes."""


@dataclass(frozen=True)
class PartRecord:
    """The record of a complete part."""

    rows: int
    bytes: int
    sha256: str


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """The record in a file; None if it is missing or damaged, so that its work is done again."""
    try:
        return from_plain(kind, _read_json(path), str(path))
    except (OSError, PlanError):
        return None


def write_record(path: Path, record: Any) -> None:
    """Write a record atomically."""
    write_json(path, to_plain(record))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data atomically, with a checksum, so that damage is noticed."""
    with replacing(path, durable=False) as file:
        file.write(json.dumps({_SEAL: _seal(content), **content}, indent=1, ensure_ascii=False).encode())


def _read_json(path: Path) -> dict[str, Any]:
    """The content that `write_json` wrote; raises if it was changed."""
    content = decoded(read_regular(path, _LARGEST_BYTES), str(path))
    if content.pop(_SEAL, None) != _seal(content):
        raise PlanError("damaged or changed: its checksum does not match its content")
    return content


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def agrees(path: Path, settings: Mapping[str, Any], what: str) -> bool:
    """Whether a folder already has these settings; a new folder gets them.

    A folder with other settings is refused, because its content (`what`) would be mixed up.
    """
    plain = json.loads(json.dumps(settings))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, plain)
        return False
    try:
        before = _read_json(path)
    except (OSError, PlanError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); remove the folder, or choose another") from None
    if before == plain:
        return True
    differs = sorted(name for name in {*before, *plain} if before.get(name) != plain.get(name))
    raise UsageError(
        f"{path.parent}: holds {what} with different {', '.join(differs)}{_changed(before, plain)}; choose another "
        "folder, or remove this one to start over"
    )


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first input that is new or has changed, as text."""
    known = {each["place"]: each for each in before.get("inputs") or ()}
    for each in now.get("inputs") or ():
        was = known.get(each["place"])
        if was != each:
            return f" ({each['place']} {'is new' if was is None else 'has changed since'})"
    return ""


# Progress of a pass over parts: parts done, rows per second, time left.


Result = TypeVar("Result")


def paced(
    stages: Stages, stage: str, results: Iterable[Result], total: int, rows: Callable[[Result], int]
) -> Iterator[Result]:
    """The same results; after each, reports the rows per second and the time left."""
    began, done = time.monotonic(), 0
    for number, result in enumerate(results, start=1):
        done += rows(result)
        seconds = max(time.monotonic() - began, 1e-9)
        left = seconds / number * (total - number)
        stages.going_on(stage, number, total, f"{done / seconds:,.0f} rows per second, {_words(left)} left: part")
        yield result


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
