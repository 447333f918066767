"""What a lake is made of: files or addresses, and slices of them that fit into memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import polars as pl

from redenvelope.errors import LogError, UsageError
from redenvelope.log.columnar import is_parquet, read_failures, scan_file
from redenvelope.log.findings import Findings, Severity
from redenvelope.log.sources import files_of

__all__ = ["ROWS_AT_ONCE", "Input", "Slice", "inputs_of", "is_address", "slices_of"]

ROWS_AT_ONCE = 1_000_000
"""Of a table that is read in slices."""
_BYTES_A_ROW = 40  # of packed tables, about: what an address does not say of its size


@dataclass(frozen=True)
class Input:
    """One file, or one address with all that it stands for; the size and time tell whether it is the same later."""

    place: str
    name: str
    """What findings call it."""
    size: int
    """Bytes; of an address about, by its rows."""
    modified: int
    """Nanoseconds since 1970; 0 of an address."""
    rows: int | None
    """None of text, which is counted when it is read."""
    folders: Mapping[str, str | date | None] = field(default_factory=dict)
    """Column -> value, from folders named column=value."""

    @property
    def record(self) -> dict[str, str | int]:
        """What a manifest keeps."""
        return {"place": self.place, "bytes": self.size, "modified": self.modified}


@dataclass(frozen=True)
class Slice:
    """Some rows of an input."""

    number: int
    """Among all slices of a lake."""
    file: int
    """The number of the input."""
    input: Input
    first: int = 0
    most: int | None = None
    """None is all rows."""


def is_address(source: str | Path) -> bool:
    """Whether a source is an address of an object store, such as s3://bucket/log/*.parquet, instead of a path."""
    return "://" in str(source)


def inputs_of(source: str | Path) -> tuple[Input, ...]:
    """The inputs that a source names, in a fixed order; their headers are read, their rows are not."""
    if is_address(source):
        return (_address(str(source)),)
    found, findings = [], Findings()
    for file in files_of(source):
        rows = None
        if file.is_parquet and is_parquet(file.path, file.name, findings):
            with read_failures(file.path):
                rows = int(scan_file(file.path).select(pl.len()).collect().item())
        facts = file.path.stat()
        place = str(file.path.absolute())
        found.append(Input(place, file.name, facts.st_size, facts.st_mtime_ns, rows, file.partition))
    if findings.refused:
        raise LogError([finding for finding in findings.sorted() if finding.severity is Severity.ERROR])
    return tuple(found)


def slices_of(inputs: tuple[Input, ...], rows_at_once: int = ROWS_AT_ONCE) -> tuple[Slice, ...]:
    """All rows of all inputs, in their order; text is read a file at a time."""
    found: list[Slice] = []
    for file, each in enumerate(inputs):
        if each.rows is None:
            found.append(Slice(len(found), file, each))
            continue
        for first in range(0, max(each.rows, 1), rows_at_once):
            found.append(Slice(len(found), file, each, first, rows_at_once))
    return tuple(found)


def _address(address: str) -> Input:
    try:
        rows = int(pl.scan_parquet(address).select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or ["no answer"])[0]
        raise UsageError(
            f"{address}: cannot be read as parquet ({reason[:300]}); check the address, and that what it needs to be "
            "let in stands where the store's own tools look for it"
        ) from None
    return Input(address, address, rows * _BYTES_A_ROW, 0, rows)
