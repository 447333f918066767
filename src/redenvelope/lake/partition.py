"""Partitioning a lake by user, in a work folder; resumed after an interruption, and skipped once it is complete.

`Divide` splits every slice of the inputs by part, and `Gather` assembles every part from the slices. Inputs are never
changed.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope import __version__
from redenvelope.arrays import KeyArray
from redenvelope.engine.engine import Engine
from redenvelope.errors import UsageError
from redenvelope.files import locked, replacing, writing
from redenvelope.lake.inputs import ROWS_AT_ONCE, Input, Read, Reader, Slice, inputs_of, slices_of
from redenvelope.lake.lake import (
    Lake,
    LakePart,
    Notes,
    PartRecord,
    SliceRecord,
    agrees,
    paced,
    read_record,
    write_record,
)
from redenvelope.log.cleaning.ids import read_ids
from redenvelope.log.columns import ColumnMap, column, taken
from redenvelope.log.findings import Finding, Findings, Severity, merge, require_usable
from redenvelope.log.schema.keys import cluster_keys
from redenvelope.log.tables import FILE, joined
from redenvelope.progress import Stages
from redenvelope.randomness import fraction, user_keys
from redenvelope.serialization import from_plain
from redenvelope.wording import counted

_FORMAT = 1
_BUCKET_BYTES = 4 * 2**20  # of packed tables: some ten thousand rows
_PART_BYTES = 48 * 2**20  # about a million rows
_FEWEST_BUCKETS, _MOST_BUCKETS = 64, 2**16


def partition(
    source: str | Path,
    reader: Reader,
    work: Path,
    engine: Engine,
    *,
    parts: int | None = None,
    buckets: int | None = None,
    stages: Stages | None = None,
    stage: str = "partition",
    rows_at_once: int = ROWS_AT_ONCE,
) -> Lake:
    """Partition the rows of a source by user in a work folder, or resume or reuse what the folder holds.

    `parts` is a power of two; None chooses as many as give each about a million rows. For parts with the same users as
    those of another lake, pass that lake's `buckets`.
    """
    inputs, stages = inputs_of(source), stages or Stages()
    buckets = buckets or _power(sum(each.size for each in inputs), _BUCKET_BYTES, _FEWEST_BUCKETS, _MOST_BUCKETS)
    parts = parts or _power(sum(each.size for each in inputs), _PART_BYTES, 1, buckets)
    if parts < 1 or parts & (parts - 1) or parts > buckets:
        raise UsageError(f"--parts must be a power of two from 1 to {buckets:,}, such as 64, not {parts}")
    settings = {
        "format": _FORMAT,
        "version": __version__,
        "inputs": [each.record for each in inputs],
        "reading": reader.record,
        "parts": parts,
        "buckets": buckets,
        "slices of rows": rows_at_once,
    }
    _refuse_inside(work, inputs)
    with alone(work):
        agrees(work / "asked.json", settings, "the parts of a lake")
        known = read_record(work / "manifest.json", Notes)
        if known is not None and _whole(work, known.parts):
            return Lake(work, known, _named(work, known.parts))
        return _made(inputs, reader, work, engine, parts, buckets, stages, stage, rows_at_once)


def _made(
    inputs: tuple[Input, ...],
    reader: Reader,
    work: Path,
    engine: Engine,
    parts: int,
    buckets: int,
    stages: Stages,
    stage: str,
    rows_at_once: int,
) -> Lake:
    stages.begin(stage)
    slices = slices_of(inputs, rows_at_once)
    divide = Divide(work, reader, parts, buckets)
    divided = paced(stages, stage, engine.map(divide, slices), len(slices), lambda record: record.rows)
    records = tuple(divided)
    findings = _findings(records)
    if any(finding.severity is Severity.ERROR for finding in findings):
        _forget(work)
    require_usable(findings)
    files = tuple(slices[number].input.name for number in range(len(slices)))
    header, findings = _header(work, records, files, findings)
    _refuse_guesses(records)
    gather = Gather(work, records, header)
    gathered = paced(stages, stage, engine.map(gather, range(parts)), parts, lambda record: record.rows)
    whole = tuple(gathered)
    notes = Notes(
        files=tuple(each.name for each in inputs),
        rows=sum(record.rows for record in records),
        buckets=buckets,
        columns={name: str(dtype) for name, dtype in header.schema.items()},
        whole_ids=all(record.whole_ids for record in records if record.rows),
        filled=sum(record.filled for record in records),
        episodes=tuple(sorted({value for record in records for value in record.episodes})),
        findings=findings,
        parts=whole,
    )
    for number in range(parts):
        _settled(part_path(work, number))
    write_record(work / "manifest.json", notes)
    with suppress(OSError):
        shutil.rmtree(work / "slices")
    stages.finish(stage, f"{notes.rows:,} rows in {counted(parts, 'part')}")
    return Lake(work, notes, _named(work, whole))


def _findings(records: Sequence[SliceRecord]) -> tuple[Finding, ...]:
    """The findings of all slices; for each rule, file and column the first one."""
    found: dict[tuple[str, str | None, str | None], Finding] = {}
    for record in records:
        for plain in record.findings:
            finding = from_plain(Finding, plain, "a finding")
            found.setdefault((finding.rule, finding.file, finding.column), finding)
    return merge(tuple(found.values()))


def _header(
    work: Path, records: Sequence[SliceRecord], files: Sequence[str], findings: tuple[Finding, ...]
) -> tuple[pl.DataFrame, tuple[Finding, ...]]:
    """An empty frame with the columns common to all slices, in types that fit them all; clashes are reported."""
    frames = []
    for number, (record, file) in enumerate(zip(records, files, strict=True)):
        header = header_of(work, number, record)
        if header is not None:
            frames.append((file, header.drop(FILE)))
    if not frames:
        raise UsageError("none of the files has any rows; check the source")
    found = Findings()
    table = joined(frames, ColumnMap(), frozenset(), found)
    different: dict[tuple[str, str | None, str | None], Finding] = {}
    for finding in found.sorted():
        different.setdefault((finding.rule, finding.file, finding.column), finding)
    require_usable(different.values())
    return table.frame, merge(findings, tuple(different.values()))


def _refuse_guesses(records: Sequence[SliceRecord]) -> None:
    """Refuse columns that reading in memory would convert, because that requires looking at all rows."""
    for name in sorted({name for record in records for name in record.guessed}):
        if all(name in record.guessed for record in records if name in record.present):
            raise UsageError(
                f"column {name!r} holds formatted numbers, dates or yes/no words as text, which a lake does not "
                f"convert: write the column as numbers (for dates, days since something), or leave it out with "
                f"--ignore {name}"
            )


def _whole(work: Path, parts: Sequence[PartRecord]) -> bool:
    """Whether all parts exist with their recorded sizes."""
    with suppress(OSError):
        return all(part_path(work, number).stat().st_size == part.bytes for number, part in enumerate(parts))
    return False


def _named(work: Path, parts: Sequence[PartRecord]) -> tuple[LakePart, ...]:
    return tuple(
        LakePart(number, str(part_path(work, number).absolute()), part.rows) for number, part in enumerate(parts)
    )


def _settled(path: Path) -> None:
    """Sync a file to disk; doing this for all files at the end takes little time."""
    with path.open("rb") as file, suppress(OSError):
        os.fsync(file.fileno())


def _forget(work: Path) -> None:
    """Remove the slices of a refused source; once corrected, the files are different ones."""
    for name in ("slices", "parts"):
        shutil.rmtree(work / name, ignore_errors=True)
    (work / "asked.json").unlink(missing_ok=True)


def _power(size: int, unit: int, least: int, most: int) -> int:
    """The power of two, within bounds, that divides `size` into pieces of at most `unit`."""
    return min(max(1 << max(-(-size // unit) - 1, 0).bit_length(), least), most)


def _refuse_inside(work: Path, inputs: tuple[Input, ...]) -> None:
    """Refuse inputs inside the work folder, which would be mixed up with its parts or removed with them."""
    here = work.absolute()
    for each in inputs:
        if here in Path(each.place).parents:
            raise UsageError(f"{work}: contains the input {each.name}; choose another work folder")


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Within the block, no other process works in the folder."""
    with writing(work):
        work.mkdir(parents=True, exist_ok=True)
    try:
        with locked(work, patience=2.0):
            yield
    except OSError as error:
        if "another process" not in str(error):
            raise
        raise UsageError(
            f"{work}: another process is using this folder; wait for it to end, or choose another"
        ) from None


# Two passes: every slice is divided by user, then every part is assembled from the slices.
#
# The bucket of a user depends only on the user's id, or on the id of the cluster. Sums are taken bucket by bucket in
# order, and a part is a file of consecutive buckets, so any number of parts gives the same sums, to the last bit.


def slice_path(folder: Path, number: int) -> Path:
    """The file of a divided slice; its record is next to it."""
    return folder / "slices" / f"slice-{number:06d}.rows"


def part_path(folder: Path, number: int) -> Path:
    """The file of a part; its record is next to it."""
    return folder / "parts" / f"part-{number:06d}.parquet"


def key_buckets(keys: KeyArray, buckets: int) -> NDArray[np.uint32]:
    """The bucket of each key, [rows]."""
    return (fraction(keys, "partition", 0) * buckets).astype(np.uint32)


def buckets_of(users: pl.Series, buckets: int) -> NDArray[np.uint32]:
    """The bucket of each row, [rows]; rows without a user are in the first."""
    ids = read_ids(users)
    if ids is None:
        return np.zeros(len(users), dtype=np.uint32)
    values = ids.usable
    if values.dtype == pl.Int64 and not values.null_count():
        return key_buckets(user_keys(values), buckets)
    # Hash each distinct text once.
    different = values.drop_nulls().unique()
    place = key_buckets(user_keys(different), buckets)
    return values.replace_strict(different, place, default=0, return_dtype=pl.UInt32).to_numpy()


@dataclass(frozen=True)
class Divide:
    """The first pass: splits the rows of a slice by part, into one file with a table for each part."""

    folder: Path
    reader: Reader
    parts: int
    buckets: int

    def __call__(self, part: Slice) -> SliceRecord:
        """Divide a slice, unless that was done before."""
        path = slice_path(self.folder, part.number)
        known = read_record(path.with_suffix(".json"), SliceRecord)
        if known is not None and _is_written(path, known.offsets[-1]) and zlib.crc32(path.read_bytes()) == known.check:
            return known
        findings = Findings()
        read = self.reader.read(part, findings)
        found = tuple(finding.as_dict() for finding in findings.sorted())
        if read is None:
            record = SliceRecord(0, (0,) * (self.parts + 1), zlib.crc32(b""), False, found, 0, (), (), ())
            _write(path, b"")
        else:
            offsets, check = self._write(path, read)
            said = (read.filled, read.guessed, read.present, read.episodes)
            record = SliceRecord(len(read.frame), offsets, check, read.whole_ids, found, *said)
        write_record(path.with_suffix(".json"), record)
        return record

    def _write(self, path: Path, read: Read) -> tuple[tuple[int, ...], int]:
        frame = read.frame
        place, cluster = np.zeros(len(frame), np.uint32), self.reader.cluster
        if cluster is not None and {cluster, "user"} <= set(frame.columns):
            place = key_buckets(cluster_keys(column(frame, cluster), frame["user"]), self.buckets)
        elif "user" in frame.columns:
            place = buckets_of(frame["user"], self.buckets)
        place = place // np.uint32(self.buckets // self.parts)
        # 16-bit numbers sort several times faster, and there are never more parts than they can count.
        order = np.argsort(place.astype(np.uint16), kind="stable")
        frame = frame[order]
        edges = np.searchsorted(place[order], np.arange(self.parts + 1))
        room = io.BytesIO()
        _put(frame.head(0), room)
        offsets = [room.tell()]
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if last > first:
                _put(frame[first:last], room)
            offsets.append(room.tell())
        _write(path, room.getbuffer())
        return tuple(offsets), zlib.crc32(room.getbuffer())


@dataclass(frozen=True)
class Gather:
    """The second pass: collects the rows of a part from all slices, in the order of the inputs."""

    folder: Path
    records: tuple[SliceRecord, ...]
    header: pl.DataFrame
    """An empty frame with the columns of parts, in their types."""

    def __call__(self, number: int) -> PartRecord:
        """Assemble a part, unless that was done before."""
        path = part_path(self.folder, number)
        known = read_record(path.with_suffix(".json"), PartRecord)
        if known is not None and _is_written(path, known.bytes) and _sha256(path.read_bytes()) == known.sha256:
            return known
        pieces = [
            _taken(slice_path(self.folder, place), record.offsets[number], record.offsets[number + 1])
            for place, record in enumerate(self.records)
            if record.offsets[number + 1] > record.offsets[number]
        ]
        wanted = dict(self.header.schema)
        frames = [taken(piece, wanted).cast(wanted) for piece in pieces]  # type: ignore[arg-type]
        frame = pl.concat(frames, rechunk=True) if frames else self.header
        room = io.BytesIO()
        frame.write_parquet(room, compression="lz4", statistics=False)
        content = room.getbuffer()
        _write(path, content)
        record = PartRecord(len(frame), len(content), _sha256(content))
        write_record(path.with_suffix(".json"), record)
        return record


def header_of(folder: Path, number: int, record: SliceRecord) -> pl.DataFrame | None:
    """An empty frame with a slice's columns, in their types; None if the slice could not be read."""
    if not record.offsets[0]:
        return None
    return _taken(slice_path(folder, number), 0, record.offsets[0])


def _is_written(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def _put(frame: pl.DataFrame, room: io.BytesIO) -> None:
    # Each table is a complete Parquet file, so that it can be read without the others.
    whole = io.BytesIO()
    frame.write_parquet(whole, compression="lz4", statistics=False)
    room.write(whole.getbuffer())


def _taken(path: Path, first: int, last: int) -> pl.DataFrame:
    try:
        with path.open("rb") as file:
            file.seek(first)
            return pl.read_parquet(io.BytesIO(file.read(last - first)))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UsageError(
            f"{path}: cannot be read ({error}); remove the work folder and run again: the inputs are unchanged"
        ) from None


def _write(path: Path, content: bytes | memoryview) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=False) as file:
        file.write(content)
