"""A lake that is divided: parts of whole users, each a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from redenvelope.errors import UsageError
from redenvelope.lake.records import PartRecord
from redenvelope.log.findings import Finding

__all__ = ["Lake", "LakePart", "Notes"]


@dataclass(frozen=True)
class Notes:
    """What is known of a lake once it is divided: its manifest."""

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
    """A part by its name: what travels to whoever works on it."""

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
                f"{self.path}: cannot be read ({reason}); remove the file and start again: it is made anew"
            ) from None


@dataclass(frozen=True)
class Lake:
    """A work folder."""

    folder: Path
    notes: Notes
    parts: tuple[LakePart, ...]
