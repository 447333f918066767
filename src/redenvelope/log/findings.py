"""Findings: every violation of a rule, with its place and its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from redenvelope.errors import LogError
from redenvelope.log.rules import RULES
from redenvelope.wording import Count, for_reader

EXAMPLES = 5
"""How many examples a finding shows."""

_LONGEST_LINE = 2_000  # of a line to paste, which is of no use if it is cut

IN_MEMORY = "table"
"""What findings call a table in memory."""


class Severity(StrEnum):
    """What a finding means for the log."""

    ERROR = "error"
    """The log is refused."""
    WARNING = "warning"
    """The log is used, and the finding reported."""
    REPAIRED = "repaired"
    """The log was repaired, and the repairs counted."""


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
        where = place(self.file, self.column, self.rows)
        shown = f" (e.g. {', '.join(self.examples)})" if self.examples else ""
        named = f"{self.severity}: {self.rule}{f' [{where}]' if where else ''}"
        return for_reader(f"{named}: {self.message}{shown} → {self.remedy}")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"severity": str(self.severity)}


def place(file: str | None, column: str | None, rows: Sequence[int]) -> str:
    """Where a finding is, for people: lines of a text file as a spreadsheet numbers them, rows of any other table."""
    parts = [part for part in (file and readable(file), f"column {readable(column)}" if column else None) if part]
    if rows:
        # The header is line 1 of a text file; parquet, databases and tables in memory have no such line.
        in_text = file is not None and file != IN_MEMORY and not file.lower().endswith((".parquet", ".pq"))
        in_text = in_text and "://" not in str(file)
        shown = ", ".join(str(row + 1 if in_text else row) for row in rows)
        parts.append(f"{'line' if in_text else 'row'}{'s' if len(rows) > 1 else ''} {shown}")
    return ", ".join(parts)


def readable(text: str, most: int = 300) -> str:
    """Text that can be shown on a line: no longer than so, and without what moves a cursor or cannot be printed."""
    cut = text if len(text) <= most else text[: most - 3] + "…"
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in cut)


class Findings:
    """Collects findings while a log is read; reading never stops at the first one."""

    def __init__(self, known: Iterable[Finding] = ()) -> None:
        self._found = list(known)

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
        said = {
            name: readable(value, _LONGEST_LINE if name == "guess" else 300) if isinstance(value, str) else value
            for name, value in details.items()
        }
        said["column"] = None if column is None else readable(column)
        shown = [readable(str(example), 60) for example in examples]
        self._found.append(
            Finding(
                rule=rule,
                severity=Severity(known.severity),
                message=known.message.format(count=Count(count), **said),
                remedy=known.remedy.format(count=Count(count), **said),
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
        """All findings, errors first, each class in the order found.

        Where a table lacks several roles, any of its columns may be one, and nothing is said of them as features.
        """
        lacking = any(finding.rule == "columns_missing" for finding in self._found)
        return merge(tuple(each for each in self._found if not (lacking and each.rule.startswith("feature_"))))


def require_usable(findings: Iterable[Finding]) -> None:
    """Raise a `LogError` with every error among the findings, if there is one."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise LogError(errors)


def merge(*groups: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Findings of several passes as one list, errors first."""
    order = list(Severity)
    return tuple(
        sorted((finding for group in groups for finding in group), key=lambda item: order.index(item.severity))
    )


# Where a rule is violated: how often, and the first few places with their values.


@dataclass(frozen=True, order=True)
class Place:
    """One row that breaks a rule."""

    order: tuple[int | str, ...]
    """What "first" goes by; of the same length and types for all places of a rule."""
    file: int
    row: int
    """In its file, from 1."""
    value: str


@dataclass(frozen=True)
class Places:
    """All rows that break a rule in one column."""

    count: int
    first: tuple[Place, ...]
    """At most `EXAMPLES`, in order."""

    def merge(self, other: Places) -> Places:
        """See Mergeable; the same whatever the parts were."""
        return Places(self.count + other.count, tuple(sorted((*self.first, *other.first))[:EXAMPLES]))


Found = Mapping[tuple[str, str], Places]
"""(rule, column) -> where it is broken."""


def merge_found(one: Found, other: Found) -> Found:
    """What two parts found, rule by rule."""
    shared = {key: places.merge(other[key]) for key, places in one.items() if key in other}
    return {**one, **other, **shared}


def report_places(
    findings: Findings, files: Sequence[str], rule: str, column: str, places: Places | None, **details: object
) -> None:
    """Report a rule broken at some places, if any: all are counted, those in the first file are named."""
    if places is None:
        return
    here = [place for place in places.first if place.file == places.first[0].file]
    findings.add(
        rule,
        file=files[here[0].file],
        column=column,
        count=places.count,
        rows=[place.row for place in here],
        examples=[place.value for place in here],
        **details,
    )
