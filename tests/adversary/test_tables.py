"""Whatever table comes: used with finite numbers, or refused in words; nothing else, nothing printed, nothing left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from redenvelope import Plan
from tests.two_step_plan import campaign, log, plan, stages

from .tables import log_table, users_table
from .trials import log_trial, table_of, users_trial

__all__ = ["campaign", "log", "plan", "stages"]

Silent = pytest.CaptureFixture[str]

_FEW = 78


def test_logs_are_used_or_refused(tmp_path: Path, capfd: Silent) -> None:
    ended: Counter[str] = Counter()
    for number in range(_FEW):
        kind, _ = table_of(number, log_table())
        capfd.readouterr()  # what was printed while the table was spoilt
        ended[log_trial(number, tmp_path)] += 1
        # The decoder of parquet prints when it loses its way in damaged bytes; nothing else may.
        assert kind == "bytes" or capfd.readouterr() == ("", ""), number
    assert min(ended["refused"], ended["used"]) > _FEW // 10


def test_tables_of_users_are_decided_or_refused(tmp_path: Path, plan: Plan, capfd: Silent) -> None:
    plan.allocate(users_table())  # compiled here, so that no table waits for it
    saved, folder = plan.save(tmp_path / "plan", {}), tmp_path / "tables"
    folder.mkdir()
    ended: Counter[str] = Counter()
    for number in range(_FEW):
        kind, _ = table_of(number, users_table())
        capfd.readouterr()
        ended[users_trial(number, folder, plan, saved)] += 1
        assert kind == "bytes" or capfd.readouterr() == ("", ""), number
    assert min(ended["refused"], ended["used"]) > _FEW // 10
