"""A file is replaced whole or not at all, whatever happens in between."""

import os
import stat
from pathlib import Path

import pytest

from redenvelope import UsageError
from redenvelope.files import forget, nameless, read_regular, replacing, require_writable, same_file


@pytest.fixture(params=["without names", "with names"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Systems without nameless files are served too."""
    if request.param == "with names":
        monkeypatch.delattr(os, "O_TMPFILE")
    return str(request.param)


def test_a_file_appears_when_it_is_whole(tmp_path: Path, way: str) -> None:
    path = tmp_path / "deep" / "file"
    with replacing(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_the_old_file_stands_until_then_and_when_it_fails(tmp_path: Path, way: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"half of the ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_permissions_are_those_of_the_old_file_or_the_usual_ones(tmp_path: Path, way: str) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_bytes(b"")
    old.chmod(0o640)
    (tmp_path / "usual").write_bytes(b"")
    for path in (new, old):
        with replacing(path) as file:
            file.write(b"x")
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert new.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_link_is_followed(tmp_path: Path, way: str) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    with replacing(link) as file:
        file.write(b"x")
    assert link.is_symlink()
    assert target.read_bytes() == b"x"


@pytest.mark.parametrize("name", ["o[1].csv", "*", "~", "a b", "ü", "x" * 255, "-x", "^a$", "\udcff"])
def test_any_name_is_a_name(tmp_path: Path, way: str, name: str) -> None:
    with replacing(tmp_path / name) as file:
        file.write(b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "below", tmp_path / "folder", tmp_path / ("x" * 300)):
        with pytest.raises(UsageError, match=r"cannot be written|is not a file"), replacing(path):
            pass
    with pytest.raises(UsageError, match="cannot be written"):
        require_writable(tmp_path / "file" / "below")
    require_writable(tmp_path / "not" / "yet" / "there")
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize("way", ["with names"], indirect=True)
def test_what_a_killed_process_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path, way: str) -> None:
    (tmp_path / ".file.0123.unfinished").write_bytes(b"left")
    (tmp_path / "file.unfinished").write_bytes(b"mine")
    with nameless(tmp_path / "file") as being_written:
        forget(tmp_path, ".file.")
        assert Path(being_written.name).exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.unfinished"]


def test_only_regular_files_of_a_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(100))
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path, tmp_path / "large"):
        with pytest.raises(OSError, match=r"regular file|bytes|directory"):
            read_regular(path, 99)
    assert len(read_regular(tmp_path / "large", 100)) == 100


def test_two_names_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert same_file(tmp_path / "a", tmp_path / "b")
    assert not same_file(tmp_path / "a", tmp_path / "none")
