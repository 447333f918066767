"""Clusters: users of a store are in one fold and count as one observation, in memory, from a lake and on other logs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import (
    ColumnMap,
    FitSettings,
    LocalEngine,
    LogError,
    Plan,
    UsageError,
    evaluate_plan,
    fit,
    log_from_frame,
    open_lake,
    split,
    two_step,
)
from redenvelope.evaluation.confidence import Spread
from redenvelope.evaluation.influence import by_person
from redenvelope.log.log import join_logs
from tests.log.files import many_users
from tests.quick_programs import quick_programs
from tests.two_step_plan import BUDGET, QUICK

CLUSTERED = ColumnMap(cluster="store")


def stores(frame: pl.DataFrame, size: int) -> pl.DataFrame:
    """So many users a store, in an order that has nothing to do with their ids."""
    mixed = pl.col("user").cast(pl.Int64) * 7_919 % 100_003
    return frame.with_columns(store=mixed.rank("dense").cast(pl.Int64) // size)


def shaken(generator: np.random.Generator, clusters: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """What users add to a cost, [1, users, 1], and their stores: a shock of the store times an amount of their own."""
    shock = generator.lognormal(-0.08, 0.4, clusters)
    keys = np.repeat(np.arange(clusters, dtype=np.uint64), size)
    return (shock[keys.astype(int)] * generator.exponential(size=len(keys)))[None, :, None], keys


@pytest.mark.parametrize("size", [50, 200])
def test_bounds_cover_stores_that_share_a_shock(size: int) -> None:
    """The variance of a mean over G stores of m users is (v + (1 + v)/m)/G, with v = exp(0.16) − 1 that of a shock."""
    generator, clusters, missed, naive, errors = np.random.default_rng(size), 80, 0, 0, []
    for _ in range(400):
        added, keys = shaken(generator, clusters, size)
        spread = Spread.of(by_person(added, keys)[0, :, 0])
        missed += float(spread.upper(0.95)) < 1
        naive += float(Spread.of(added[0, :, 0]).upper(0.95)) < 1
        errors.append(float(spread.standard_error))
    own = np.exp(0.16) - 1
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.sqrt((own + (1 + own) / size) / clusters), rel=0.05)
    # 5 % of 400 are 20, and 33 by chance (three standard errors); bounds that count users miss several times as often.
    assert missed <= 33
    assert naive > 3 * 20


def test_folds_never_divide_a_cluster() -> None:
    log = log_from_frame(stores(many_users(4), 7), CLUSTERED)
    assert "store" not in log.features.names
    assert (log.people, log.independent) == (480, 69)
    assert "480 users in 69 clusters" in repr(log)
    folds = [set(fold.keys.tolist()) for fold in split(log)]
    assert sum(map(len, folds)) == len(set().union(*folds)) == 69
    # Whatever the order of rows, and whatever type the column has.
    text = (
        stores(many_users(4), 7)
        .with_columns(pl.col("store").cast(pl.String))
        .sample(fraction=1.0, shuffle=True, seed=1)
    )
    again = log_from_frame(text, CLUSTERED)
    assert [set(fold.users) for fold in split(again)] == [set(fold.users) for fold in split(log)]


def test_clusters_stand_together() -> None:
    log = log_from_frame(stores(many_users(4), 7), CLUSTERED)
    assert (np.diff(log.keys.astype(np.float64)) >= 0).all()
    parts = [log.select(log.user_keys % 3 == part) for part in range(3)]
    joined = join_logs(parts)
    assert joined.users.to_list() == log.users.to_list()
    assert (joined.keys == log.keys).all()
    assert (joined.cost == log.cost).all()


def test_too_few_clusters_are_refused_with_their_number() -> None:
    log = log_from_frame(stores(two_step().log(2_000, seed=1), 40), CLUSTERED)
    with pytest.raises(LogError) as refused:
        fit(log, budget=BUDGET, settings=FitSettings(neural=QUICK))
    (finding,) = (each for each in refused.value.findings if each.rule == "fit_few_clusters")
    checking = split(log)[-1].independent
    assert finding.count == log.independent == 51
    assert f"leaves {checking} to check on; at least 50 are needed" in finding.message


@pytest.mark.parametrize("parts", [1, 4])
def test_a_lake_keeps_clusters_whole(parts: int, tmp_path: Path) -> None:
    frame = stores(many_users(4), 7)
    frame.write_parquet(tmp_path / "log.parquet")
    lake = open_lake(tmp_path / "log.parquet", CLUSTERED, tmp_path / "work", LocalEngine(), parts=parts)
    logs = [log for part in lake.parts for log in lake.logs(part)]
    whole = log_from_frame(frame, CLUSTERED)
    assert sum(log.independent for log in logs) == whole.independent
    assert join_logs(logs).users.to_list() == whole.users.to_list()


@pytest.fixture(scope="module")
def plan() -> Plan:
    with quick_programs():
        log = log_from_frame(stores(two_step().log(6_000, seed=4), 10), CLUSTERED)
        return fit(log, budget=BUDGET, settings=FitSettings(neural=QUICK))


def test_a_certificate_counts_clusters(plan: Plan, tmp_path: Path) -> None:
    certificate, check = plan.certificate, plan.record.folds["check"]
    assert certificate.is_certified
    assert certificate.users == check.users
    assert certificate.clusters is not None and certificate.users == pytest.approx(10 * certificate.clusters, abs=10)
    assert f"on {certificate.users:,} users in {certificate.clusters:,} clusters" in certificate.sentence()
    assert plan.columns.cluster == "store"
    again = Plan.load(plan.save(tmp_path / "plan", {}))
    assert (again.certificate, again.columns) == (certificate, plan.columns)


def test_another_log_is_judged_by_clusters_too(plan: Plan) -> None:
    own = log_from_frame(stores(two_step().log(6_000, seed=4), 10), CLUSTERED)
    found = evaluate_plan(plan, own)
    assert found["users"] == plan.certificate.users
    assert found["certificate"] == {"status": "certified", "verified": True}


def test_columns_say_what_is_a_cluster() -> None:
    assert ColumnMap.parse("cluster=store,user=id") == ColumnMap({"user": "id"}, cluster="store")
    assert ColumnMap.from_content({"columns": {"cluster": "store"}}) == CLUSTERED
    for wrong in (
        lambda: ColumnMap(cluster="store", ignored=frozenset({"store"})),
        lambda: ColumnMap(cluster="wave", episode="wave"),
        lambda: ColumnMap(cluster="user"),
    ):
        with pytest.raises(UsageError, match="is both the"):
            wrong()
