"""A good log, ways to spoil it, and the shape of a case: what a spoilt file must be found to be."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from redenvelope import ColumnMap, Finding, inspect_log
from redenvelope.log.read import Inspection

USERS, STEPS = 120, 3
ROWS = USERS * STEPS


def good_log() -> pl.DataFrame:
    """[360 rows]: three actions of 120 rows each, dearer ones costing more; nothing wrong with it."""
    generator = np.random.default_rng(7)
    action = np.tile([0, 1, 5, 1, 5, 0, 5, 0, 1], ROWS // 9)
    return pl.DataFrame(
        {
            "user": np.repeat(np.arange(1, USERS + 1), STEPS),
            "step": np.tile(np.arange(STEPS), USERS),
            "action": action,
            "propensity": generator.uniform(0.2, 0.6, ROWS).round(3),
            "reward": generator.integers(0, 2, ROWS),
            "cost": (action * generator.uniform(0.5, 1.0, ROWS)).round(3),
            "age": np.repeat(generator.integers(18, 70, USERS), STEPS),
            "city": np.repeat(generator.choice(["Lyon", "Oslo", "Rome"], USERS), STEPS),
            "visits": generator.poisson(3, ROWS),
        }
    )


def many_users(copies: int = 8) -> pl.DataFrame:
    """The good log's users so many times over: enough to make a plan from."""
    return pl.concat([good_log().with_columns(pl.col("user") + 1_000 * copy) for copy in range(copies)])


def csv(frame: pl.DataFrame, separator: str = ",") -> bytes:
    return frame.write_csv(separator=separator).encode()


def parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


def put(frame: pl.DataFrame, column: str, values: Mapping[int, object]) -> pl.DataFrame:
    """Other values in some rows (counted from 1) of a column; the column becomes text if a value is text."""
    series = frame[column]
    if any(isinstance(value, str) for value in values.values()):
        series = series.cast(pl.String)
    elif any(isinstance(value, float) for value in values.values()):
        series = series.cast(pl.Float64)
    spoilt = series.to_list()
    for row, value in values.items():
        spoilt[row - 1] = value
    return frame.with_columns(pl.Series(column, spoilt, dtype=series.dtype))


def lines(frame: pl.DataFrame, change: Callable[[list[str]], list[str]]) -> bytes:
    """A CSV file whose lines (the header is number 0) were changed."""
    return "\n".join([*change(csv(frame).decode().splitlines()), ""]).encode()


@dataclass(frozen=True)
class Case:
    """Files that break one rule, and the finding they must lead to."""

    rule: str
    severity: str
    files: Callable[[pl.DataFrame], Mapping[str, bytes | pl.DataFrame]]
    """The good log in; name -> content out (bytes, or a frame to be written as parquet)."""
    column: str | None = None
    rows: tuple[int, ...] = ()
    count: int = 1
    examples: tuple[str, ...] = ()
    remedy: str = ""
    """A part of the remedy; empty for "nothing to do"."""
    file: str | None = "log.csv"
    """The file the finding names; None for a finding about the whole table."""
    besides: tuple[str, ...] = ()
    """Other rules that the same file must break."""
    columns: ColumnMap = field(default_factory=ColumnMap)
    estimate_propensity: bool = False
    says: str = ""
    """A part of the message."""
    name: str = ""

    @property
    def id(self) -> str:
        return f"{self.rule}-{self.name}" if self.name else self.rule


def inspect(case: Case, folder: Path) -> Inspection:
    """Write the case's files into a folder and read them: the file if it is one, the folder if it is several."""
    written = []
    for name, content in case.files(good_log()).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else parquet(content))
        written.append(path)
    source = written[0] if len(written) == 1 else folder
    return inspect_log(source, case.columns, estimate_propensity=case.estimate_propensity)


def check(case: Case, folder: Path) -> None:
    """The case's finding is made, as expected in every part, and no rule is found broken that is not."""
    inspection = inspect(case, folder)
    found = inspection.findings
    assert sorted(finding.rule for finding in found) == sorted((case.rule, *case.besides))
    finding = next(finding for finding in found if finding.rule == case.rule)
    check_finding(case, finding)
    refused = any(finding.severity == "error" for finding in found)
    assert (inspection.log is None) == refused
    if inspection.log is not None:
        assert inspection.log.findings == found


def check_finding(case: Case, finding: Finding) -> None:
    assert finding.severity == case.severity
    assert finding.file == case.file
    assert finding.column == case.column
    assert finding.rows == case.rows
    assert finding.count == case.count
    assert finding.examples == case.examples
    assert (case.remedy or "nothing to do") in finding.remedy
    assert case.says in finding.message
    for part in (case.rule, case.file, case.column):
        assert part is None or part in str(finding)
