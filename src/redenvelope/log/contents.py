"""The bytes of a text file: what they are by how they begin, unpacked no further than there is room for."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from redenvelope.log.findings import Findings
from redenvelope.log.limits import MOST_UNPACKED, TEXT_MEMORY, UNPACKED_AT_EASE, amount_of_memory, memory_lacks

__all__ = ["has_room", "held_kind", "text_bytes"]

_CHUNK = 1 << 22
_GZIP = b"\x1f\x8b"
_BEGINNINGS = {
    b"PAR1": "parquet",
    b"\x28\xb5\x2f\xfd": "a file packed by zstd",
    b"BZh91AY&SY": "a file packed by bzip2",
    b"\xfd7zXZ": "a file packed by xz",
    b"PK\x03\x04": "a zip archive or a workbook",
    b"7z\xbc\xaf": "a 7z archive",
    b"ARROW1": "an Arrow file",
    b"SQLite format 3": "a database",
    b"\xd0\xcf\x11\xe0": "a workbook of old",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}


def held_kind(head: bytes) -> str | None:
    """What a file holds that begins so, if it is none of the texts that are read here."""
    return next((kind for begin, kind in _BEGINNINGS.items() if head.startswith(begin)), None)


def has_room(needed: int, file: str, findings: Findings) -> bool:
    """Whether there is so much memory; a file that does not fit is reported before it is read."""
    left = memory_lacks(needed)
    if left is not None:
        findings.add("file_too_large", file=file, needed=amount_of_memory(needed), left=amount_of_memory(left))
    return left is None


def text_bytes(path: Path, file: str, findings: Findings) -> bytes | None:
    """The content of a text file, unpacked if it is gzip; None with a finding where it cannot be had."""
    try:
        size = path.stat().st_size
        if not has_room(size * TEXT_MEMORY, file, findings):
            return None
        content = path.read_bytes()
    except OSError as error:
        findings.add("file_unreadable", file=file, reason=error.strerror or error)
        return None
    if content.startswith(_GZIP) or (content and path.name.lower().endswith(".gz")):
        unpacked = _unpacked(content, file, findings)
        if unpacked is None:
            return None
        content = unpacked
    kind = held_kind(content[:16])
    if kind is not None:
        findings.add("file_kind", file=file, held=kind, expected="text in UTF-8")
        return None
    return content


def _unpacked(packed: bytes, file: str, findings: Findings) -> bytes | None:
    parts, size, checked = [], 0, UNPACKED_AT_EASE
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            while part := stream.read(_CHUNK):
                parts.append(part)
                size += len(part)
                if size <= checked:
                    continue
                if size > MOST_UNPACKED * len(packed):
                    findings.add("file_unpacks", file=file, packed=amount_of_memory(len(packed)), times=MOST_UNPACKED)
                    return None
                if not has_room(size * TEXT_MEMORY, file, findings):
                    return None
                checked = size + UNPACKED_AT_EASE
    except (OSError, EOFError, zlib.error) as error:
        findings.add("file_truncated", file=file, reason=error)
        return None
    return b"".join(parts) if has_room(size * TEXT_MEMORY, file, findings) else None
