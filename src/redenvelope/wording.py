"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`, `1,200 steps`: the noun's plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Count(int):
    """A number that takes a noun as its format: `{count:row}` is "1 row" or "2 rows"."""

    def __format__(self, form: str) -> str:
        return counted(self, form) if form[-1:].isalpha() and form != "d" else super().__format__(form)
