"""Allocation for tables larger than memory: from files to a folder of files, part by part, each part once.

The users (and their earlier steps) are partitioned by user id, `DecidePart` decides for each part on an engine, and a
manifest lists the results. An interrupted run resumes where it stopped; a finished run is not repeated. Inputs are
never changed.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from redenvelope import __version__
from redenvelope.engine.engine import Engine, LocalEngine
from redenvelope.errors import ModelError, UsageError
from redenvelope.files import replacing, require_writable
from redenvelope.lake.inputs import Slice, TableReader, inputs_of, raw_rows
from redenvelope.lake.lake import Lake, LakePart, agrees, paced, read_record, write_json, write_record
from redenvelope.lake.partition import alone, partition
from redenvelope.log.cleaning.ids import find_repeats, marks_of, repeated, serving_ids
from redenvelope.log.columns import HOLDOUT, ColumnMap, without
from redenvelope.log.encoding.table import serving_steps
from redenvelope.log.findings import Finding, Findings
from redenvelope.log.schema.statistics import exact_mean, exact_sums
from redenvelope.log.tables import FILE, ROW
from redenvelope.plan.allocate import (
    PACKING,
    PAST_ROLES,
    ROWS_AT_ONCE,
    AllocationSummary,
    Spool,
    needed_columns,
    past_renames,
    serving_renames,
)
from redenvelope.plan.decide import decide_part, expected_column
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import policy_sha256
from redenvelope.plan.storage import PackedPlan
from redenvelope.progress import Stages
from redenvelope.serialization import from_plain
from redenvelope.wording import counted

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
    """Decide for every row of a folder, a glob or an address of any size, each user exactly once.

    `out` becomes a folder with one file per part and a manifest. `columns` and `history` are as in `allocate_file`, but
    the history may be of any size too. The users are partitioned in the folder `work`, which is kept; by default it is
    a folder inside `out` that is removed at the end.
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


def gathered(folder: Path, out: str | Path) -> None:
    """Merge a folder of decisions into one file and remove the folder; the rows keep the order of its parts."""
    parts = sorted(folder.glob("decisions-*.parquet"))
    with Spool(out) as spool:
        for part in parts:
            spool.add(pl.read_parquet(part))
        spool.finish()
    shutil.rmtree(folder)


@dataclass(frozen=True)
class _Lakes:
    """The users and their earlier steps, partitioned alike."""

    users: str | Path
    past: str | Path | None
    work: Path
    engine: Engine
    parts: int | None
    stages: Stages

    def opened(self, plan: Plan, columns: ColumnMap | None) -> tuple[Lake, Lake | None]:
        """Partition both, or open them if that is already done."""
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
    """The columns of the first file."""
    first, findings = inputs_of(source)[0], Findings()
    # A text file's rows are already counted, and it is read whole.
    frame = raw_rows(Slice(0, 0, first, 0, None if first.rows is None else 1), frozenset(), findings)
    if frame is None:
        raise UsageError(f"{first.name}: cannot be read: {'; '.join(map(str, findings.sorted()))}")
    return frame.columns


def _decided(plan: Plan, out: Path, seed: int, columns: ColumnMap | None, lakes: _Lakes) -> list[DecidedPart]:
    """The decisions of each part, made now or in an earlier run."""
    noted = _noted(out)
    if noted is not None:
        known = [known_part(out, number, noted) for number in range(noted)]
        if all(part is not None for part in known):
            return [part for part in known if part is not None]
    lake, past = lakes.opened(plan, columns)
    count = len(lake.parts)
    done = {number: part for number in range(count) if (part := known_part(out, number, count)) is not None}
    missing = [part for part in lake.parts if part.number not in done]
    earlier = None if past is None else past.parts
    renames = serving_renames(_names(lakes.users), plan.columns, columns)
    decide = DecidePart(PackedPlan.of(plan), out.absolute(), count, seed, lake.notes.files, earlier, renames)
    stage, stages = "allocate", lakes.stages
    stages.begin(stage)
    results = paced(stages, stage, lakes.engine.map(decide, missing), len(missing), lambda part: part.rows)
    done |= {part.number: decided for part, decided in zip(missing, results, strict=True)}
    stages.finish(stage, f"{counted(len(missing), 'part')} decided, {count - len(missing)} done before")
    return [done[number] for number in range(count)]


def _noted(out: Path) -> int | None:
    """The number of parts of a finished run; None if there is none."""
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
    """The totals over all parts."""
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
    control = sum(part.held_out for part in decided) if plan.policy.holdout else None
    return AllocationSummary(rows, *means, shown, tuple(found.values()), several, control)


# Decisions for one part: written all or nothing and recorded, so that no user is decided for twice.


@dataclass(frozen=True)
class DecidedPart:
    """The record of a decided part. Sums are exact, so totals do not depend on the partition."""

    file: str
    """Empty if the part has no users."""
    rows: int
    bytes: int
    sha256: str
    sums: dict[str, str]
    """Column -> the exact sum of its expectations in units of 2^−1200, as decimal digits."""
    actions: dict[str, int]
    findings: tuple[dict[str, Any], ...]
    held_out: int = 0
    """Users in the control group."""


def decided_path(out: Path, number: int, parts: int) -> Path:
    """The file of a part's decisions."""
    return out / f"decisions-{number:05d}-of-{parts:05d}.parquet"


def known_part(out: Path, number: int, parts: int) -> DecidedPart | None:
    """The record of a part that is already decided; None if it is still to do."""
    known = read_record(_record_path(out, number), DecidedPart)
    path = decided_path(out, number, parts)
    if known is None or (known.rows and not (path.is_file() and path.stat().st_size == known.bytes)):
        return None
    return known


@dataclass(frozen=True)
class DecidePart:
    """Decides for the users of a part and writes the decisions."""

    plan: PackedPlan
    out: Path
    parts: int
    seed: int
    files: tuple[str, ...]
    """File names of the inputs."""
    past: tuple[LakePart, ...] | None = None
    """The users' earlier steps, partitioned alike."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Column names of the inputs -> roles."""

    def __call__(self, part: LakePart) -> DecidedPart:
        """Decide for one part."""
        plan, path = self.plan.plan, decided_path(self.out, part.number, self.parts)
        frame = part.frame()
        if frame.is_empty():
            return self._remembered(part.number, DecidedPart("", 0, 0, "", {}, {}, ()))
        self._refuse_twice(frame, plan)
        past = None if self.past is None else _named_past(self.past[part.number].frame())
        decided, found = [], dict[tuple[str, str | None], Finding]()
        for rows in frame.iter_slices(ROWS_AT_ONCE):
            decisions, findings = decide_part(plan, without(rows, {FILE, ROW}), self.seed, past)
            decided.append(decisions)
            for finding in findings:
                found.setdefault((finding.rule, finding.column), self._placed(finding, rows))
        together = pl.concat(decided)
        room = io.BytesIO()
        plan.in_own_names(together, self.renames).write_parquet(room, compression_level=PACKING)
        with replacing(path) as file:
            file.write(room.getbuffer())
        digest = hashlib.sha256(room.getbuffer()).hexdigest()
        counts = {str(label): count for label, count in together["action"].value_counts().iter_rows()}
        plain = tuple(finding.as_dict() for finding in found.values())
        sums = {name: _sum(together[name]) for name in _expectations(plan)}
        held_out = 0 if HOLDOUT not in together.columns else int(together[HOLDOUT].sum())
        record = DecidedPart(path.name, len(together), len(room.getbuffer()), digest, sums, counts, plain, held_out)
        return self._remembered(part.number, record)

    def _remembered(self, number: int, record: DecidedPart) -> DecidedPart:
        # Written after the decisions: a part with a record is done.
        write_record(_record_path(self.out, number), record)
        return record

    def _placed(self, finding: Finding, rows: pl.DataFrame) -> Finding:
        """The finding with row numbers in the input file of its first row."""
        if not finding.rows:
            return finding
        places = rows.select(FILE, ROW)[[row - 1 for row in finding.rows]]
        here = places.filter(pl.col(FILE) == places[FILE][0])
        return replace(finding, file=self.files[places[FILE][0]], rows=tuple(here[ROW].to_list()))

    def _refuse_twice(self, frame: pl.DataFrame, plan: Plan) -> None:
        """Refuse the same user and step twice, in whatever files."""
        encoder = plan.policy.encoder
        if not {"user", "step"} <= set(frame.columns):
            return  # reported when decisions are made
        step = serving_steps(frame, encoder.first_step, encoder.first_step + encoder.campaign_steps - 1)
        rows = pl.DataFrame({"user": serving_ids(frame["user"]), "step": step})
        if len(repeated(marks_of(rows))) and (found := find_repeats(rows.with_row_index("row"))):
            raise ModelError(
                f"{self._words(frame, found.like)} and {self._words(frame, found.row)} share a user and step "
                f"({counted(found.total, 'row')} of this part repeat another); keep one row for each, or the user "
                "would be decided for twice"
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
