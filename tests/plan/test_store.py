"""A plan takes another's place whole or not at all, and nothing but its own files is ever touched."""

import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from redenvelope import Plan, PlanError, UsageError
from redenvelope.plan import storage as store


@pytest.fixture
def plans(plan: Plan) -> list[Plan]:
    """Plans that can be told apart, with reports of their own."""
    return [replace(plan, record=replace(plan.record, seed=number)) for number in range(3)]


def save(plan: Plan, folder: Path) -> Path:
    return plan.save(folder, {"report.html": b"report of %d" % plan.record.seed})


def seed_of(folder: Path) -> int:
    return Plan.load(folder).record.seed


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


OWN = {"plan.json", "weights.safetensors", "frontier.parquet", "certificate.json", "ladder.json", "report.html"}


def test_a_plan_is_replaced_and_what_else_is_there_stays(plans: list[Plan], tmp_path: Path) -> None:
    folder = save(plans[0], tmp_path / "plan")
    (folder / "notes.txt").write_text("mine")
    (folder / "sub").mkdir()
    save(plans[1], folder)
    assert seed_of(folder) == 1
    assert names(folder) == OWN | {"notes.txt", "sub"}
    assert (folder / "report.html").read_bytes() == b"report of 1"


def test_a_report_of_the_older_plan_goes_with_it_unless_it_was_changed(plans: list[Plan], tmp_path: Path) -> None:
    folder = save(plans[0], tmp_path / "plan")
    plans[1].save(folder, {})
    assert names(folder) == OWN - {"report.html"}
    save(plans[0], folder)
    (folder / "report.html").write_text("with my remarks")
    plans[1].save(folder, {})
    assert (folder / "report.html").read_text() == "with my remarks"


@pytest.mark.parametrize("content", ["{}", "[]", "", '{"format": 1, "files": {}}', '{"name": "my own plan"}', "\0"])
def test_a_file_of_the_same_name_is_no_plan(plans: list[Plan], tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    (tmp_path / "thesis.docx").write_text("years of work")
    with pytest.raises(UsageError, match="not a plan"):
        save(plans[0], tmp_path)
    assert names(tmp_path) == {"plan.json", "thesis.docx"}
    assert (tmp_path / "plan.json").read_text() == content


def test_a_link_to_a_plan_to_an_empty_folder_or_to_nothing_is_followed(plans: list[Plan], tmp_path: Path) -> None:
    targets = [tmp_path / "old", tmp_path / "empty", tmp_path / "deep" / "nothing"]
    save(plans[0], targets[0])
    targets[1].mkdir()
    for number, target in enumerate(targets):
        link = tmp_path / f"link{number}"
        link.symlink_to(target)
        save(plans[1], link)
        assert link.is_symlink()
        assert seed_of(link) == seed_of(target) == 1


@pytest.mark.parametrize("given", [".", "./", "sub/.."])
def test_the_working_folder_is_a_folder_too(
    plans: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    (tmp_path / "plan").mkdir()
    monkeypatch.chdir(tmp_path / "plan")
    if given == "sub/..":
        Path("sub").mkdir()
        save(plans[2], Path("sub"))
        Path("sub").rename(tmp_path / "sub")
        Path("sub").mkdir()
        Path("plan.json").write_bytes((tmp_path / "sub" / "plan.json").read_bytes())
    save(plans[0], Path(given))
    save(plans[1], Path(given))
    assert seed_of(Path()) == 1
    assert names(tmp_path / "plan") >= OWN


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of two megabytes, as a container's volume would be."""
    folder = tmp_path / "volume"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_mount_point_that_holds_a_plan_keeps_one(plans: list[Plan], volume: Path) -> None:
    (volume / "lost+found").mkdir()
    save(plans[0], volume)
    save(plans[1], volume)
    assert seed_of(volume) == 1


def test_a_full_disk_is_said_before_and_leaves_the_older_plan(plans: list[Plan], volume: Path) -> None:
    folder = save(plans[0], volume / "plan")
    (volume / "ballast").write_bytes(bytes(1_600_000))
    with pytest.raises(UsageError, match="No space left"):
        store.require_room(volume / "plan")
    with pytest.raises(UsageError, match="No space left"):
        save(plans[1], volume / "plan")
    assert seed_of(folder) == 0
    assert names(folder) == OWN


class Killed(BaseException):
    pass


def _kill_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    """Nothing is done any more from the so manieth renaming, linking or removing on: not even tidying up."""
    done = [0]

    def until(function: object) -> object:
        def counted(*given: object, **named: object) -> object:
            done[0] += 1
            if done[0] > moment:
                raise Killed
            return function(*given, **named)  # type: ignore[operator]

        return counted

    monkeypatch.setattr(Path, "replace", until(Path.replace))
    monkeypatch.setattr(Path, "unlink", until(Path.unlink))
    monkeypatch.setattr(os, "link", until(os.link))


@pytest.mark.parametrize("moment", range(24))
def test_killed_between_any_two_steps_the_old_plan_stands_or_the_new_one(
    plans: list[Plan], tmp_path: Path, moment: int
) -> None:
    folder = save(plans[0], tmp_path / "plan")
    with pytest.MonkeyPatch.context() as monkeypatch:
        _kill_at(monkeypatch, moment)
        try:
            save(plans[1], folder)
            finished = True
        except Killed:
            finished = False
    assert seed_of(folder) in ((1,) if finished else (0, 1))
    save(plans[2], folder)
    assert seed_of(folder) == 2
    assert names(folder) == OWN


def test_readers_never_meet_half_a_plan_while_two_write(plans: list[Plan], tmp_path: Path) -> None:
    folder = save(plans[0], tmp_path / "plan")
    met: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                manifest, files = store.read_files(folder)
                met.append((manifest["record"]["seed"], files["report.html"]))
            except PlanError as error:
                met.append(error)

    def write(which: int) -> None:
        for _ in range(25):
            save(plans[which], folder)

    reader, writers = threading.Thread(target=read), [threading.Thread(target=write, args=(own,)) for own in (1, 2)]
    for thread in (reader, *writers):
        thread.start()
    for writer in writers:
        writer.join()
    done.set()
    reader.join()
    assert len(met) > 25
    assert set(met) <= {(seed, b"report of %d" % seed) for seed in range(3)}
    assert seed_of(folder) in (1, 2)
    assert names(folder) == OWN


@pytest.mark.parametrize("name", ["report.html", "weights.safetensors", "plan.json"])
def test_only_regular_files_are_opened(plans: list[Plan], tmp_path: Path, name: str) -> None:
    folder = save(plans[0], tmp_path / "plan")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(PlanError, match="not a regular file"):
        Plan.load(folder)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(PlanError, match="not a regular file"):
        Plan.load(folder)
