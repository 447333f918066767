"""A plan from a lake: the one that memory would give, and the same to the last bit whatever parts and engine."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import (
    ColumnMap,
    Engine,
    FiniteCampaign,
    FitSettings,
    LocalEngine,
    Plan,
    SampleSettings,
    UsageError,
    fit,
    fit_lake,
    open_lake,
    read_log,
    two_step,
)
from redenvelope.log.log import split_fold
from tests.quick_programs import quick_programs
from tests.two_step_plan import BUDGET, QUICK

SETTINGS = FitSettings(neural=QUICK)


@pytest.fixture(scope="module")
def campaign() -> FiniteCampaign:
    return two_step()


@pytest.fixture(scope="module")
def folder(campaign: FiniteCampaign, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("log")
    frame = campaign.log(6_000, seed=4)  # in order: what a lake does not say of its order, memory need not say either
    frame[:5_000].write_parquet(place / "a.parquet")
    frame[5_000:].write_parquet(place / "b.parquet")
    return place


def made(folder: Path, work: Path, engine: Engine, parts: int, sample: SampleSettings | None = None) -> Plan:
    lake = open_lake(folder, ColumnMap(), work, engine, parts=parts, rows_at_once=1_500)
    with quick_programs():
        return fit_lake(lake, engine=engine, budget=BUDGET, settings=SETTINGS, sample=sample)


def written(plan: Plan, folder: Path) -> dict[str, bytes]:
    plan.save(folder, {})
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.slow
def test_memory_parts_and_clusters_make_the_same_plan(folder: Path, tmp_path: Path) -> None:
    with quick_programs():
        memory = fit(read_log(folder), budget=BUDGET, settings=SETTINGS)
    plans = {
        parts: written(made(folder, tmp_path / f"work-{parts}", LocalEngine(1), parts), tmp_path / f"plan-{parts}")
        for parts in (1, 8, 64)
    }
    assert plans[1] == plans[8] == plans[64]
    expected = written(memory, tmp_path / "plan")
    # The manifest says besides that it was a lake, and its audit was summed in another order.
    assert {name for name in expected if expected[name] != plans[1][name]} == {"plan.json"}
    if find_spec("ray") is None:
        return
    from redenvelope.engine.ray import RayEngine

    with _Killer(3) as killer:
        there = made(folder, tmp_path / "work-ray", RayEngine(workers=2), 64)
    assert killer.killed == 3
    assert written(there, tmp_path / "plan-ray") == plans[1]
    import ray

    ray.shutdown()


@pytest.mark.slow
def test_a_sample_is_chosen_by_id_and_said(folder: Path, tmp_path: Path) -> None:
    plan = made(folder, tmp_path / "work", LocalEngine(1), 4, SampleSettings(train_users=1_500, check_users=1_200))
    sizes = {name: fold.users for name, fold in plan.record.folds.items()}
    # Binomial, of 3,000, 600 and 2,400 users: within four standard deviations.
    for name, wanted, of in (("train", 1_500, 3_000), ("tune", 300, 600), ("check", 1_200, 2_400)):
        assert abs(sizes[name] - wanted) < 4 * np.sqrt(wanted * (1 - wanted / of)) + 4 * np.sqrt(of) * wanted / of
    assert plan.certificate.users == sizes["check"]
    assert plan.record.audit.users == 6_000
    assert f"{sum(sizes.values()):,} of 6,000 users" in plan.record.sample
    again = Plan.load(plan.save(tmp_path / "plan"))
    assert again.record.sample == plan.record.sample
    assert "of 6,000 users" in (tmp_path / "plan" / "report.html").read_text()


def test_samples_are_parts_of_folds() -> None:
    with pytest.raises(UsageError, match="must be at least 1"):
        SampleSettings(train_users=0)
    shares = SampleSettings(1_000, 100).shares(10_000, FitSettings())
    np.testing.assert_allclose(shares, [0.2, 0.2, 0.025])
    assert (SampleSettings(10**9, 10**9).shares(10_000, FitSettings()) == 1).all()
    keys = pl.Series(range(1_000)).to_numpy().astype(np.uint64)
    assert set(split_fold(keys).tolist()) == {0, 1, 2}


class _Killer(threading.Thread):
    """Kills workers of a cluster, one after the other, while they work."""

    def __init__(self, kills: int) -> None:
        super().__init__(daemon=True)
        self.killed, self._kills, self._over = 0, kills, threading.Event()

    def __enter__(self) -> _Killer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        import psutil

        chance = random.Random(2)
        while not self._over.is_set() and self.killed < self._kills:
            time.sleep(chance.uniform(0.05, 0.4))
            children: Iterator[psutil.Process] = iter(psutil.Process().children(recursive=True))
            busy = []
            for child in children:
                try:
                    if child.cmdline()[:1] and child.cmdline()[0].startswith("ray::_worked_on"):
                        busy.append(child.pid)
                except psutil.Error:
                    continue
            if busy:
                os.kill(chance.choice(busy), signal.SIGKILL)
                self.killed += 1
