"""Tables in databases: the same log and the same plan as from a file, written whole or not at all, without secrets."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import psycopg
import pytest

from redenvelope import FitSettings, Log, Plan, UsageError, fit, read_log, two_step
from redenvelope.log.ab_test import read_arm
from redenvelope.log.formats.sql import place_name, read_database, write_database
from redenvelope.plan.policy import policy_sha256
from tests.ledger.conftest import postgres
from tests.ledger.postgres_server import PostgresServer
from tests.program import run_here
from tests.two_step_plan import BUDGET, QUICK, plan, small_models, stages

__all__ = ["plan", "postgres", "small_models", "stages"]

TYPES = {
    "user": "text",
    "step": "integer",
    "state": "text",
    "action": "text",
    "propensity": "double precision",
    "reward": "double precision",
    "cost": "numeric(12,4)",
    "member": "boolean",
    "joined": "timestamp",
    "born": "date",
    "points": "bigint",
    "level": "smallint",
    "visits": "numeric(12,0)",
    "rating": "numeric(6,2)",
}


def table() -> pl.DataFrame:
    """A log with a column of every usual type, and gaps in those that may have some."""
    frame, rng = two_step().log(1_500, seed=4), np.random.default_rng(0)
    rows = len(frame)
    gone = pl.Series(rng.random(rows) < 0.1)
    day = pl.Series(rng.integers(0, 900, rows))
    return frame.with_columns(
        user=pl.format("c-{}", "user"),
        cost=pl.col("cost").abs().round(4).cast(pl.Decimal(12, 4)),
        member=pl.Series(rng.random(rows) < 0.5),
        joined=pl.datetime(2022, 1, 1) + pl.duration(seconds=day * 7_001),
        born=pl.date(1980, 1, 1) + pl.duration(days=day),
        points=pl.Series(2**53 + 1 + 2 * rng.integers(0, 50, rows)),
        level=pl.Series(rng.integers(0, 4, rows), dtype=pl.Int16),
        visits=pl.Series(rng.integers(0, 9, rows)).cast(pl.Decimal(12, 0)),
        rating=pl.when(gone).then(None).otherwise(pl.Series(rng.random(rows).round(2))).cast(pl.Decimal(6, 2)),
    ).select(*TYPES)


@dataclass(frozen=True)
class Stored:
    """A database with the table `offers`."""

    url: str
    execute: Callable[[str], list[tuple[Any, ...]]]

    def of(self, what: str) -> str:
        return f"{self.url}{'&' if '?' in self.url else '?'}{what}"


def in_sqlite(folder: Path, frame: pl.DataFrame) -> Stored:
    path = folder / "shop.sqlite"

    def execute(statement: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(path) as connection:
            return connection.execute(statement).fetchall()

    columns = ", ".join(f'"{name}" {kind}' for name, kind in TYPES.items())
    rows = frame.with_columns(pl.col("joined").dt.to_string("%Y-%m-%d %H:%M:%S"), pl.col("born").cast(pl.String))
    rows = rows.with_columns(pl.col("visits").cast(pl.Int64), pl.col("cost", "rating").cast(pl.Float64))
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE offers ({columns})")
        connection.executemany(f"INSERT INTO offers VALUES ({', '.join('?' * len(TYPES))})", rows.iter_rows())
    return Stored(f"sqlite:///{path}", execute)


def in_duckdb(folder: Path, frame: pl.DataFrame) -> Stored:
    path = folder / "shop.duckdb"

    def execute(statement: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(path) as connection:
            return connection.execute(statement).fetchall()

    frame.write_parquet(folder / "offers.parquet")
    types = ", ".join(f'"{name}"::{kind} AS "{name}"' for name, kind in TYPES.items())
    execute(f"CREATE TABLE offers AS SELECT {types} FROM '{folder / 'offers.parquet'}'")
    return Stored(f"duckdb:///{path}", execute)


def in_postgres(server: PostgresServer, frame: pl.DataFrame) -> Stored:
    url = server.database()

    def execute(statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    columns = ", ".join(f'"{name}" {kind}' for name, kind in TYPES.items())
    execute(f"CREATE TABLE offers ({columns})")
    with psycopg.connect(url) as connection, connection.cursor().copy("COPY offers FROM STDIN") as copy:
        for row in frame.iter_rows():
            copy.write_row(row)
    return Stored(url, execute)


@pytest.fixture(params=["sqlite", "duckdb", "postgresql"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
    if request.param == "postgresql":
        return in_postgres(request.getfixturevalue("postgres"), table())
    return (in_sqlite if request.param == "sqlite" else in_duckdb)(tmp_path, table())


def same(one: Log, other: Log) -> None:
    assert one.users.equals(other.users)
    assert one.catalogue == other.catalogue
    for name in ("starts", "step", "action", "propensity", "reward", "cost"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.features.numeric_names == other.features.numeric_names
    assert np.array_equal(one.features.numeric, other.features.numeric, equal_nan=True)
    assert np.array_equal(one.features.codes, other.features.codes)
    assert [(each.rule, each.column, each.count) for each in one.findings] == [
        (each.rule, each.column, each.count) for each in other.findings
    ]


# Reading


@pytest.mark.parametrize("asked", ["table=offers", 'query=SELECT * FROM offers WHERE "step" >= 0 -- 5 % & more'])
def test_a_table_is_the_same_log_as_from_a_file(stored: Stored, asked: str, tmp_path: Path) -> None:
    table().write_parquet(tmp_path / "log.parquet")
    timed = {"dates": "relative", "time": "joined", "ignore": "step"}
    same(read_log(stored.of(asked), timed), read_log(tmp_path / "log.parquet", timed))
    same(read_log(stored.of(asked)), read_log(tmp_path / "log.parquet"))


@pytest.mark.usefixtures("small_models")
def test_a_plan_is_the_same_to_the_last_bit(tmp_path: Path, postgres: PostgresServer) -> None:
    frame = table()
    frame.write_parquet(tmp_path / "log.parquet")
    stores = (in_sqlite(tmp_path, frame), in_duckdb(tmp_path, frame), in_postgres(postgres, frame))
    sources = [str(tmp_path / "log.parquet"), *(each.of("table=offers") for each in stores)]
    plans = [fit(source, budget=BUDGET, settings=FitSettings(neural=QUICK, explore=0)) for source in sources]
    assert len({policy_sha256(each.policy) for each in plans}) == 1
    assert len({str(each.certificate.as_dict()) for each in plans}) == 1


def test_types_of_postgresql_arrive_as_from_a_file(postgres: PostgresServer) -> None:
    url = postgres.database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TYPE tier AS ENUM ('gold', 'none')")
        connection.execute(
            "CREATE TABLE odd AS SELECT '123e4567-e89b-12d3-a456-426614174000'::uuid AS id, 'gold'::tier AS tier, "
            "'NaN'::numeric AS nan, 12345678901234567890::numeric AS long, NULL::numeric(9,2) AS empty, "
            "ARRAY['a', 'b'] AS listed, '{\"a\": 1}'::jsonb AS held, '2024-01-02 03:04:05+02'::timestamptz AS moment"
        )
    row = read_database(f"{url}&table=odd").row(0, named=True)
    assert row["id"] == "123e4567-e89b-12d3-a456-426614174000"
    assert row["tier"] == "gold"
    assert np.isnan(row["nan"])
    assert row["long"] == "12345678901234567890"  # no number holds it: an id keeps its digits
    assert row["empty"] is None
    assert row["listed"] == ["a", "b"]
    assert row["held"] == '{"a": 1}'
    assert row["moment"].isoformat() == "2024-01-02T01:04:05+00:00"
    with pytest.raises(UsageError, match="interval"):
        read_database(f"{url}&query=SELECT interval '1 day' AS wait")


def test_sqlite_keeps_a_column_of_several_kinds(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "odd.db") as connection:
        connection.execute("CREATE TABLE odd (id, amount NUMERIC, flag BOOLEAN)")
        rows = [(number, number, 1) for number in range(3_000)]
        connection.executemany("INSERT INTO odd VALUES (?, ?, ?)", [*rows, ("u-1", 0.5, 2)])
    frame = read_database(f"sqlite:///{tmp_path / 'odd.db'}?table=odd")
    assert frame.dtypes == [pl.String, pl.Float64, pl.Int64]  # 2 is no truth
    assert frame.row(-1) == ("u-1", 0.5, 2)


def test_reading_changes_nothing(stored: Stored) -> None:
    before = stored.execute("SELECT count(*) FROM offers")
    for statement in ("DELETE FROM offers", "DROP TABLE offers", "INSERT INTO offers SELECT * FROM offers"):
        with pytest.raises(UsageError):
            read_database(stored.of(f"query={statement}"))
    assert stored.execute("SELECT count(*) FROM offers") == before


def test_what_is_wrong_is_told_with_the_place_and_a_remedy(stored: Stored, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing_here"):
        read_log(stored.of("table=nothing_here"))
    with pytest.raises(UsageError, match="table=NAME or"):
        read_log(stored.of("table="))
    with pytest.raises(UsageError, match="mode=replace"):
        read_log(stored.of("table=offers&mode=burn"))
    with pytest.raises(UsageError, match="adbc-driver-nosuch"):
        read_log("nosuch://host/shop?table=offers")
    with pytest.raises(UsageError, match="there is no file"):
        read_log(f"duckdb:///{tmp_path / 'missing.db'}?table=offers")
    assert not (tmp_path / "missing.db").exists()
    done = run_here("audit", stored.of("table=offers"), "--engine", "local", "--work", "w", folder=tmp_path)
    assert done.returncode == 2
    assert "leave out --work, --engine" in done.stderr


def test_the_commands_read_databases(stored: Stored, plan: Plan, tmp_path: Path) -> None:
    url = stored.of("table=offers")
    done = run_here("audit", url, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    arm = read_arm(stored.of("query=SELECT * FROM offers WHERE \"user\" < 'c-5'"))
    assert arm.name.endswith("?query=…")
    half = stored.of("query=SELECT * FROM offers WHERE \"user\" {} 'c-5'")
    done = run_here("compare", half.replace("{}", "<"), half.replace("{}", ">="), "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    plan.save(tmp_path / "plan")
    done = run_here("evaluate", "plan", url, "--ignore", "born", "--all-users", "--json", folder=tmp_path)
    assert done.returncode in (0, 3), done.stderr


# Writing


def users_of(stored: Stored) -> str:
    return stored.of('query=SELECT "user", "step", "state" FROM offers WHERE "step" = 0')


def test_decisions_are_written_to_a_table(stored: Stored, plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    others = two_step().log(200, seed=2).filter(step=0).select(pl.format("n-{}", "user").alias("user"), "step", "state")
    others.write_parquet(tmp_path / "u.parquet")
    table, file = stored.of("table=decisions"), tmp_path / "decisions.parquet"
    for users, out in ((users_of(stored), table), (users_of(stored), file)):
        done = run_here("allocate", "plan", users, "--out", out, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    written, expected = read_database(table), pl.read_parquet(file)
    assert written.columns == expected.columns
    for name in expected.columns:
        kept, known = written.get_column(name), expected.get_column(name)
        known = known.list.join(" ") if known.dtype.is_nested() else known
        assert kept.to_list() == known.to_list() or kept.to_list() == known.cast(kept.dtype).to_list(), name
    again = run_here("allocate", "plan", "u.parquet", "--out", table, folder=tmp_path)
    assert again.returncode == 2
    assert "mode=replace" in again.stderr
    assert stored.execute("SELECT count(*) FROM decisions") == [(1_500,)]
    for mode, rows in (("append", 1_700), ("replace", 200)):
        done = run_here("allocate", "plan", "u.parquet", "--out", f"{table}&mode={mode}", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert stored.execute("SELECT count(*) FROM decisions") == [(rows,)]


def test_users_may_have_integers_for_ids(stored: Stored, plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    users = two_step().log(50, seed=2).filter(step=0).select("user", "step", "state")
    users.write_parquet(tmp_path / "users.parquet")
    write_database(stored.of("table=targets"), users.lazy())
    for source, out in ((stored.of("table=targets"), "a.parquet"), ("users.parquet", "b.parquet")):
        done = run_here("allocate", "plan", source, "--out", out, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    assert pl.read_parquet(tmp_path / "a.parquet").equals(pl.read_parquet(tmp_path / "b.parquet"))
    done = run_here("explain", "plan", str(users["user"][3]), "--users", stored.of("table=targets"), folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_rows_are_added_by_name_and_in_the_types_of_the_table(stored: Stored) -> None:
    stored.execute("CREATE TABLE mine (cost numeric(9,2), place smallint, note varchar(9), id text)")
    rows = pl.LazyFrame({"id": ["a", "b"], "place": [1, 2], "cost": [0.25, None]})
    for _ in range(2):
        write_database(stored.of("table=mine&mode=append"), rows)
    kept = stored.execute("SELECT id, place, cost, note FROM mine ORDER BY id")
    assert [(id, place, cost and float(cost), note) for id, place, cost, note in kept] == [
        *[("a", 1, 0.25, None)] * 2,
        *[("b", 2, None, None)] * 2,
    ]
    write_database(stored.of("table=anew&mode=append"), rows)
    assert stored.execute("SELECT count(*) FROM anew") == [(2,)]


def test_all_or_nothing(stored: Stored) -> None:
    stored.execute("CREATE TABLE kept (place integer PRIMARY KEY)")
    stored.execute("INSERT INTO kept VALUES (7)")
    rows = pl.LazyFrame({"place": [5, 6, 7]}, schema={"place": pl.Int32})
    with pytest.raises(UsageError):
        write_database(stored.of("table=kept&mode=append"), rows)
    with pytest.raises(UsageError):
        write_database(stored.of("table=kept"), rows)
    late = pl.LazyFrame({"place": [1] * 1_000_000 + [300]}).cast(pl.Int8)  # the last row, of the second slice, fails
    with pytest.raises(UsageError):
        write_database(stored.of("table=kept&mode=replace"), late)
    assert stored.execute("SELECT * FROM kept") == [(7,)]


# Secrets


def test_passwords_stay_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in (
        "postgresql://me:hunter2@127.0.0.1:1/shop?table=offers",
        "postgresql://me@127.0.0.1:1/shop?password=hunter2&table=offers",
        "snowflake://me:hunter2@account/shop?table=offers",
    ):
        done = run_here("audit", url, folder=tmp_path)
        assert done.returncode == 2
        assert "hunter2" not in done.stderr + done.stdout
        assert "PGPASSWORD" in done.stderr
    monkeypatch.setenv("SHOP_PASSWORD", "hun/ter 2@:")
    for url in (
        "postgresql://me:${SHOP_PASSWORD}@127.0.0.1:1/shop?table=offers",
        "postgresql://me@127.0.0.1:1/${SHOP_PASSWORD}?table=offers",
        "postgresql://me@127.0.0.1:${SHOP_PASSWORD}/shop?table=offers",
    ):
        done = run_here("audit", url, folder=tmp_path)
        assert done.returncode == 2
        assert "hun/ter" not in done.stderr + done.stdout
        assert "hun%2Fter" not in done.stderr + done.stdout
    done = run_here("audit", "postgresql://me:${NO_SUCH}@127.0.0.1:1/shop?table=offers", folder=tmp_path)
    assert "NO_SUCH is not set" in done.stderr
    assert place_name("postgresql://me:${X}@host/shop?sslmode=require&table=a.b") == "postgresql://host/shop?table=a.b"
    assert place_name("https://host/log.parquet?X-Amz-Signature=abc") == "https://host/log.parquet"


@pytest.mark.usefixtures("small_models")
def test_nothing_that_is_written_holds_a_secret(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan, its report, the cache of stages, decisions: no user, no password, no statement."""
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    monkeypatch.setenv("REDENVELOPE_CACHE", str(tmp_path / "cache"))
    stored = in_postgres(postgres, table())
    url = stored.url.replace("tester@", "tester:${SHOP_PASSWORD}@")
    log = f"{url}&query=SELECT * FROM offers WHERE 'a secret' <> ''"
    done = run_here("fit", log, "--budget", "2.9", "--out", "plan", folder=tmp_path)
    assert done.returncode in (0, 3, 4), done.stderr
    out = f"{url}&table=decisions"
    done = run_here("allocate", "plan", users_of(stored), "--out", out, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix != ".parquet":
            held = path.read_bytes()
            assert b"hunter2" not in held, path
            assert b"a secret" not in held, path
    assert os.environ["SHOP_PASSWORD"] == "hunter2"
