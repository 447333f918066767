"""A plan that is well signed and wrong inside is refused in a sentence, or works: finite numbers, no hang."""

import json
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redenvelope import FiniteCampaign, Plan, PlanError, render_report
from tests.two_step_plan import campaign, log, plan, stages

from .plans import ODD
from .signed import sign
from .trials import Good, plan_trial, used

__all__ = ["campaign", "log", "plan", "stages"]


@pytest.fixture
def good(plan: Plan, campaign: FiniteCampaign, tmp_path: Path) -> Good:
    frame = campaign.log(200, seed=5)
    frame.write_parquet(tmp_path / "log.parquet")
    used(plan, frame, draw=False)  # compiled here, so that no trial waits for it
    return Good(plan.save(tmp_path / "good", {"report.html": b"<p>a report</p>"}), tmp_path / "log.parquet")


def test_mutated_plans_are_refused_or_work(good: Good, tmp_path: Path) -> None:
    ended = Counter(plan_trial(number, tmp_path, good) for number in range(150))
    # Most parts matter, and not all: an adversary whose changes go unnoticed would be none, nor one who never gets in.
    assert ended["refused"] > 75
    assert ended["used"] > 15


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["plan.json", "certificate.json", "ladder.json"])
def test_every_field_may_be_anything(good: Good, name: str, every: int) -> None:
    """Whatever stands where a number, a list or a table should: the plan opens, or is refused in words.

    Every field with every odd value, or with every third, a different third in each field.
    """
    content = json.loads((good.folder / name).read_text())
    refused = 0
    for number, (place, key) in enumerate(_places(content, deepest=2)):
        held = place[key]
        for odd in ODD[number % every :: every]:
            place[key] = odd
            own = {"manifest": content} if name == "plan.json" else {name.replace(".", "_"): _json(content)}
            sign(good.folder, **own)
            try:
                Plan.load(good.folder)
            except PlanError as error:
                refused += 1
                assert str(error).strip()
        place[key] = held
    assert refused > 50 / every  # most fields matter


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan.json", "certificate.json", "ladder.json"])
def test_every_list_may_be_of_any_length(good: Good, name: str) -> None:
    """A report is drawn from lists that stand beside each other: one that is too short is refused before."""
    content = json.loads((good.folder / name).read_text())
    refused, seen = 0, set()
    for place, key, path in _lists(content):
        held = place[key]
        for other in (held[1:], [*held, *held[-1:]], [], held[::-1], [0] * len(held), [1e300] * len(held)):
            if (path, repr(other)) in seen:
                continue
            seen.add((path, repr(other)))
            place[key] = other
            own = {"manifest": content} if name == "plan.json" else {name.replace(".", "_"): _json(content)}
            sign(good.folder, **own)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    render_report(Plan.load(good.folder))
            except PlanError:
                refused += 1
        place[key] = held
    assert refused  # a certificate has one list, the others hundreds


def _lists(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any, tuple[str, ...]]]:
    """Every list that holds anything; of those in a list, the first two."""
    for key in list(content) if isinstance(content, dict) else range(len(content))[:2]:
        value, here = content[key], (*path, "*" if isinstance(key, int) else key)
        if key in ("seal", "files"):
            continue
        if isinstance(value, list) and value:
            yield content, key, here
        if isinstance(value, dict | list):
            yield from _lists(value, here)


def _places(content: Any, deepest: int) -> Iterator[tuple[Any, Any]]:
    """Every field down to a depth; of a list, its first element."""
    for key in list(content) if isinstance(content, dict) else range(len(content))[:1]:
        if key in ("seal", "files"):
            continue
        yield content, key
        if deepest > 1 and isinstance(content[key], dict | list):
            yield from _places(content[key], deepest - 1)


def _json(content: Any) -> bytes:
    return json.dumps(content).encode()
