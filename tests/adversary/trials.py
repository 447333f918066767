"""One bad log, table of users or plan, used in every way that there is: an answer in finite numbers, or a refusal.

Every trial is given by a number alone: what came once comes again. Most are asked through the functions behind the
commands; every so many through the command line itself, in this process, so that what it shows is tried too.
"""

from __future__ import annotations

import io
import json
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import polars as pl

from redenvelope import Decider, Plan, RedenvelopeError, audit_log, inspect_log, read_log, render_report
from redenvelope.cli import app, guard
from redenvelope.plan.allocate import allocate_file
from redenvelope.plan.reprice import answer, reprice
from tests.log.test_fuzz import check_log

from .plans import mutated
from .tables import KINDS, Mutant, log_table, mutant, users_table

__all__ = ["LONGEST", "Good", "TooLongError", "finite", "log_trial", "plan_trial", "table_of", "users_trial"]

LONGEST = 10
"""Seconds of processor time that anything may take."""

_BY_COMMAND = 8
"""Every so manieth trial goes through the command line."""
_DRAWN = 8
"""Every so manieth plan has its report drawn if it opens, which takes a second."""


class Good(NamedTuple):
    """A plan in good order, and what to use it with."""

    folder: Path
    log: Path
    """Of its campaign, with outcomes: who is to be decided for, and what happened to them before."""


class TooLongError(BaseException):
    """It took longer than anything may."""


@contextmanager
def in_time() -> Iterator[None]:
    """Stop whatever takes too long, by the processor's time: other processes may slow this one down.

    What Python cannot stop is at least noticed when it ends.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLongError

    before, began = signal.signal(signal.SIGPROF, stop), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if time.process_time() - began > LONGEST:
        raise TooLongError


def finite(value: object) -> bool:
    """Whether plain data holds no number that is none."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(finite, value))
    return not isinstance(value, float) or bool(np.isfinite(value))


def commanded(*arguments: object) -> str:
    """What a command line comes to: refused in a few words, or done; anything else fails."""
    printed, said = io.StringIO(), io.StringIO()
    line = ["redenvelope", *map(str, arguments)]
    with patch.object(sys, "argv", line), redirect_stdout(printed), redirect_stderr(said):
        code = guard._run(partial(app, line[1:]), debug=True)
    assert code in (0, 2, 3), f"{line[1]} ended with {code}: {said.getvalue()}"
    assert "Traceback" not in said.getvalue(), said.getvalue()
    assert code != 2 or (said.getvalue() + printed.getvalue()).strip()
    if "--json" in line and printed.getvalue():
        content = json.loads(printed.getvalue(), parse_constant=_no_json)
        assert all(row["estimate"] is not None for row in content.get("estimates", ())), "an estimate is no number"
    return "refused" if code == 2 else "used"


def _no_json(name: str) -> object:
    raise AssertionError(f"{name} is no JSON")


def table_of(number: int, frame: pl.DataFrame) -> tuple[str, Mutant]:
    """The so manieth spoilt table: its kind, and the table."""
    kinds = sorted(KINDS)
    kind = kinds[number % len(kinds)]
    return kind, mutant(frame, kind, number // len(kinds))


def log_trial(number: int, folder: Path) -> str:
    """Read and audit a spoilt log."""
    spoilt = table_of(number, log_table())[1]
    with _file(spoilt, folder) as path:
        if number % _BY_COMMAND == 0:
            return commanded("audit", path, *(["--json"] if number % 3 else []))
        return audited(path)


def users_trial(number: int, folder: Path, plan: Plan, saved: Path) -> str:
    """Decide for a spoilt table of users."""
    spoilt = table_of(number, users_table())[1]
    with _file(spoilt, folder) as path:
        if number % _BY_COMMAND == 0:
            out = folder / "out.csv"
            try:
                return commanded("allocate", saved, path, "--out", out, *(["--json"] if number % 3 else []))
            finally:
                out.unlink(missing_ok=True)
        return decided(path, plan)


def plan_trial(number: int, folder: Path, good: Good) -> str:
    """Open a plan that was changed and signed again, and do with it what can be done with a plan."""
    generator = np.random.default_rng([2, number])
    place = folder / "trial"
    place.mkdir()
    bad = place / "plan"
    shutil.copytree(good.folder, bad)
    what = mutated(bad, generator)
    try:
        with in_time(), warnings.catch_warnings():
            warnings.simplefilter("error")
            if number % _BY_COMMAND == 0:
                return _commanded_plan(number // _BY_COMMAND, bad, good.log)
            used(Plan.load(bad), pl.read_parquet(good.log), draw=number % _DRAWN == 1)
            return "used"
    except RedenvelopeError as error:
        assert str(error).strip()
        return "refused"
    except BaseException as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(place)


def _commanded_plan(number: int, bad: Path, log: Path) -> str:
    out = bad.parent
    lines = (
        ("frontier", bad),
        ("frontier", bad, "--json", "--budget", 2.5),
        ("reprice", bad, "--budget", 2.5, "--out", out / "again", "--json"),
        ("allocate", bad, log, "--history", log, "--out", out / "decisions.parquet"),
        ("reprice", bad, "--target-reward", 4, "--out", out / "again"),
        ("evaluate", bad, log, "--json"),
        ("report", bad, "--out", out / "page.html"),
        ("evaluate", bad, log),
    )
    ended = commanded(*lines[number % len(lines)])
    written = {path.name for path in out.iterdir()} - {"plan"}
    assert written <= {"again", "decisions.parquet", "page.html"}
    assert not (ended == "refused" and written), written
    if "again" in written:
        Plan.load(out / "again")
    return ended


def used(opened: Plan, log: pl.DataFrame, draw: bool) -> None:
    """Everything that is done with a plan; numbers must be numbers."""
    past = log.select("user", "step", "action", "reward", "cost") if opened.needs_history else None
    rows = log.drop("action", "propensity", "reward", "cost").head(40)
    decisions, _ = opened.allocate(rows, history=past)
    for name in ("propensity", "expected_reward", "expected_cost"):
        assert np.isfinite(decisions[name].to_numpy()).all(), name
    for row in answer(opened, None, None)["at"]:
        assert np.isfinite(list(row.values())).all(), row
    decided = Decider(opened).decide(rows.row(0, named=True), history=[])
    assert np.isfinite([*decided.probabilities.values(), decided.expected_cost, decided.expected_reward]).all()
    reprice(opened, budget=2.9295)
    if draw:
        render_report(opened)


def audited(path: Path) -> str:
    """Read and audit a log by the functions behind the command."""
    try:
        inspection = inspect_log(path)
        for finding in inspection.findings:
            assert finding.message and finding.remedy and str(finding).isprintable()
        if inspection.log is None:
            assert any(finding.severity == "error" for finding in inspection.findings)
            read_log(path)
        assert inspection.log is not None
        check_log(inspection.log)
        audit = audit_log(inspection.log)
        assert finite(
            [audit.logged_cost.estimate, audit.logged_reward.estimate, audit.cheapest_cost, audit.dearest_cost]
        )
    except RedenvelopeError as error:
        assert str(error).strip()
        return "refused"
    return "used"


def decided(path: Path, plan: Plan) -> str:
    """Decide for a table by the function behind the command."""
    out = path.parent / "out.parquet"
    try:
        summary = allocate_file(plan, path, out, seed=0)
        decisions = pl.read_parquet(out)
        assert len(decisions) == summary.users > 0
        assert finite(summary.as_dict())
        assert decisions["propensity"].is_between(0, 1, closed="right").all()
        assert np.isfinite(decisions.select("expected_reward", "expected_cost").to_numpy()).all()
        assert decisions.select(pl.struct("user", "step").is_unique().all()).item()
    except RedenvelopeError as error:
        assert str(error).strip()
        return "refused"
    finally:
        out.unlink(missing_ok=True)
    return "used"


@contextmanager
def _file(spoilt: Mutant, folder: Path) -> Iterator[Path]:
    """The table as a file for a while; warnings, and files that are left, fail."""
    path = folder / spoilt.name
    path.write_bytes(spoilt.content)
    try:
        with in_time(), warnings.catch_warnings():
            warnings.simplefilter("error")
            yield path
        assert [left.name for left in folder.iterdir()] == [spoilt.name]
    except BaseException as error:
        raise AssertionError(f"{', '.join(spoilt.changes)}; {spoilt.name}: {type(error).__name__}: {error}") from error
    finally:
        path.unlink()
