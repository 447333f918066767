"""From a path to the files behind it: one file, a folder, or a glob."""

from __future__ import annotations

import glob
from pathlib import Path

from redenvelope.errors import UsageError

__all__ = ["files_of"]

_SUFFIXES = (".parquet", ".pq", ".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")


def files_of(source: str | Path) -> list[Path]:
    """The files a source names, in a fixed order; at least one."""
    path = Path(source)
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and _is_table(file)]
        if not files:
            raise UsageError(f"{source}: no table in this folder; expected files ending in {', '.join(_SUFFIXES)}")
        return files
    if path.is_file():
        return [path]
    if glob.has_magic(str(source)):
        files = sorted(Path(match) for match in glob.glob(str(source), recursive=True))  # noqa: PTH207 - the pattern may be absolute
        files = [file for file in files if file.is_file()]
        if not files:
            raise UsageError(f"{source}: no file matches")
        return files
    raise UsageError(f"{source}: no such file or folder")


def _is_table(file: Path) -> bool:
    # Writers leave hidden and underscored marker files (_SUCCESS, .part.crc) beside the parts.
    return file.name.lower().endswith(_SUFFIXES) and not file.name.startswith((".", "_"))
