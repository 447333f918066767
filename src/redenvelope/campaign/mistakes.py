"""Mistakes in a campaign: collected, never only the first, each with its place and a remedy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from redenvelope.errors import UsageError

__all__ = ["Mistake", "refuse"]


class Mistake(NamedTuple):
    """One thing that makes no sense."""

    place: str
    """Where in the campaign, such as `[[rule]] 2, only_where`."""
    message: str
    """What is wrong, and what to do."""

    def inside(self, table: str) -> Mistake:
        """The same, said of an entry of a table such as `[[rule]] 2`."""
        return Mistake(f"{table}, {self.place}" if self.place else table, self.message)

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


def refuse(mistakes: Iterable[Mistake], where: str = "") -> None:
    """Raise a UsageError that says all mistakes, if there are any; `where` names the file."""
    found = [str(mistake) for mistake in mistakes]
    if not found:
        return
    before = f"{where}: " if where else ""
    if len(found) == 1:
        raise UsageError(before + found[0])
    raise UsageError(f"{before}{len(found)} mistakes\n" + "\n".join(f"  {line}" for line in found))
