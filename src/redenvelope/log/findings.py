"""Findings: every violation of a rule, with its place and its remedy.

Reading collects findings instead of stopping at the first; `require_usable` raises all errors together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from redenvelope.errors import LogError
from redenvelope.log.rules import RULES
from redenvelope.wording import Count, for_reader

EXAMPLES = 5
"""The most examples that a finding shows."""

_LONGEST_LINE = 2_000  # characters of a command line to paste, which would be useless if cut

IN_MEMORY = "table"
"""The name of a table in memory in findings."""


class Severity(StrEnum):
    """The consequence of a finding for the log."""

    ERROR = "error"
    """The log is refused."""
    WARNING = "warning"
    """The log is used, and the finding reported."""
    REPAIRED = "repaired"
    """The log was repaired, and the repairs counted."""


@dataclass(frozen=True)
class Finding:
    """A violated rule, with all its violations in one column of one file (or of all files)."""

    rule: str
    severity: Severity
    message: str
    remedy: str
    file: str | None = None
    column: str | None = None
    count: int = 0
    """Number of affected rows, columns or files."""
    rows: tuple[int, ...] = ()
    """The first affected rows, counted from 1 after the header, in `file`."""
    examples: tuple[str, ...] = ()
    """The first affected values."""

    def __str__(self) -> str:
        where = place(self.file, self.column, self.rows)
        shown = f" (e.g. {', '.join(dict.fromkeys(self.examples))})" if self.examples else ""
        named = f"{self.severity}: {self.rule}{f' [{where}]' if where else ''}"
        return for_reader(f"{named}: {self.message}{shown} → {self.remedy}")

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain data for JSON."""
        return asdict(self) | {"severity": str(self.severity)}


def place(file: str | None, column: str | None, rows: Sequence[int]) -> str:
    """The place of a finding as text: line numbers for text files, as in a spreadsheet, else row numbers."""
    parts = [part for part in (file and readable(file), f"column {readable(column)}" if column else None) if part]
    if rows:
        # The header is line 1 of a text file; parquet, databases and tables in memory have none.
        in_text = file is not None and file != IN_MEMORY and not file.lower().endswith((".parquet", ".pq"))
        in_text = in_text and "://" not in str(file)
        shown = ", ".join(str(row + 1 if in_text else row) for row in rows)
        parts.append(f"{'line' if in_text else 'row'}{'s' if len(rows) > 1 else ''} {shown}")
    return ", ".join(parts)


def readable(text: str, most: int = 300) -> str:
    """Text that fits on a line: at most `most` characters, with unprintable ones escaped."""
    cut = text if len(text) <= most else text[: most - 3] + "…"
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in cut)


class Findings:
    """Collects findings while a log is read."""

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
        """Record a violated rule; `details` fill the placeholders of its message and remedy."""
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
        """All findings, errors first, otherwise in the order in which they were found.

        If a table lacks several roles, findings about features are dropped, because any column may turn out to be a
        role.
        """
        lacking = any(finding.rule == "columns_missing" for finding in self._found)
        return merge(tuple(each for each in self._found if not (lacking and each.rule.startswith("feature_"))))


def require_usable(findings: Iterable[Finding]) -> None:
    """Raise a `LogError` with every error among the findings, if there is one."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise LogError(errors)


def merge(*groups: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings of several passes as one list, errors first."""
    order = list(Severity)
    return tuple(
        sorted((finding for group in groups for finding in group), key=lambda item: order.index(item.severity))
    )


# Where a rule is violated: the number of rows, and the first few of them with their values.


@dataclass(frozen=True, order=True)
class Place:
    """A row that violates a rule."""

    order: tuple[int | str, ...]
    """The sort key of "first"; its length and types are the same for all places of a rule."""
    file: int
    row: int
    """The row number in its file, from 1."""
    value: str


@dataclass(frozen=True)
class Places:
    """All rows that violate a rule in one column."""

    count: int
    first: tuple[Place, ...]
    """At most `EXAMPLES`, in order."""

    def merge(self, other: Places) -> Places:
        """See Mergeable; the result does not depend on the parts."""
        return Places(self.count + other.count, tuple(sorted((*self.first, *other.first))[:EXAMPLES]))


Found = Mapping[tuple[str, str], Places]
"""(rule, column) -> the places of the violations."""


def merge_found(one: Found, other: Found) -> Found:
    """The violations found in two parts, merged by rule and column."""
    shared = {key: places.merge(other[key]) for key, places in one.items() if key in other}
    return {**one, **other, **shared}


def report_places(
    findings: Findings, files: Sequence[str], rule: str, column: str, places: Places | None, **details: object
) -> None:
    """Report a rule with violations, if there are any: counts all, and names those in the first file."""
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
