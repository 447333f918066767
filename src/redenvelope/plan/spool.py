"""Decisions on their way to a file: parts without names on its disk, then the whole in one step."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

import polars as pl
import polars.selectors as cs

from redenvelope.files import nameless, replacing, writing
from redenvelope.log.eligible import BETWEEN

__all__ = ["Spool"]

# Every part is an open file, of which a process may have about a thousand.
_MOST_PARTS = 256


class Spool:
    """Takes tables one after the other; memory holds one of them, and a kill leaves nothing behind."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._parts: list[IO[bytes]] = []
        self._open = ExitStack()

    def __enter__(self) -> Spool:
        with writing(self._out):
            self._out.parent.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def add(self, part: pl.DataFrame) -> None:
        """Keep a table for later."""
        with writing(self._out):
            if len(self._parts) == _MOST_PARTS:
                self._gather()
            part.write_parquet(_path(self._new_part()))

    def finish(self) -> None:
        """Write all of it, in the order in which it came, as Parquet or CSV by the file's ending."""
        with replacing(self._out) as handle:
            whole = self._whole()
            if self._out.suffix.lower() == ".parquet":
                whole.sink_parquet(_path(handle))
            else:
                # Text files have no lists.
                whole.with_columns(cs.list().list.join(BETWEEN)).sink_csv(_path(handle))

    def _new_part(self) -> IO[bytes]:
        self._parts.append(self._open.enter_context(nameless(self._out)))
        return self._parts[-1]

    def _gather(self) -> None:
        """Make one part of all."""
        before, opened = self._whole(), self._open
        self._open, self._parts = ExitStack(), []
        before.sink_parquet(_path(self._new_part()))
        opened.close()

    def _whole(self) -> pl.LazyFrame:
        return pl.scan_parquet([_path(part) for part in self._parts], glob=False)


def _path(handle: IO[bytes]) -> str:
    """A path to an open file, whether it has a name or not."""
    return handle.name if isinstance(handle.name, str) else f"/proc/self/fd/{handle.fileno()}"
