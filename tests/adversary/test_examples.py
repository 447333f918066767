"""What was once seen to break the program, in plans that are well signed: each is refused in a sentence."""

import json
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load, save

from redenvelope import ModelError, Plan, PlanError
from redenvelope.plan.storage import MANIFEST, sealed
from tests.two_step_plan import campaign, log, plan, stages

from .plans import certify
from .signed import edit, edit_json, sign
from .trials import in_time

__all__ = ["campaign", "log", "plan", "stages"]


@pytest.fixture(scope="module")
def good(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plan.save(tmp_path_factory.mktemp("good") / "plan", {"report.html": b"<p>a report</p>"})


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Iterator[Path]:
    yield shutil.copytree(good, tmp_path / "plan")
    shutil.rmtree(tmp_path / "plan")


def refused(folder: Path, said: str) -> None:
    certify(folder)
    with in_time(), pytest.raises(PlanError, match=said) as refusal:
        Plan.load(folder)
    assert len(str(refusal.value)) < 1_000


def changed(folder: Path, path: str, value: Any) -> None:
    """Another value somewhere in the manifest."""
    manifest = json.loads((folder / MANIFEST).read_text())
    *parents, last = path.split(".")
    place = manifest
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    assert last in place
    place[last] = value
    sign(folder, manifest)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("record", [], "record"),
        ("record", None, "record"),
        ("record.shares", "none", "shares"),
        ("source.config.architecture.outcome_hidden", [10**9], "layer 0 of the outcome network"),
        ("source.config.architecture.outcome_hidden", [10**9] * 3, "outcome network"),
        ("source.config.architecture.transition_hidden", [10**9], "transition network"),
        ("source.config.architecture.outcome_hidden", [], "do not fit"),
        ("source.config.architecture.outcome_hidden", [-1], "sizes|size|least"),
        ("source.config.architecture.members", 10**9, "members"),
        ("source.config.architecture.actions", 10**9, "actions"),
        ("source.config.reward_target.scale", 1e300, "target"),
        ("policy.horizon", 10**9, "horizon"),
        ("policy.steps", 10**9, "steps"),
        ("policy.temperature", 1e300, "temperature"),
        ("policy.temperature", 1e-300, "temperature"),
        ("catalogue.numeric", True, "numeric"),
        ("catalogue.labels", ["a0", "a0", "a1", "a2"], "same label"),
        ("encoder.first_step", 2**62, "first step"),
        ("pricing.prices", [], "pric|damaged"),
    ],
)
def test_a_manifest_with_such_a_part_is_refused(folder: Path, path: str, value: Any, said: str) -> None:
    changed(folder, path, value)
    refused(folder, said)


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        (b'"a0"', b'"\\ud800"', "damaged"),
        (b'"temperature": ', b'"temperature": 1e400, "before": ', "damaged|temperature"),
        (b'"horizon": ', b'"horizon": 1e400, "before": ', "damaged"),
    ],
)
def test_what_json_allows_and_nothing_else_does_is_refused(
    folder: Path, written: bytes, instead: bytes, said: str
) -> None:
    """Lone surrogates and numbers beyond all numbers, which no library here would write."""
    content = (folder / MANIFEST).read_bytes()
    assert written in content
    seal = json.loads(content)["seal"].encode()
    blank = content.replace(written, instead).replace(seal, b"0" * 64, 1)
    (folder / MANIFEST).write_bytes(blank.replace(b"0" * 64, sha256(blank).hexdigest().encode(), 1))
    with in_time(), pytest.raises(PlanError, match=said):
        Plan.load(folder)


def test_categories_that_do_not_fit_the_states_are_refused(folder: Path) -> None:
    encoder = json.loads((folder / MANIFEST).read_text())["encoder"]
    (category,) = encoder["categories"]
    edit(folder, encoder=encoder | {"categories": [category | {"labels": [*category["labels"], "another"]}]})
    refused(folder, "encoder")


@pytest.mark.parametrize(
    "changes",
    [{"budget": "four"}, {"cost": None}, {"reasons": None}, {"status": "approved"}, {"dual": "infinity"}, {"dual": {}}],
)
def test_a_certificate_with_such_a_part_is_refused(folder: Path, changes: dict[str, Any]) -> None:
    edit_json(folder, "certificate.json", **changes)
    refused(folder, "certificate")


FRONTIERS: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "no columns": lambda frame: pl.DataFrame(),
    "fewer columns": lambda frame: frame.drop("cost"),
    "texts": lambda frame: frame.with_columns(pl.col("cost").cast(pl.String)),
    "nulls": lambda frame: frame.with_columns(pl.lit(None, pl.Float64).alias("cost")),
    "dates": lambda frame: frame.with_columns(pl.lit("2020-01-01").str.to_date().alias("cost")),
    "decimals": lambda frame: frame.with_columns(pl.lit(1).cast(pl.Decimal(10, 2)).alias("cost")),
    "lists": lambda frame: frame.with_columns(pl.concat_list("cost").alias("cost")),
    "no rows": lambda frame: frame.clear(),
    "two million rows": lambda frame: frame.head(1).select(pl.all().repeat_by(2_000_000).explode()),
}


@pytest.mark.parametrize("name", FRONTIERS)
def test_a_frontier_of_such_a_kind_is_refused(folder: Path, name: str) -> None:
    buffer = BytesIO()
    FRONTIERS[name](pl.read_parquet(folder / "frontier.parquet")).write_parquet(buffer)
    sign(folder, frontier_parquet=buffer.getvalue())
    refused(folder, r"frontier\.parquet")


def test_weights_whose_answers_are_no_numbers_decide_nothing(folder: Path) -> None:
    """Every weight is a number, and what comes of them is not."""
    arrays = load((folder / "weights.safetensors").read_bytes())
    sign(folder, weights_safetensors=save({name: np.full_like(array, 3e38) for name, array in arrays.items()}))
    certify(folder)
    opened = Plan.load(folder)
    users = pl.DataFrame({"user": [1, 2], "step": [0, 1], "state": ["s0", "s1"]})
    with pytest.raises(ModelError, match=r"not finite numbers|gives no number"):
        opened.allocate(users)


def test_a_seal_is_over_all_of_it(good: Path) -> None:
    manifest = json.loads((good / MANIFEST).read_text())
    files = {name: (good / name).read_bytes() for name in manifest["files"]}
    plain = {key: value for key, value in manifest.items() if key not in ("seal", "files")}
    assert sealed(plain, files) == (good / MANIFEST).read_bytes()
