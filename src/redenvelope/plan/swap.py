"""Putting a finished folder in the place of another: whoever looks finds the one or the other, never none."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

__all__ = ["put_in_place"]

_AT_FOLDER = -100  # AT_FDCWD: paths are relative to the working folder
_EXCHANGE = 2  # RENAME_EXCHANGE


def put_in_place(finished: Path, folder: Path) -> None:
    """Give a finished folder another's name; what stood there is deleted only afterwards.

    Both must be on one file system. Where the system can exchange two names, there is no moment without a folder;
    elsewhere the old one stands aside for that moment, and comes back if the new one cannot take its place.
    """
    if not folder.exists():
        finished.replace(folder)
        return
    if _exchanged(finished, folder):
        shutil.rmtree(finished, ignore_errors=True)
        return
    before = finished.with_name(f"{finished.name}-before")
    folder.replace(before)
    try:
        finished.replace(folder)
    except OSError:
        before.replace(folder)
        raise
    shutil.rmtree(before, ignore_errors=True)


def _exchanged(first: Path, second: Path) -> bool:
    """Whether the two names could be exchanged in one step."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(exchange(_AT_FOLDER, os.fsencode(first), _AT_FOLDER, os.fsencode(second), _EXCHANGE) == 0)
