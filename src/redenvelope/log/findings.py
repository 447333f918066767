"""What reading a log found: every violation, with its place and its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from redenvelope.log.rules import RULES

__all__ = ["EXAMPLES", "Finding", "Findings", "Severity", "merge"]

EXAMPLES = 5
"""How many examples a finding shows."""


class Severity(StrEnum):
    """What a finding means for the log."""

    ERROR = "error"
    """The log is refused."""
    WARNING = "warning"
    """The log is used, and the finding reported."""
    REPAIRED = "repaired"
    """The log was mended, and the repairs counted."""


@dataclass(frozen=True)
class Finding:
    """One broken rule, everywhere it is broken in one column of one file (or of all files)."""

    rule: str
    severity: Severity
    message: str
    remedy: str
    file: str | None = None
    column: str | None = None
    count: int = 0
    """How many rows, columns or files are concerned."""
    rows: tuple[int, ...] = ()
    """The first rows concerned, counted from 1 after the header, in `file`."""
    examples: tuple[str, ...] = ()
    """The first values concerned."""

    def __str__(self) -> str:
        place = ", ".join(
            part
            for part in (
                self.file,
                f"column {self.column}" if self.column else None,
                f"row{'s' if len(self.rows) > 1 else ''} {', '.join(map(str, self.rows))}" if self.rows else None,
            )
            if part
        )
        shown = f" (e.g. {', '.join(self.examples)})" if self.examples else ""
        return f"{self.severity}: {self.rule}{f' [{place}]' if place else ''}: {self.message}{shown} → {self.remedy}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"severity": str(self.severity)}


class Findings:
    """Collects findings while a log is read; reading never stops at the first one."""

    def __init__(self) -> None:
        self._found: list[Finding] = []

    def add(
        self,
        rule: str,
        *,
        file: str | None = None,
        column: str | None = None,
        count: int = 1,
        rows: Sequence[int] = (),
        examples: Iterable[object] = (),
        **details: object,
    ) -> None:
        """Record a broken rule; `details` fill the placeholders of its sentence."""
        known = RULES[rule]
        shown = []
        for example in examples:
            text = str(example)
            shown.append(text if len(text) <= 60 else text[:57] + "…")
        self._found.append(
            Finding(
                rule=rule,
                severity=Severity(known.severity),
                message=known.message.format(column=column, count=count, **details),
                remedy=known.remedy.format(column=column, count=count, **details),
                file=file,
                column=column,
                count=count,
                rows=tuple(rows[:EXAMPLES]),
                examples=tuple(shown[:EXAMPLES]),
            )
        )

    @property
    def refused(self) -> bool:
        """Whether any finding is an error."""
        return any(finding.severity is Severity.ERROR for finding in self._found)

    def sorted(self) -> tuple[Finding, ...]:
        """All findings, errors first, each class in the order found."""
        return merge(tuple(self._found))


def merge(*groups: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Findings of several passes as one list, errors first."""
    order = list(Severity)
    return tuple(
        sorted((finding for group in groups for finding in group), key=lambda item: order.index(item.severity))
    )
