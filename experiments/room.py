"""Whether a folder may be written to: asked first, so this loads nothing heavy."""

from __future__ import annotations

import json
from pathlib import Path

from redenvelope.errors import UsageError
from redenvelope.files import read_regular, require_writable

__all__ = ["MANIFEST", "aside", "listed", "require_room"]

MANIFEST = "reproduce.json"
"""Names the files that were written, so that a later run may replace them and nothing else."""


def require_room(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier run's files; worth asking before minutes of work."""
    require_writable(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder}: is a file; choose a folder")
    known = {MANIFEST, *listed(folder)}
    known |= {aside(name) for name in known}  # of a run that was killed
    strange = sorted(path.name for path in folder.iterdir() if path.name not in known)
    if strange:
        raise UsageError(f"{folder}: holds {strange[0]}, which reproduce did not write; choose another folder")


def listed(folder: Path) -> set[str]:
    """The files that an earlier run says it wrote; a manifest may be anybody's, so none outside of the folder."""
    try:
        manifest = json.loads(read_regular(folder / MANIFEST, 2**24))
        own = {"package", "complete", "settings", "files"} <= manifest.keys()
        names = manifest["files"] if own else ()
        return {name for name in names if isinstance(name, str) and Path(name).name == name and _written(name)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


def _written(name: str) -> bool:
    """Whether a file may be one of ours."""
    return Path(name).suffix in (".csv", ".md", ".png", ".html")


def aside(name: str) -> str:
    """What a file is called until it is whole."""
    return f".{name}.part"
