"""A partitioned lake in its work folder: parts of complete users, one file each, and the records of progress."""

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
    """Of users, into which the ids divide them; a part holds some neighbouring ones."""
    columns: dict[str, str]
    """Name -> type."""
    whole_ids: bool
    """Whether ids of text are read as integers, because all of them are."""
    filled: int
    """Costs that were filled in."""
    episodes: tuple[str, ...]
    """Values of the column that tells episodes apart."""
    findings: tuple[Finding, ...]
    """Of the files."""
    parts: tuple[PartRecord, ...]


@dataclass(frozen=True)
class LakePart:
    """A part by its path: what is sent to a worker."""

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
    """A work folder."""

    folder: Path
    notes: Notes
    parts: tuple[LakePart, ...]


# Records of a work folder: its settings and its progress. Each is written atomically, with a checksum.


Record = TypeVar("Record")

_LARGEST_BYTES = 2**28
_SEAL = "seal"


@dataclass(frozen=True)
class SliceRecord:
    """A slice that was divided."""

    rows: int
    offsets: tuple[int, ...]
    """Where each part's rows begin in the slice's file, and where the last end, [parts + 1]; its header comes first."""
    check: int
    """Of the slice's file, by CRC-32: it is made anew if it is not what was written."""
    whole_ids: bool
    """Whether ids of text are all integers."""
    findings: tuple[dict[str, Any], ...]
    """What was wrong with the rows, as `Finding.as_dict` says it."""
    filled: int
    """Costs that were filled in."""
    guessed: tuple[str, ...]
    """Columns of text that hold formatted numbers, dates, or words for yes and no."""
    present: tuple[str, ...]
    """Columns that hold anything."""
    episodes: tuple[str, ...]
    """Different values of the column that tells episodes apart."""


@dataclass(frozen=True)
class PartRecord:
    """A part that is whole."""

    rows: int
    bytes: int
    sha256: str


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """The record in a file; None where it is missing or damaged, so that its work is done again."""
    try:
        return from_plain(kind, _read_json(path), str(path))
    except (OSError, PlanError):
        return None


def write_record(path: Path, record: Any) -> None:
    """Write a record in one step."""
    write_json(path, to_plain(record))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data in one step, with a seal: a record that was damaged must not pass for one that says less."""
    with replacing(path, durable=False) as file:
        file.write(json.dumps({_SEAL: _seal(content), **content}, indent=1, ensure_ascii=False).encode())


def _read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote, and nothing else."""
    content = decoded(read_regular(path, _LARGEST_BYTES), str(path))
    if content.pop(_SEAL, None) != _seal(content):
        raise PlanError("damaged or changed: its checksum does not match its content")
    return content


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def agrees(path: Path, settings: Mapping[str, Any], what: str) -> bool:
    """Whether a folder was begun with these settings; a new folder is begun with them.

    A folder that was begun with other settings is refused: `what` it holds would be mixed up.
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
    """The first of the inputs that is not as it was."""
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
    """The same results; after each, the pace and the time left are reported."""
    began, done = time.monotonic(), 0
    for number, result in enumerate(results, start=1):
        done += rows(result)
        seconds = max(time.monotonic() - began, 1e-9)
        left = seconds / number * (total - number)
        stages.going_on(stage, number, total, f"{done / seconds:,.0f} rows per second, {_words(left)} left: part")
        yield result


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
