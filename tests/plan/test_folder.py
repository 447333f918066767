import json
from pathlib import Path

import numpy as np
import pytest

from redenvelope.errors import PlanError, UsageError
from redenvelope.plan.plan import Plan
from redenvelope.simulate.finite import FiniteCampaign


@pytest.fixture
def folder(plan: Plan, tmp_path: Path) -> Path:
    return plan.save(tmp_path / "plan")


def test_a_plan_comes_back_as_it_was(plan: Plan, folder: Path, campaign: FiniteCampaign) -> None:
    opened = Plan.load(folder)
    users = campaign.log(50, seed=1).select("user", "step", "state")
    np.testing.assert_array_equal(opened.policy.probabilities(users), plan.policy.probabilities(users))
    assert opened.certificate == plan.certificate
    assert opened.frontier.equals(plan.frontier)
    assert opened.record == plan.record


def test_the_contracts_files(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert {"plan.json", "weights.safetensors", "frontier.parquet", "certificate.json", "ladder.json"} <= names
    manifest = json.loads((folder / "plan.json").read_text())
    assert manifest["format"] == 3
    assert set(manifest["files"]) == names - {"plan.json"}


def test_saving_again_replaces_a_plan_and_nothing_else(plan: Plan, folder: Path, tmp_path: Path) -> None:
    plan.save(folder)
    assert Plan.load(folder).certificate == plan.certificate
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.png").write_text("not a plan")
    with pytest.raises(UsageError, match="not a plan"):
        plan.save(other)
    assert (other / "cat.png").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["weights.safetensors", "frontier.parquet", "certificate.json"])
def test_a_changed_file_is_refused(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(PlanError, match=f"{name} is damaged or was changed"):
        Plan.load(folder)


@pytest.mark.parametrize("name", ["plan.json", "weights.safetensors", "frontier.parquet", "certificate.json"])
def test_a_missing_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(PlanError, match=f"no {name}"):
        Plan.load(folder)


def _edit(folder: Path, **changes: object) -> None:
    manifest = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(manifest | changes))


def test_a_newer_format_is_refused(folder: Path) -> None:
    _edit(folder, format=99)
    with pytest.raises(PlanError, match="upgrade redenvelope"):
        Plan.load(folder)


@pytest.mark.parametrize("format_", [1, 0, -1])
def test_an_older_format_is_refused_with_what_to_do(folder: Path, format_: int) -> None:
    _edit(folder, format=format_, package="0.1.0")
    with pytest.raises(PlanError, match=f"format {format_} by version 0.1.0.*make the plan again"):
        Plan.load(folder)


def test_another_price_under_the_same_certificate_is_refused(folder: Path) -> None:
    _edit(folder, pricing={"prices": [[0.0]], "shares": [1.0]})
    with pytest.raises(PlanError, match="not this policy's"):
        Plan.load(folder)


def test_files_outside_of_the_folder_are_not_opened(folder: Path) -> None:
    _edit(folder, files={"../secret": "0" * 64})
    with pytest.raises(PlanError, match="outside of the folder"):
        Plan.load(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", "null", '{"format": "x"}', '{"format": 2}'])
def test_a_manifest_that_is_none_is_refused(folder: Path, content: str) -> None:
    (folder / "plan.json").write_text(content)
    with pytest.raises(PlanError):
        Plan.load(folder)


@pytest.mark.parametrize("key", ["source", "policy", "pricing", "encoder", "catalogue", "record"])
def test_a_manifest_with_a_part_of_the_wrong_kind_is_refused(folder: Path, key: str) -> None:
    _edit(folder, **{key: {"nothing": 1}})
    with pytest.raises(PlanError):
        Plan.load(folder)


def test_a_folder_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="not a"):
        Plan.load(tmp_path)
