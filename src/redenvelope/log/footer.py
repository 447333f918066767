"""How large the columns of a parquet file are when unpacked, as the description at its end says.

The table library does not tell, and only reading would: the description is parsed here as far as that (it is written in
Thrift's compact protocol).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["stored_bytes"]

_LARGEST_FOOTER = 1 << 22  # a longer one takes long to parse; its file is large by itself
_ROW_GROUPS, _COLUMNS, _DESCRIBED, _PATH, _BYTES = 4, 1, 3, 3, 6  # numbers of the fields, from the outside in
_DEEPEST = 20
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12


def stored_bytes(path: Path) -> dict[str, int]:
    """Column -> bytes of its values, unpacked; nothing where the description is not understood."""
    try:
        with path.open("rb") as file:
            file.seek(-8, 2)
            length = int.from_bytes(file.read(4), "little")
            if not 0 < length <= _LARGEST_FOOTER:
                return {}
            file.seek(-8 - length, 2)
            return _Reader(file.read(length)).column_bytes()
    except (OSError, ValueError, IndexError, RecursionError):
        return {}


class _Reader:
    """Walks over a description, value by value."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, 0

    def column_bytes(self) -> dict[str, int]:
        """What the columns of all row groups hold, by the first part of their paths."""
        total: dict[str, int] = {}
        for _ in self._structs(_ROW_GROUPS):
            for _ in self._structs(_COLUMNS):
                for field, kind in self._fields():
                    if field == _DESCRIBED and kind == _STRUCT:
                        name, size = self._column()
                        total[name] = total.get(name, 0) + size
                    else:
                        self._skip(kind, 0)
        return total

    def _structs(self, wanted: int) -> Iterator[None]:
        """Each struct of a list that is a field of the struct here; it is read before the next."""
        for field, kind in self._fields():
            if field == wanted and kind in _LISTS:
                count, _ = self._list_header()
                for _ in range(count):
                    yield
            else:
                self._skip(kind, 0)

    def _column(self) -> tuple[str, int]:
        name, size = "", 0
        for field, kind in self._fields():
            if field == _PATH and kind in _LISTS:
                count, _ = self._list_header()
                parts = [self._text() for _ in range(count)]
                name = parts[0]
            elif field == _BYTES and kind in _INTEGERS:
                size = max(self._integer(), 0)
            else:
                self._skip(kind, 0)
        return name, size

    def _text(self) -> str:
        length = self._varint()
        self._place += length
        return self._content[self._place - length : self._place].decode("utf-8", "replace")

    def _fields(self) -> Iterator[tuple[int, int]]:
        """Number and kind of each field of a struct; the value is read, or skipped, before the next."""
        field = 0
        while (head := self._byte()) != 0:
            kind = head & 0x0F
            field = field + (head >> 4) if head >> 4 else self._integer()
            yield field, kind

    def _byte(self) -> int:
        self._place += 1
        return self._content[self._place - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number without an end")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _list_header(self) -> tuple[int, int]:
        head = self._byte()
        return (self._varint() if head >> 4 == 15 else head >> 4), head & 0x0F

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        if kind in _BOOLEANS:
            return
        if kind == _BYTE:
            self._place += 1
        elif kind in _INTEGERS:
            self._varint()
        elif kind == _DOUBLE:
            self._place += 8
        elif kind == _BINARY:
            length = self._varint()
            self._place += length
        elif kind in _LISTS:
            count, held = self._list_header()
            for _ in range(count):
                # In a list, a truth is a byte of its own.
                self._skip(_BYTE if held in _BOOLEANS else held, depth + 1)
        elif kind == _STRUCT:
            for _, held in self._fields():
                self._skip(held, depth + 1)
        else:
            raise ValueError("a kind that no description holds")
