"""Decisions for a part of a lake: written whole or not at all, and remembered, so that nobody is decided for twice."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from redenvelope.chance import user_keys
from redenvelope.errors import ModelError
from redenvelope.files import replacing
from redenvelope.lake.lake import LakePart
from redenvelope.lake.records import read_record, write_record
from redenvelope.log.exact import exact_sums
from redenvelope.log.findings import Finding
from redenvelope.log.ids import serving_ids
from redenvelope.log.named import without
from redenvelope.log.serving_frame import serving_steps
from redenvelope.log.tables import FILE, ROW
from redenvelope.plan.decisions import expected_column
from redenvelope.plan.folder import PackedPlan
from redenvelope.plan.plan import Plan
from redenvelope.plan.users_table import PAST_ROLES, ROWS_AT_ONCE

__all__ = ["DecidePart", "DecidedPart", "decided_path", "known_part"]


@dataclass(frozen=True)
class DecidedPart:
    """What was decided in a part; sums are exact, so that parts add up to the same whatever they are."""

    file: str
    """Empty where the part has no users."""
    rows: int
    bytes: int
    sha256: str
    sums: dict[str, str]
    """Column -> the sum of its expectations in units of 2^−1200, as digits."""
    actions: dict[str, int]
    findings: tuple[dict[str, Any], ...]


def decided_path(out: Path, number: int, parts: int) -> Path:
    """Where the decisions of a part are written."""
    return out / f"decisions-{number:05d}-of-{parts:05d}.parquet"


def known_part(out: Path, number: int, parts: int) -> DecidedPart | None:
    """What was decided in a part before; None where it is still to do."""
    known = read_record(_record_path(out, number), DecidedPart)
    path = decided_path(out, number, parts)
    if known is None or (known.rows and not (path.is_file() and path.stat().st_size == known.bytes)):
        return None
    return known


@dataclass(frozen=True)
class DecidePart:
    """Decides for the users of a part, and writes what was decided."""

    plan: PackedPlan
    out: Path
    parts: int
    seed: int
    files: tuple[str, ...]
    """The inputs by name."""
    past: tuple[LakePart, ...] | None = None
    """The users' earlier steps, in parts of the same users."""

    def __call__(self, part: LakePart) -> DecidedPart:
        """Decide for a part."""
        plan, path = self.plan.plan, decided_path(self.out, part.number, self.parts)
        frame = part.frame()
        if frame.is_empty():
            return self._remembered(part.number, DecidedPart("", 0, 0, "", {}, {}, ()))
        self._refuse_twice(frame, plan)
        past = None if self.past is None else _named_past(self.past[part.number].frame())
        decided, found = [], dict[tuple[str, str | None], Finding]()
        for rows in frame.iter_slices(ROWS_AT_ONCE):
            decisions, findings = plan.allocate(without(rows, {FILE, ROW}), self.seed, past)
            decided.append(decisions)
            for finding in findings:
                found.setdefault((finding.rule, finding.column), self._placed(finding, rows))
        together = pl.concat(decided)
        room = io.BytesIO()
        together.write_parquet(room)
        with replacing(path) as file:
            file.write(room.getbuffer())
        digest = hashlib.sha256(room.getbuffer()).hexdigest()
        counts = {str(label): count for label, count in together["action"].value_counts().iter_rows()}
        plain = tuple(finding.as_dict() for finding in found.values())
        sums = {name: _sum(together[name]) for name in _expectations(plan)}
        record = DecidedPart(path.name, len(together), len(room.getbuffer()), digest, sums, counts, plain)
        return self._remembered(part.number, record)

    def _remembered(self, number: int, record: DecidedPart) -> DecidedPart:
        # After the decisions: a part with a record is done.
        write_record(_record_path(self.out, number), record)
        return record

    def _placed(self, finding: Finding, rows: pl.DataFrame) -> Finding:
        """The finding, with the rows of the file that its first row is in."""
        if not finding.rows:
            return finding
        places = rows.select(FILE, ROW)[[row - 1 for row in finding.rows]]
        here = places.filter(pl.col(FILE) == places[FILE][0])
        return replace(finding, file=self.files[places[FILE][0]], rows=tuple(here[ROW].to_list()))

    def _refuse_twice(self, frame: pl.DataFrame, plan: Plan) -> None:
        """Refuse users who stand twice at a step, in whatever files: they would be decided for twice."""
        encoder = plan.policy.encoder
        if not {"user", "step"} <= set(frame.columns):
            return  # said when it is decided
        key = user_keys(serving_ids(frame["user"]))
        step = serving_steps(frame, encoder.first_step, encoder.first_step + encoder.campaign_steps - 1, 0)
        order = np.lexsort((step, key))
        again = np.flatnonzero((np.diff(key[order]) == 0) & (np.diff(step[order]) == 0))
        if len(again):
            one, other = (self._words(frame, int(order[place])) for place in (again[0], again[0] + 1))
            raise ModelError(
                f"{one} and {other} share a user and step ({len(again):,} row(s) of this part repeat another); keep "
                "one row for each, or the user would be decided for twice"
            )

    def _words(self, frame: pl.DataFrame, row: int) -> str:
        return f"row {frame[ROW][row]:,} of {self.files[frame[FILE][row]]}"


def _record_path(out: Path, number: int) -> Path:
    return out / ".decided" / f"{number:05d}.json"


def _named_past(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(name for name in frame.columns if name in PAST_ROLES)


def _expectations(plan: Plan) -> tuple[str, ...]:
    several = tuple(expected_column(name) for name in plan.policy.several_budgets)
    return ("expected_reward", "expected_cost", *several)


def _sum(values: pl.Series) -> str:
    return str(exact_sums(values.to_numpy(), np.zeros(len(values), np.int32), 1)[0])
