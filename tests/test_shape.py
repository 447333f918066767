"""The package stays small enough to find one's way in; docs/shape.py counts, and states the limits."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("shape", Path(__file__).parents[1] / "docs" / "shape.py")
assert _SPEC is not None
assert _SPEC.loader is not None
shape = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(shape)


def test_the_package_keeps_its_limits() -> None:
    counts = shape.shape()
    assert counts["modules"] <= shape.MOST_MODULES
    assert counts["lines"] <= shape.MOST_LINES
    assert counts["longest module"] <= shape.LONGEST_MODULE
    assert counts["most modules in a folder"] <= shape.MOST_IN_A_FOLDER
    assert counts["share of modules with a single importer"] <= shape.MOST_SINGLE_IMPORTERS


def test_no_two_modules_of_a_folder_differ_by_a_suffix() -> None:
    assert shape.suffix_pairs(shape.modules()) == []


def test_retired_names_and_phrases_stay_retired() -> None:
    assert shape.retired_words(shape.modules()) == []


def test_the_counts_see_what_they_count(tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text("x = 1\n")
    (tmp_path / "fit_lake.py").write_text("from pkg.fit import x\n")
    found = {"pkg.fit": tmp_path / "fit.py", "pkg.fit_lake": tmp_path / "fit_lake.py"}
    assert shape.importers(found) == {"pkg.fit": {"pkg.fit_lake"}}
    assert shape.suffix_pairs(found) == [(f"{tmp_path.name}/fit", "fit_lake")]


def test_every_module_that_the_map_names_exists() -> None:
    page = shape.PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)", page)) - {"tests/test_shape.py"}
    assert len(named) > 30
    assert [name for name in sorted(named) if not (shape.SOURCE / "redenvelope" / name).exists()] == []


def test_every_room_is_on_the_map() -> None:
    page = shape.PAGE.read_text(encoding="utf-8")
    rooms = {path.parent.relative_to(shape.SOURCE / "redenvelope").as_posix() for path in shape.modules().values()}
    assert [room for room in sorted(rooms - {"."}) if f"`{room}/`" not in page] == []
