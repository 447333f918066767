"""Decisions for users whom no memory holds: files in, a folder of files out, a part at a time and each part once.

A run that is stopped goes on where it was; a run that is done does nothing. Inputs are only read.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redenvelope import __version__
from redenvelope.engine.engine import Engine
from redenvelope.engine.local import LocalEngine
from redenvelope.errors import UsageError
from redenvelope.files import require_writable
from redenvelope.lake.inputs import inputs_of, slices_of
from redenvelope.lake.lake import Lake
from redenvelope.lake.pace import paced
from redenvelope.lake.partition import alone, partition
from redenvelope.lake.readers import TableReader, raw_rows
from redenvelope.lake.records import agrees, read_record, write_json
from redenvelope.log.columns import ColumnMap
from redenvelope.log.exact import exact_mean
from redenvelope.log.findings import Finding, Findings
from redenvelope.plain import from_plain
from redenvelope.plan.allocate import AllocationSummary, needed_columns
from redenvelope.plan.decided_parts import DecidedPart, DecidePart, known_part
from redenvelope.plan.decisions import expected_column
from redenvelope.plan.folder import PackedPlan
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import policy_sha256
from redenvelope.plan.users_table import PAST_ROLES, past_renames, serving_renames
from redenvelope.progress import Stages

__all__ = ["MANIFEST", "allocate_folder"]

MANIFEST = "manifest.json"
_FORMAT = 1


def allocate_folder(
    plan: Plan,
    users: str | Path,
    out: Path,
    seed: int = 0,
    columns: ColumnMap | None = None,
    history: str | Path | None = None,
    *,
    engine: Engine | None = None,
    work: Path | None = None,
    parts: int | None = None,
    stages: Stages | None = None,
) -> AllocationSummary:
    """Decide for every row of a folder, a pattern or an address, whatever its size; each user exactly once.

    `out` becomes a folder with a file a part and a manifest. `columns` and `history` are as in `allocate_file`, the
    history of any size too. The users are divided into parts in the folder `work`, which is kept; without, it is one
    inside of `out` that is removed at the end.
    """
    inputs = inputs_of(users)
    if out.is_file() or out.suffix.lower() in (".parquet", ".csv"):
        raise UsageError(f"{out}: decisions for several files are written to a folder; name one, such as decisions")
    require_writable(out / MANIFEST)
    engine, stages, own = engine or LocalEngine(), stages or Stages(), work is None
    work = out / ".work" if work is None else work
    past = history if plan.needs_history else None
    with alone(out):
        asked = {
            "format": _FORMAT,
            "version": __version__,
            "plan": policy_sha256(plan.policy),
            "seed": seed,
            "inputs": [each.record for each in inputs],
            "history": None if past is None else [each.record for each in inputs_of(past)],
            "parts": parts,
        }
        agrees(out / ".asked.json", asked, "decisions")
        lakes = _Lakes(users, past, work, engine, parts, stages)
        decided = _decided(plan, out, seed, columns, lakes)
        summary = _summary(plan, decided)
        if not summary.users:
            raise UsageError(f"{users}: no users to decide for")
        write_json(out / MANIFEST, _manifest(asked, decided, summary))
        if own:
            shutil.rmtree(work, ignore_errors=True)
    return summary


@dataclass(frozen=True)
class _Lakes:
    """The users, and what happened to them before, in parts of the same users."""

    users: str | Path
    past: str | Path | None
    work: Path
    engine: Engine
    parts: int | None
    stages: Stages

    def opened(self, plan: Plan, columns: ColumnMap | None) -> tuple[Lake, Lake | None]:
        """Divided now, or before."""
        wanted = tuple(sorted(needed_columns(plan)))
        reader = TableReader(serving_renames(_names(self.users), plan.columns, columns), wanted)
        lake = partition(self.users, reader, self.work / "users", self.engine, parts=self.parts, stages=self.stages)
        if self.past is None:
            return lake, None
        reader = TableReader(past_renames(_names(self.past), plan.columns), PAST_ROLES)
        place, parts, buckets = self.work / "past", len(lake.parts), lake.notes.buckets
        past = partition(self.past, reader, place, self.engine, parts=parts, buckets=buckets, stages=self.stages)
        return lake, past


def _names(source: str | Path) -> list[str]:
    """The columns of the first of the files."""
    first, findings = slices_of(inputs_of(source), 1)[0], Findings()
    frame = raw_rows(first, frozenset(), findings)
    if frame is None:
        raise UsageError(f"{first.input.place}: cannot be read: {'; '.join(map(str, findings.sorted()))}")
    return frame.columns


def _decided(plan: Plan, out: Path, seed: int, columns: ColumnMap | None, lakes: _Lakes) -> list[DecidedPart]:
    """What was decided in each part, now or before."""
    noted = _noted(out)
    if noted is not None:
        known = [known_part(out, number, noted) for number in range(noted)]
        if all(part is not None for part in known):
            return [part for part in known if part is not None]
    lake, past = lakes.opened(plan, columns)
    count = len(lake.parts)
    done = {number: part for number in range(count) if (part := known_part(out, number, count)) is not None}
    missing = [part for part in lake.parts if part.number not in done]
    decide = DecidePart(
        PackedPlan.of(plan), out.absolute(), count, seed, lake.notes.files, None if past is None else past.parts
    )
    stage, stages = "allocate", lakes.stages
    stages.begin(stage)
    results = paced(stages, stage, lakes.engine.map(decide, missing), len(missing), lambda part: part.rows)
    done |= {part.number: decided for part, decided in zip(missing, results, strict=True)}
    stages.finish(stage, f"{len(missing)} part(s) decided, {count - len(missing)} done before")
    return [done[number] for number in range(count)]


def _noted(out: Path) -> int | None:
    """The number of parts of a run that is done; None where none is."""
    found = read_record(out / MANIFEST, dict[str, Any])
    return None if found is None or not isinstance(found.get("files"), list) else int(found["files_of"])


def _manifest(asked: dict[str, Any], decided: list[DecidedPart], summary: AllocationSummary) -> dict[str, Any]:
    written = [
        {"file": part.file, "rows": part.rows, "bytes": part.bytes, "sha256": part.sha256}
        for part in decided
        if part.rows
    ]
    return asked | {"files_of": len(decided), "files": written} | summary.as_dict()


def _summary(plan: Plan, decided: list[DecidedPart]) -> AllocationSummary:
    """The parts added up."""
    rows = sum(part.rows for part in decided)

    def mean(name: str) -> float:
        return exact_mean(sum(int(part.sums[name]) for part in decided if part.rows), rows)

    actions: Counter[str] = Counter()
    found: dict[tuple[str, str | None], Finding] = {}
    for part in decided:
        actions.update(part.actions)
        for plain in part.findings:
            finding = from_plain(Finding, plain, "a finding")
            found.setdefault((finding.rule, finding.column), finding)
    several = {name: mean(expected_column(name)) for name in plan.policy.several_budgets}
    shown = dict(sorted(actions.items()))
    means = (mean("expected_cost"), mean("expected_reward"))
    return AllocationSummary(rows, *means, shown, tuple(found.values()), several)
