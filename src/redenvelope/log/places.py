"""Where a rule is broken: how often, and the first few places with what stands there. Places of parts add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from redenvelope.log.findings import EXAMPLES, Findings

__all__ = ["Found", "Place", "Places", "merge_found", "merge_places", "report_places"]


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


Found = Mapping[tuple[str, str], Places]
"""(rule, column) -> where it is broken."""


def merge_places(parts: Iterable[Places]) -> Places:
    """The places of several parts of the same rows, the same whatever the parts were."""
    known = tuple(parts)
    first = sorted(place for part in known for place in part.first)
    return Places(sum(part.count for part in known), tuple(first[:EXAMPLES]))


def merge_found(parts: Iterable[Found]) -> dict[tuple[str, str], Places]:
    """What several parts found, rule by rule."""
    together: dict[tuple[str, str], list[Places]] = {}
    for part in parts:
        for key, places in part.items():
            together.setdefault(key, []).append(places)
    return {key: merge_places(places) for key, places in together.items()}


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
