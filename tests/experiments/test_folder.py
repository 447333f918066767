"""Whatever happens, the folder holds whole files, and nothing of anybody else's is touched."""

from __future__ import annotations

import json
from pathlib import Path

import altair as alt
import polars as pl
import pytest
from experiments.document import cells, markdown_table
from experiments.folder import ResultFolder
from experiments.reproduce import reproduce
from experiments.result import Figure, Result
from experiments.room import MANIFEST, require_room
from experiments.settings import ReproduceSettings
from experiments.studies import Studies

from redenvelope import Event, UsageError
from redenvelope.progress import Phase

TABLE = pl.DataFrame(
    {
        "policy": ["random", "plan | a"],
        "reward": [3.88361, 4.50934],
        "reward_lower": [None, 4.5],
        "reward_upper": [None, 4.6],
        "gain": [None, 0.16112],
        "regret": [0.62573, -1e-9],
        "steps": [None, 12_000],
        "empty": pl.Series([None, None], dtype=pl.Float64),
    }
)


def result(name: str = "first") -> Result:
    chart = alt.Chart(alt.InlineData(values=[{"x": 1, "y": 2}])).mark_point().encode(x="x:Q", y="y:Q")
    return Result(name, f"Title of {name}", "found", ("A sentence & more.",), TABLE, (Figure(name, "T", "C", chart),))


def test_a_result_is_there_as_soon_as_it_is_added(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path / "out", ReproduceSettings())
    folder.start()
    folder.add(result())
    assert pl.read_csv(tmp_path / "out" / "first.csv")["reward"].to_list() == TABLE["reward"].to_list()
    assert (tmp_path / "out" / "first.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / "first.html").read_text()
    assert 'src="http' not in page and "vega" in page
    for index in ("README.md", "index.html"):
        text = (tmp_path / "out" / index).read_text()
        assert "Title of first" in text and "Not complete" in text and "calibrated to the paper" in text
    folder.finish()
    assert "Not complete" not in (tmp_path / "out" / "README.md").read_text()
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["complete"] is True
    assert {*manifest["files"], MANIFEST} == {path.name for path in (tmp_path / "out").iterdir()}


def test_markdown_has_the_numbers_of_the_table() -> None:
    heads, rows = cells(TABLE)
    assert heads == ["policy", "reward", "gain", "regret", "steps"]
    assert rows == [
        ["random", "3.8836", "", "0.6257", ""],
        ["plan | a", "4.5093 (4.5000 to 4.6000)", "+16.11%", "0.0000", "12,000"],
    ]
    assert "| plan \\| a | 4.5093 (4.5000 to 4.6000) |" in markdown_table(TABLE)


def test_an_earlier_run_is_replaced_and_anything_else_refused(tmp_path: Path) -> None:
    for name in ("first", "second"):
        folder = ResultFolder(tmp_path, ReproduceSettings())
        folder.start()
        folder.add(result(name))
    assert not (tmp_path / "first.csv").exists()
    assert (tmp_path / "second.csv").exists()
    (tmp_path / ".second.csv.part").write_text("killed in between")
    require_room(tmp_path)
    (tmp_path / "thesis.docx").write_text("mine")
    with pytest.raises(UsageError, match=r"thesis\.docx"):
        ResultFolder(tmp_path, ReproduceSettings()).start()
    assert (tmp_path / "second.csv").exists()


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MANIFEST).write_text(json.dumps({"files": ["../precious"]}))
    ResultFolder(tmp_path / "out", ReproduceSettings()).start()
    assert (tmp_path / "precious").read_text() == "mine"


def test_an_interrupted_run_keeps_what_is_finished(tmp_path: Path) -> None:
    def interrupted(studies: Studies) -> Result:
        raise KeyboardInterrupt

    two = {"one": lambda studies: result(), "two": interrupted}
    told: list[Event] = []
    with pytest.raises(KeyboardInterrupt):
        reproduce(tmp_path / "out", ReproduceSettings(), only=two, progress=told.append, experiments=two)
    assert told == [Event("one", Phase.BEGUN), Event("one", Phase.DONE, "found"), Event("two", Phase.BEGUN)]
    assert (tmp_path / "out" / "first.csv").exists()
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["complete"] is False
    assert not list((tmp_path / "out").glob(".*"))
