"""Rows to their users' parts, in two passes: every slice is divided, then every part is put together.

A user's bucket follows from the id alone. Buckets are what is summed, one by one and in their order; a part is a file
of some neighbouring buckets. So however many parts there are, sums come out the same, to the last bit.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.chance import fraction, user_keys
from redenvelope.errors import UsageError
from redenvelope.files import replacing, writing
from redenvelope.lake.inputs import Slice
from redenvelope.lake.readers import Read, Reader
from redenvelope.lake.records import PartRecord, SliceRecord, read_record, write_record
from redenvelope.log.findings import Findings
from redenvelope.log.ids import read_ids
from redenvelope.log.named import taken

__all__ = ["Divide", "Gather", "buckets_of", "header_of", "part_path", "slice_path"]


def slice_path(folder: Path, number: int) -> Path:
    """Where a slice lies once it is divided; its record lies beside it."""
    return folder / "slices" / f"slice-{number:06d}.rows"


def part_path(folder: Path, number: int) -> Path:
    """Where a part lies; its record lies beside it."""
    return folder / "parts" / f"part-{number:06d}.parquet"


def buckets_of(users: pl.Series, buckets: int) -> NDArray[np.uint32]:
    """The bucket of each row, [rows]; rows of nobody are in the first."""
    ids = read_ids(users)
    if ids is None:
        return np.zeros(len(users), dtype=np.uint32)
    values = ids.usable
    if values.dtype == pl.Int64 and not values.null_count():
        return (fraction(user_keys(values), "partition", 0) * buckets).astype(np.uint32)
    # Of text every different id is hashed once.
    different = values.drop_nulls().unique()
    place = (fraction(user_keys(different), "partition", 0) * buckets).astype(np.uint32)
    return values.replace_strict(different, place, default=0, return_dtype=pl.UInt32).to_numpy()


@dataclass(frozen=True)
class Divide:
    """The first pass: a slice's rows by part, one table after the other in one file."""

    folder: Path
    reader: Reader
    parts: int
    buckets: int

    def __call__(self, part: Slice) -> SliceRecord:
        """Divide a slice, unless that is done already."""
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
        place = np.zeros(len(frame), np.uint32)
        if "user" in frame.columns:
            place = buckets_of(frame["user"], self.buckets) // np.uint32(self.buckets // self.parts)
        # Numbers of 16 bits are sorted several times faster; of parts there are never more.
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
    """The second pass: a part's rows from all slices, in the order of the inputs."""

    folder: Path
    records: tuple[SliceRecord, ...]
    header: pl.DataFrame
    """No rows of the columns that parts have, in their types."""

    def __call__(self, number: int) -> PartRecord:
        """Put a part together, unless that is done already."""
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
    """No rows of a slice's columns, in their types; None where the slice could not be read."""
    if not record.offsets[0]:
        return None
    return _taken(slice_path(folder, number), 0, record.offsets[0])


def _is_written(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def _put(frame: pl.DataFrame, room: io.BytesIO) -> None:
    # A table by itself: any of them is read without the others.
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
            f"{path}: cannot be read ({error}); remove the work folder, and start again: the inputs are as they were"
        ) from None


def _write(path: Path, content: bytes | memoryview) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=False) as file:
        file.write(content)
