"""The parts of commands that process tables larger than memory."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from redenvelope.cli.guard import listening
from redenvelope.engine.engine import Engine, engine_named
from redenvelope.errors import LogError, UsageError
from redenvelope.files import cache_folder, is_address
from redenvelope.progress import Progress, Stages

if TYPE_CHECKING:
    from redenvelope.audit.audit import Audit
    from redenvelope.campaign.campaign import Campaign
    from redenvelope.fitting.settings import FitSettings
    from redenvelope.fitting.stage_cache import Cache
    from redenvelope.log.columns import ColumnMap
    from redenvelope.log.findings import Finding
    from redenvelope.plan.allocate import AllocationSummary
    from redenvelope.plan.plan import Plan


class LakeOptions(NamedTuple):
    """Options for processing a lake."""

    work: Path
    engine: Engine
    parts: int | None
    train_users: int | None
    check_users: int | None


class Question(NamedTuple):
    """The arguments of a fit, by name."""

    budget: float | None
    target_reward: float | None
    campaign: Campaign
    audience: int | None
    settings: FitSettings
    progress: Progress
    cache: Cache | None


def lake_options(
    log: str,
    work: Path | None,
    engine: str | None,
    parts: int | None,
    train_users: int | None = None,
    check_users: int | None = None,
) -> LakeOptions | None:
    """The lake options that were given; None if the log is to be read into memory."""
    said = {"--engine": engine, "--parts": parts, "--train-users": train_users, "--check-users": check_users}
    given = [name for name, value in said.items() if value is not None]
    if work is None and not given:
        return None
    work = work or _usual_work(log)
    if work is None:
        raise UsageError(f"{given[0]} is for logs that are divided by user; say in what folder, with --work FOLDER")
    return LakeOptions(work, engine_named(engine or "local"), parts, train_users, check_users)


def _usual_work(log: str, kind: str = "lakes") -> Path | None:
    """A folder in the user's cache for the parts of this log; None without a cache."""
    cache, place = cache_folder(), log if is_address(log) else str(Path(log).absolute())
    return None if cache is None else cache / kind / hashlib.sha256(place.encode()).hexdigest()[:24]


def fitted(log: str, lake: LakeOptions, question: Question, estimate_propensity: bool) -> Plan:
    """Fit a plan on a log of any size."""
    from redenvelope.fitting.lake import CHECK_USERS, TRAIN_USERS, SampleSettings, fit_lake
    from redenvelope.lake.reading import open_lake

    opened = open_lake(
        log,
        question.campaign.columns,
        lake.work,
        lake.engine,
        parts=lake.parts,
        stages=Stages(question.progress),
        estimate_propensity=estimate_propensity,
    )
    sample = SampleSettings(lake.train_users or TRAIN_USERS, lake.check_users or CHECK_USERS)
    return fit_lake(opened, engine=lake.engine, sample=sample, **question._asdict())


def audited(
    log: str,
    lake: LakeOptions,
    campaign: Campaign,
    budget: float | None,
    known_before: tuple[str, ...],
    estimate_propensity: bool,
    quiet: bool,
) -> tuple[Audit | None, tuple[Finding, ...]]:
    """The audit of a log of any size, or the findings for which it was refused."""
    from redenvelope.fitting.lake import audit_lake
    from redenvelope.lake.reading import open_lake

    with listening(quiet) as listen:
        stages = Stages(listen)
        said = {"parts": lake.parts, "stages": stages, "estimate_propensity": estimate_propensity}
        try:
            opened = open_lake(log, campaign.columns, lake.work, lake.engine, **said)  # type: ignore[arg-type]
        except LogError as refusal:
            return None, refusal.findings
        return audit_lake(opened, lake.engine, campaign, budget, known_before, stages), ()


def allocated(
    plan: Plan,
    users: str,
    out: str | Path,
    seed: int,
    columns: ColumnMap | None,
    history: str | Path | None,
    engine: str | None,
    work: Path | None,
    parts: int | None,
    quiet: bool,
) -> AllocationSummary:
    """Decide for files of any size, into a folder, or into one file, object or table."""
    from redenvelope.plan.allocate import require_destination
    from redenvelope.plan.lake import allocate_folder, gathered

    where, folder = engine_named(engine or "local"), Path(out)
    is_one = is_address(out) or (folder.suffix.lower() in (".parquet", ".csv") and not folder.is_dir())
    if is_one:
        require_destination(out)
        # A fixed place, so that a stopped run can be resumed.
        aside = _usual_work(str(out), "decisions") or Path(tempfile.gettempdir(), "redenvelope-decisions")
        folder = aside if is_address(out) else folder.with_name(f".{folder.name}.parts")
    with listening(quiet) as listen:
        said = {"engine": where, "work": work, "parts": parts, "stages": Stages(listen)}
        summary = allocate_folder(plan, users, folder, seed, columns, history, **said)  # type: ignore[arg-type]
    if is_one:
        gathered(folder, out)
    return summary
