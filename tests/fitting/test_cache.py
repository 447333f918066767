"""Cached stages: the same bytes with and without, nothing made twice, nothing believed that is damaged."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from redenvelope import Cache, Event, FitSettings, Log, Plan, UsageError, fit, log_from_frame, two_step
from redenvelope.fitting.stage_cache import log_sha256
from redenvelope.progress import Phase
from tests.quick_programs import quick_programs
from tests.two_step_plan import BUDGET, QUICK

STAGES = ("model", "fidelity", "policy", "check")


@pytest.fixture(scope="module")
def small() -> Log:
    return log_from_frame(two_step().log(1_500, seed=5))


def made(
    log: Log, cache: Cache | None, budget: float = BUDGET, stop_after: str = "", **settings: object
) -> tuple[Plan, dict[str, str]]:
    """A plan, and what its stages said."""
    said: dict[str, str] = {}

    def listen(event: Event) -> None:
        if event.phase is Phase.DONE:
            said[event.stage] = event.message
            if event.stage == stop_after:
                raise KeyboardInterrupt

    wanted = FitSettings(neural=QUICK, **settings)  # type: ignore[arg-type]
    with quick_programs():
        return fit(log, budget=budget, settings=wanted, progress=listen, cache=cache), said


def files(plan: Plan, folder: Path) -> dict[str, bytes]:
    plan.save(folder, {})
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def cached(said: dict[str, str]) -> set[str]:
    return {stage for stage, message in said.items() if message.endswith("(cached)")}


def test_plans_are_the_same_bytes_with_and_without(small: Log, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    plain, _ = made(small, None)
    with pytest.raises(KeyboardInterrupt):
        made(small, cache, stop_after="fidelity")
    cold, cold_said = made(small, cache)
    assert cached(cold_said) == {"model", "fidelity"}  # it goes on after the last finished stage
    warm, warm_said = made(small, Cache(tmp_path / "cache"))
    assert cached(warm_said) == set(STAGES)
    wanted = files(plain, tmp_path / "plain")
    assert files(cold, tmp_path / "cold") == wanted
    assert files(warm, tmp_path / "warm") == wanted


@pytest.mark.slow
def test_another_budget_finds_all_another_search_the_model_and_damage_is_made_anew(small: Log, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    made(small, cache)
    other, other_said = made(small, cache, budget=2.5)
    assert cached(other_said) == set(STAGES)
    # Another search finds the model alone.
    _, searched = made(small, cache, temperature=0.05)
    assert cached(searched) == {"model", "fidelity"}
    spoil(cache, lambda content: content[:-1] + bytes([content[-1] ^ 1]))
    mended, said = made(small, cache, budget=2.5)
    assert cached(said) == set()
    assert files(mended, tmp_path / "mended") == files(other, tmp_path / "other")
    assert any("damaged" in note for note in cache.notes)


def spoil(cache: Cache, change: Callable[[bytes], bytes]) -> None:
    for path in cache.folder.iterdir():
        path.write_bytes(change(path.read_bytes()))


def test_damage_of_every_kind_is_not_there(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    arrays = {"b": np.array([True, False]), "none": np.zeros((0, 2), np.float32)}
    arrays["a"] = np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::2]
    cache.put("key", {"name": "ä", "count": 3}, arrays)
    found = cache.get("key")
    assert found is not None
    assert found[0] == {"name": "ä", "count": 3}
    assert {name: array.dtype for name, array in found[1].items()} == {n: each.dtype for n, each in arrays.items()}
    for name, array in found[1].items():
        np.testing.assert_array_equal(array, arrays[name])
        assert array.flags.aligned  # slow, and refused by some libraries, if it were not
    whole = (tmp_path / "key.stage").read_bytes()
    for damaged in (b"", whole[:20], whole[:-3], whole + b"x", b"\0" * len(whole), whole[:40] + b"7" + whole[41:]):
        (tmp_path / "key.stage").write_bytes(damaged)
        assert cache.get("key") is None
    assert cache.get("another") is None


def test_the_oldest_goes_when_there_is_no_room(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=10_000)
    for name in ("one", "two", "three"):
        cache.put(name, {}, {"a": np.zeros(500)})
        if name == "two":
            assert cache.get("one") is not None  # used again, so that the second is the oldest
    assert [cache.get(name) is not None for name in ("one", "two", "three")] == [True, False, True]
    cache.put("large", {}, {"a": np.zeros(1_000)})
    assert cache.get("large") is None
    with pytest.raises(UsageError):
        Cache(tmp_path, limit_bytes=-1)


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    cache = Cache(tmp_path / "file" / "inside")
    cache.put("key", {}, {})
    assert cache.get("key") is None
    assert "not stored" in cache.notes[0]


def test_every_number_and_name_of_a_log_is_in_its_hash(small: Log) -> None:
    frame = two_step().log(1_500, seed=5)
    hashes = {log_sha256(small), log_sha256(log_from_frame(two_step().log(1_500, seed=6)))}
    for name in ("reward", "cost", "propensity"):
        hashes.add(log_sha256(log_from_frame(frame.with_columns(frame[name] * 0.999))))
    hashes.add(log_sha256(log_from_frame(frame.rename({"state": "place"}))))
    assert len(hashes) == 6
    assert log_sha256(log_from_frame(frame.reverse())) == log_sha256(small)
    assert json.dumps(sorted(hashes))
