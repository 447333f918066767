"""One folder takes another's place: no moment without a plan, nothing lost when it fails."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from redenvelope.plan import swap
from redenvelope.plan.swap import put_in_place


def folder(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "plan.json").write_text(content)
    return path


@pytest.mark.parametrize("exchanges", [True, False])
def test_the_new_folder_stands_where_the_old_one_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    if not exchanges:
        monkeypatch.setattr(swap, "_exchanged", lambda first, second: False)
    old, new = folder(tmp_path / "plan", "old"), folder(tmp_path / ".plan-new", "new")
    put_in_place(new, old)
    assert (tmp_path / "plan" / "plan.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def test_without_an_old_folder_the_new_one_is_simply_renamed(tmp_path: Path) -> None:
    put_in_place(folder(tmp_path / ".new", "new"), tmp_path / "plan")
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def test_the_old_folder_comes_back_when_the_new_one_cannot_be_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swap, "_exchanged", lambda first, second: False)
    old, new = folder(tmp_path / "plan", "old"), folder(tmp_path / ".new", "new")
    replace = Path.replace

    def fail(path: Path, target: Path) -> Path:
        if path == new:
            raise OSError("no space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        put_in_place(new, old)
    assert (old / "plan.json").read_text() == "old"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux exchanges names in one step")
def test_a_reader_never_finds_the_place_empty(tmp_path: Path) -> None:
    place = folder(tmp_path / "plan", "0")
    done, missing = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            if not place.exists():
                missing.append(place)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(300):
        put_in_place(folder(tmp_path / f".new-{number}", str(number)), place)
    done.set()
    reader.join()
    assert not missing
    assert (place / "plan.json").read_text() == "299"
