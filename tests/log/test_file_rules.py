"""What can be wrong with a file, before any value in it means something."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from redenvelope import ColumnMap

from .files import ROWS, Case, check, csv, good_log, lines, parquet, put

Content = bytes | pl.DataFrame


def halves(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    return frame.head(ROWS // 2), frame.tail(ROWS // 2)


def parts(first: Content, second: Content, ending: str = "parquet") -> dict[str, Content]:
    return {f"a.{ending}": first, f"b.{ending}": second}


def changed(at: int, line: str) -> Callable[[list[str]], list[str]]:
    return lambda text: [*text[:at], line, *text[at + 1 :]]


def european(frame: pl.DataFrame) -> bytes:
    decimals = pl.col("propensity", "cost").cast(pl.String).str.replace(".", ",", literal=True)
    return csv(frame.with_columns(decimals), ";")


AGAIN = "export it again"
PARQUET = "export as parquet"

CASES = [
    Case("file_empty", "error", lambda log: {"log.csv": b""}, remedy=AGAIN),
    Case("file_empty", "error", lambda log: {"log.csv": b" \n\n"}, remedy=AGAIN, name="blank"),
    Case("file_empty", "error", lambda log: {"log.parquet": b""}, remedy=AGAIN, file="log.parquet", name="parquet"),
    *(
        Case(
            "date_outside",
            "error",
            lambda log, dtype=dtype, value=value: {
                "log.parquet": log.with_columns(pl.Series("since", [0] * 358 + [value, None]).cast(dtype))
            },
            file="log.parquet",
            column="since",
            rows=(359,),
            examples=(str(value),),
            remedy="--ignore since",
            besides=("feature_duration" if dtype == pl.Duration("ms") else "feature_calendar",),
            name=str(dtype),
        )
        for dtype, value in (
            (pl.Date, -(2**31)),
            (pl.Datetime("ms"), 2**62),
            (pl.Datetime("us", "Asia/Tokyo"), -(2**62)),
            (pl.Duration("ms"), 2**62),
        )
    ),
    Case("file_kind", "error", lambda log: {"log.csv": parquet(log)}, remedy="name it accordingly", says="is parquet"),
    Case("file_kind", "error", lambda log: {"log.csv": b'[{"user": 1}]'}, remedy="export the table", says="is JSON"),
    Case(
        "columns_too_many",
        "error",
        lambda log: {"log.csv": ",".join(f"c{place}" for place in range(20_000)).encode() + b"\n1\n"},
        count=20_000,
        remedy="that a decision could depend on",
        says="20,000 columns; at most 1,000 are allowed",
    ),
    Case(
        "text_too_long",
        "error",
        lambda log: {"log.parquet": put(log, "city", {7: "x" * 20_000})},
        file="log.parquet",
        column="city",
        rows=(7,),
        remedy="--ignore city",
    ),
    Case(
        "file_unpacks",
        "error",
        lambda log: {"log.csv.gz": gzip.compress(csv(log) + b"\n" * 70_000_000)},
        file="log.csv.gz",
        remedy="check what the file holds",
    ),
    Case("file_no_rows", "error", lambda log: {"log.csv": csv(log.head(0))}, remedy=AGAIN),
    Case(
        "files_hidden",
        "repaired",
        lambda log: {
            "log.csv": csv(log),
            ".ipynb_checkpoints/log-checkpoint.csv": csv(log),
            "_temporary/0/part.parquet": log,
            "._log.csv": b"\0\5\x16\7",
        },
        count=3,
        examples=("._log.csv", ".ipynb_checkpoints/log-checkpoint.csv", "_temporary/0/part.parquet"),
        file=None,
    ),
    Case(
        "files_no_tables",
        "warning",
        lambda log: {"log.csv": csv(log), "more.csv.zst": b"\x28\xb5\x2f\xfd", "notes.md": b"read me"},
        examples=("more.csv.zst",),
        remedy="export them as parquet",
        file=None,
    ),
    Case("file_no_rows", "error", lambda log: {"log.csv": csv(log.head(0)).strip()}, remedy=AGAIN, name="no-line-end"),
    Case(
        "file_no_rows",
        "error",
        lambda log: {"log.parquet": log.head(0)},
        remedy=AGAIN,
        file="log.parquet",
        name="parquet",
    ),
    Case(
        "file_truncated",
        "error",
        lambda log: {"log.parquet": parquet(log)[:-100]},
        remedy="copy or export it again",
        file="log.parquet",
        says="PAR1",
    ),
    Case(
        "file_truncated",
        "error",
        lambda log: {"log.parquet": b"PAR1" + parquet(log)[-400:]},
        remedy="copy or export it again",
        file="log.parquet",
        name="parquet-middle-lost",
    ),
    Case(
        "file_truncated",
        "error",
        lambda log: {"log.csv.gz": gzip.compress(csv(log))[:-50]},
        remedy="copy or export it again",
        file="log.csv.gz",
        name="gzip",
    ),
    Case(
        "file_truncated",
        "error",
        lambda log: {"log.csv.gz": csv(log)},
        remedy="copy or export it again",
        file="log.csv.gz",
        name="not-gzip",
    ),
    Case(
        "file_truncated",
        "error",
        lambda log: {"log.csv": b"x" * 200_000},
        remedy="copy or export it again",
        name="one-endless-name",
    ),
    Case(
        "file_undecodable",
        "error",
        lambda log: {"log.csv": csv(put(log, "city", {4: "Zürich"})).decode().encode("latin-1")},
        rows=(4,),
        examples=(str(f"ürich,{good_log()['visits'][3]}\n2,1".encode("latin-1")[:10]),),
        remedy="export it as UTF-8",
        name="latin-1",
    ),
    Case(
        "file_undecodable",
        "error",
        lambda log: {"log.csv": csv(log).decode().encode("utf-16-le")},
        examples=(str("ser,s".encode("utf-16-be")),),
        remedy="export it as UTF-8",
        name="utf-16",
    ),
    Case(
        "csv_ragged_row",
        "error",
        lambda log: {"log.csv": lines(log, lambda text: [*text[:3], text[3] + ",1", text[4], "7,7", *text[6:]])},
        rows=(3, 5),
        count=2,
        remedy="quote the values that contain the delimiter",
        says="9 fields",
    ),
    Case(
        "csv_ragged_row",
        "error",
        lambda log: {"log.csv": lines(log, changed(6, '7,7,"a,b"'))},
        rows=(6,),
        remedy=PARQUET,
        name="quoted",
    ),
    Case(
        "csv_unclosed_quote",
        "error",
        lambda log: {
            "log.csv": lines(put(log, "city", {8: "XX"}), lambda text: [t.replace("XX", '"XX') for t in text])
        },
        rows=(8,),
        remedy="close the quote",
    ),
    Case(
        "column_missing",
        "error",
        lambda log: {"log.csv": csv(log.rename({"reward": "active"}))},
        column="reward",
        remedy="--columns reward=active",
        says="active",
    ),
    Case(
        "column_missing",
        "error",
        lambda log: {"log.csv": csv(log.rename({"reward": "Rewards"}))},
        column="reward",
        remedy="--columns reward=Rewards",
        name="nearly",
    ),
    Case(
        "columns_missing",
        "error",
        lambda log: {"log.csv": csv(log.rename({"reward": "was active"}).drop("cost"))},
        count=2,
        remedy="--columns 'reward=was active,cost=YOUR_COLUMN'",
        says="reward (what it earned), cost (what it cost); the columns are",
    ),
    Case(
        "column_named_missing",
        "error",
        lambda log: {"log.csv": csv(log.rename({"user": "kunde"}))},
        column="user",
        remedy="check its spelling and capitals: --columns user=kunde",
        says="no column 'Kunde', which was named for 'user' (who: one id per user, text or integer); the columns are k",
        columns=ColumnMap({"user": "Kunde"}),
    ),
    Case(
        "column_named_missing",
        "error",
        lambda log: {"log.csv": csv(log)},
        column="user",
        remedy="--columns user=user",
        columns=ColumnMap({"user": "customer"}),
        name="not-shadowed-besides",
    ),
    Case(
        "column_from_folders",
        "repaired",
        lambda log: {"wave=1/part.parquet": halves(log)[0], "wave=2/part.parquet": halves(log)[1]},
        file=None,
        column="wave",
        count=2,
    ),
    Case(
        "column_duplicated",
        "error",
        lambda log: {"log.csv": lines(log, lambda text: [text[0].replace("city", "age"), *text[1:]])},
        column="age",
        count=2,
        remedy="rename or remove one",
    ),
    Case(
        "column_not_there",
        "error",
        lambda log: {"log.csv": csv(log)},
        column="AGEE",
        remedy="--ignore age;",
        says="no column 'AGEE' to leave out; the columns are user, step",
        columns=ColumnMap(ignored=frozenset({"AGEE"})),
    ),
    Case(
        "column_not_there",
        "error",
        lambda log: {"log.parquet": log},
        file="log.parquet",
        column="agee",
        remedy="check its spelling",
        columns=ColumnMap(ignored=frozenset({"agee", "visits"})),
        name="parquet",
    ),
    Case(
        "column_shadowed",
        "error",
        lambda log: {"log.csv": csv(log.with_columns(active=pl.col("reward")))},
        column="reward",
        remedy="--ignore reward",
        says="'active'",
        columns=ColumnMap({"reward": "active"}),
    ),
    Case(
        "column_unnamed",
        "repaired",
        lambda log: {
            "log.csv": lines(log, lambda text: ["," + text[0], *(f"{row},{t}" for row, t in enumerate(text[1:]))])
        },
        remedy="name it if it is a feature",
    ),
    Case(
        "column_nested",
        "warning",
        lambda log: {"log.parquet": log.with_columns(basket=pl.concat_list("age", "visits"))},
        file="log.parquet",
        column="basket",
        remedy="a list's length",
        says="List(Int64)",
    ),
    Case(
        "role_nested",
        "error",
        lambda log: {"log.parquet": log.with_columns(action=pl.concat_list("action", "action"))},
        file="log.parquet",
        column="action",
        remedy="one row per decision",
        says="List(Int64)",
    ),
    Case(
        "column_nested",
        "warning",
        lambda log: {"log.parquet": log.with_columns(profile=pl.struct("age", "visits"))},
        file="log.parquet",
        column="profile",
        remedy="a field of a record",
        name="record",
    ),
    Case(
        "type_clash",
        "error",
        lambda log: parts(halves(log)[0], halves(log)[1].with_columns(pl.col("age").cast(pl.String))),
        file="b.parquet",
        column="age",
        remedy="same types",
        says="text in this file but integer in a.parquet",
    ),
    Case(
        "type_clash",
        "error",
        lambda log: {
            "a.parquet": log[:90].with_columns(age=pl.lit(None)),
            "b.parquet": log[90:180].with_columns(pl.col("age").cast(pl.String)),
            "c.parquet": log[180:],
        },
        file="c.parquet",
        column="age",
        remedy="same types",
        says="integer in this file but text in b.parquet",
        name="behind-an-empty-column",
    ),
    Case(
        "columns_differ",
        "error",
        lambda log: parts(halves(log)[0], halves(log)[1].drop("city")),
        file="b.parquet",
        column="city",
        remedy="--ignore city",
        says="a.parquet",
    ),
    Case(
        "columns_differ",
        "error",
        lambda log: parts(csv(halves(log)[0].drop("city")), csv(halves(log)[1]), "csv"),
        file="a.csv",
        column="city",
        remedy="same columns",
        says="b.csv",
        name="first-lacks",
    ),
    Case("byte_order_mark", "repaired", lambda log: {"log.csv": b"\xef\xbb\xbf" + csv(log)}),
    Case("carriage_returns", "repaired", lambda log: {"log.csv": csv(log).replace(b"\n", b"\r\n")}),
    Case("carriage_returns", "repaired", lambda log: {"log.csv": csv(log).replace(b"\n", b"\r")}, name="cr-only"),
    Case("delimiter", "repaired", lambda log: {"log.csv": csv(log, ";")}, says="semicolons"),
    Case("delimiter", "repaired", lambda log: {"log.tsv": csv(log, "\t")}, file="log.tsv", says="tabs", name="tab"),
    Case(
        "decimal_comma",
        "repaired",
        lambda log: {"log.csv": european(log.with_columns(cost=pl.col("visits") + pl.col("action")))},
        file=None,
        column="propensity",
        count=ROWS,
        besides=("delimiter",),
        examples=("'0,45' is 0.45", "'0,559' is 0.559", "'0,51' is 0.51", "'0,29' is 0.29", "'0,32' is 0.32"),
    ),
    Case(
        "number_dress",
        "repaired",
        lambda log: {"log.csv": csv(put(log, "cost", {5: "€1,200.50"}))},
        file=None,
        column="cost",
        count=1,
        examples=("'€1,200.50' is 1200.50",),
        says="separated thousands and a currency (€)",
    ),
    Case(
        "number_dress",
        "repaired",
        lambda log: {"log.csv": csv(put(log, "cost", {5: "₹1,23,456.50", 6: "₹12,34,567", 7: "₹1,200"}))},
        file=None,
        column="cost",
        count=3,
        examples=("'₹1,23,456.50' is 123456.50", "'₹12,34,567' is 1234567", "'₹1,200' is 1200"),
        says="separated thousands and a currency (₹)",
    ),
    Case(
        "truth_in_words",
        "repaired",
        lambda log: {
            "log.csv": csv(
                log.with_columns(reward=pl.when(pl.col("reward") > 0).then(pl.lit("Ja")).otherwise(pl.lit("nein")))
            )
        },
        file=None,
        column="reward",
        count=ROWS,
        says="'ja' or 'nein'",
    ),
    Case(
        "cost_filled",
        "repaired",
        lambda log: {"log.csv": csv(put(log, "cost", {5: None, 7: "n/a"}))},
        columns=ColumnMap(missing_cost=0.0),
        file=None,
        column="cost",
        count=2,
        says="set to 0",
    ),
    Case(
        "holdout_left_out",
        "repaired",
        lambda log: {"log.csv": csv(log.with_columns(holdout=pl.col("user") == log["user"][0]))},
        file=None,
        column="holdout",
        count=3,
        remedy="redenvelope compare",
        says="held-out users left out",
    ),
    Case(
        "integer_widths",
        "repaired",
        lambda log: parts(halves(log)[0], halves(log)[1].with_columns(pl.col("age").cast(pl.Int8))),
        file="b.parquet",
        column="age",
    ),
    Case(
        "column_order",
        "repaired",
        lambda log: parts(halves(log)[0], halves(log)[1].select(sorted(log.columns))),
        file="b.parquet",
        says="a.parquet",
    ),
    Case(
        "column_order",
        "repaired",
        lambda log: parts(csv(halves(log)[0]), csv(halves(log)[1].select(sorted(log.columns))), "csv"),
        file="b.csv",
        name="csv",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_every_fault_of_a_file_is_named(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
