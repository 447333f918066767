"""What commands do with tables that no memory holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from redenvelope.cli.listening import listening
from redenvelope.engine.named import engine_named
from redenvelope.progress import Stages

if TYPE_CHECKING:
    from redenvelope.log.columns import ColumnMap
    from redenvelope.plan.allocate import AllocationSummary
    from redenvelope.plan.plan import Plan

__all__ = ["allocated"]


def allocated(
    plan: Plan,
    users: str,
    out: Path,
    seed: int,
    columns: ColumnMap | None,
    history: Path | None,
    engine: str | None,
    work: Path | None,
    parts: int | None,
    quiet: bool,
) -> AllocationSummary:
    """Decide for files of any size, into a folder."""
    from redenvelope.plan.allocate_folder import allocate_folder

    where = engine_named(engine or "local")
    with listening(quiet) as listen:
        said = {"engine": where, "work": work, "parts": parts, "stages": Stages(listen)}
        return allocate_folder(plan, users, out, seed, columns, history, **said)  # type: ignore[arg-type]
