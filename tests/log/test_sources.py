"""A folder whose subfolders are named column=value is a table with that column."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import ColumnMap, LogError, inspect_log, read_log
from redenvelope.log.formats.discovery import files_of

from .files import good_log

DAYS = ["2024-01-01", "2024-01-02", "2024-01-03"]


@pytest.fixture
def by_step(tmp_path: Path) -> Path:
    """The good log with a folder a day, as query engines write it: the day stands in the folder's name alone."""
    for step, day in enumerate(DAYS):
        folder = tmp_path / f"day={day}" / "country=C%C3%B4te%20d%27Ivoire"
        folder.mkdir(parents=True)
        good_log().filter(pl.col("step") == step).write_parquet(folder / "part.parquet")
    return tmp_path


def test_names_of_folders_are_values_of_every_row_below(by_step: Path) -> None:
    files = files_of(by_step)
    assert [file.partition["day"] for file in files] == [date.fromisoformat(day) for day in DAYS]
    assert {file.partition["country"] for file in files} == {"Côte d'Ivoire"}
    log = read_log(by_step)
    rules = {(finding.rule, finding.column) for finding in log.findings}
    assert {("column_from_folders", "day"), ("feature_calendar", "day"), ("feature_constant", "country")} <= rules
    assert read_log(f"{by_step}/**/*.parquet").findings == log.findings


def test_the_same_as_polars_reads(by_step: Path) -> None:
    for place, folder in enumerate(sorted(by_step.iterdir())):
        folder.rename(by_step / f"nth={place + 7}")
    ours = read_log(by_step)
    theirs = pl.read_parquet(f"{by_step}/**/*.parquet", hive_partitioning=True).sort("user", "step")
    days = theirs["nth"].cast(pl.Float32).to_list()
    assert ours.features.numeric[:, ours.features.numeric_names.index("nth")].tolist() == days


def test_a_folder_may_name_a_role_and_may_be_ignored(tmp_path: Path) -> None:
    for step in range(3):
        (tmp_path / f"wave={step}").mkdir()
        part = good_log().filter(pl.col("step") == step).drop("step")
        part.write_csv(tmp_path / f"wave={step}" / "part.csv")
    log = read_log(tmp_path, ColumnMap({"step": "wave"}))
    assert log.step.tolist() == good_log()["step"].to_list()
    with pytest.raises(LogError, match="there is no column 'wave', which was named for 'step'"):
        read_log(tmp_path / "wave=0", ColumnMap({"step": "wave"}))
    for step in range(3):
        good_log().filter(pl.col("step") == step).write_csv(tmp_path / f"wave={step}" / "part.csv")
    ignoring = read_log(tmp_path, ColumnMap(ignored=frozenset({"wave"})))
    assert [finding.rule for finding in ignoring.findings] == ["rows_unordered"]
    assert "wave" not in ignoring.features.names


def test_a_column_in_the_file_wins_over_its_folder(tmp_path: Path) -> None:
    for visits in (0, 1):
        (tmp_path / f"visits={visits}").mkdir()
    good_log()[:180].write_parquet(tmp_path / "visits=0" / "part.parquet")
    good_log()[180:].write_parquet(tmp_path / "visits=1" / "part.parquet")
    log = read_log(tmp_path)
    assert (
        log.features.numeric[:, log.features.numeric_names.index("visits")].tolist() == good_log()["visits"].to_list()
    )


def test_missing_and_lacking_values_of_a_folder(tmp_path: Path) -> None:
    for name in ("nth=4", "nth=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / name).mkdir()
    good_log()[:180].write_parquet(tmp_path / "nth=4" / "part.parquet")
    good_log()[180:].write_parquet(tmp_path / "nth=__HIVE_DEFAULT_PARTITION__" / "part.parquet")
    log = read_log(tmp_path)
    assert np.isnan(log.features.numeric[:, log.features.numeric_names.index("nth")]).sum() == 180
    good_log()[180:].write_parquet(tmp_path / "outside.parquet")
    (tmp_path / "nth=__HIVE_DEFAULT_PARTITION__" / "part.parquet").unlink()
    (error,) = (finding for finding in inspect_log(tmp_path).findings if finding.severity == "error")
    assert (error.rule, error.file, error.column) == ("columns_differ", "outside.parquet", "nth")
    assert "nth=4/part.parquet" in error.message
