"""Whatever table comes: used with finite numbers, or refused in words; nothing else, nothing printed, nothing left."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope.audit.audit import audit_log
from redenvelope.errors import RedenvelopeError
from redenvelope.log.read import inspect_log, read_log
from redenvelope.plan.allocate import allocate_file
from redenvelope.plan.plan import Plan
from tests.log.test_fuzz import check_log
from tests.two_step_plan import campaign, log, plan

from .tables import KINDS, Mutant, log_table, mutant, users_table

__all__ = ["campaign", "log", "plan"]

Silent = pytest.CaptureFixture[str]

_LONGEST = 10.0  # seconds
_MANY = 20_000
_FEW = 13  # of each kind and table: about 150 in all


def finite(value: object) -> bool:
    """Whether plain data holds no number that is none."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(finite, value))
    return not isinstance(value, float) or bool(np.isfinite(value))


def audited(path: Path) -> str:
    inspection = inspect_log(path)
    for finding in inspection.findings:
        assert finding.message and finding.remedy and str(finding).isprintable()
    if inspection.log is None:
        assert any(finding.severity == "error" for finding in inspection.findings)
        read_log(path)
    assert inspection.log is not None
    check_log(inspection.log)
    audit = audit_log(inspection.log)
    assert finite([audit.logged_cost.estimate, audit.logged_reward.estimate, audit.cheapest_cost, audit.dearest_cost])
    return "accepted"


def decided(path: Path, plan: Plan) -> str:
    out = path.parent / "out.parquet"
    try:
        summary = allocate_file(plan, path, out, seed=0)
        decisions = pl.read_parquet(out)
        assert len(decisions) == summary.users > 0
        assert finite(summary.as_dict())
        assert decisions["propensity"].is_between(0, 1, closed="right").all()
        assert decisions.select(pl.struct("user", "step").is_unique().all()).item()
    finally:
        out.unlink(missing_ok=True)
    return "accepted"


def outcome(spoilt: Mutant, folder: Path, plan: Plan | None) -> str:
    """What comes of a spoilt table; anything but an answer or a refusal in words fails."""
    path = folder / spoilt.name
    path.write_bytes(spoilt.content)
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return audited(path) if plan is None else decided(path, plan)
    except RedenvelopeError as error:
        assert str(error).strip()
        return "refused"
    finally:
        assert time.perf_counter() - began < _LONGEST
        assert [left.name for left in folder.iterdir()] == [spoilt.name]
        path.unlink()


def run(kind: str, numbers: range, folder: Path, plan: Plan | None, silent: Silent | None = None) -> dict[str, int]:
    frame, counts = log_table() if plan is None else users_table(), {"accepted": 0, "refused": 0}
    for seed in numbers:
        spoilt = mutant(frame, kind, seed)
        if silent is not None:
            silent.readouterr()  # what was printed while the table was spoilt
        try:
            counts[outcome(spoilt, folder, plan)] += 1
            # The decoder of parquet prints when it loses its way in damaged bytes; nothing else may.
            assert silent is None or kind == "bytes" or silent.readouterr() == ("", "")
        except BaseException as error:
            raise AssertionError(f"{kind} {seed} ({', '.join(spoilt.changes)}; {spoilt.name}): {error!r}") from error
    return counts


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_log_is_used_or_refused(kind: str, tmp_path: Path, capfd: Silent) -> None:
    assert run(kind, range(_FEW), tmp_path, None, capfd)["refused"] > 0


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_table_of_users_is_decided_or_refused(kind: str, tmp_path: Path, plan: Plan, capfd: Silent) -> None:
    plan.allocate(users_table())  # compiled here, so that no table waits for it
    run(kind, range(_FEW), tmp_path, plan, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_so_are_many_logs(kind: str, tmp_path: Path) -> None:
    run(kind, range(_MANY), tmp_path, None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_so_are_many_tables_of_users(kind: str, tmp_path: Path, plan: Plan) -> None:
    run(kind, range(_MANY), tmp_path, plan)
