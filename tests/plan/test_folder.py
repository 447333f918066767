import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from redenvelope import FiniteCampaign, Plan, PlanError, UsageError
from redenvelope.plan.storage import FORMAT
from tests.adversary.signed import edit, edit_json, sign


@pytest.fixture
def folder(plan: Plan, tmp_path: Path) -> Path:
    return plan.save(tmp_path / "plan", {"report.html": b"a report, which takes seconds to draw"})


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
    assert manifest["format"] == FORMAT
    assert set(manifest["files"]) == names - {"plan.json"}


def test_saving_again_replaces_a_plan_and_nothing_else(plan: Plan, folder: Path, tmp_path: Path) -> None:
    plan.save(folder, {})
    assert Plan.load(folder).certificate == plan.certificate
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.png").write_text("not a plan")
    with pytest.raises(UsageError, match="not a plan"):
        plan.save(other, {})
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


def test_a_newer_format_is_refused(folder: Path) -> None:
    edit(folder, format=99)
    with pytest.raises(PlanError, match="upgrade redenvelope"):
        Plan.load(folder)


def test_the_format_before_is_read(plan: Plan, folder: Path) -> None:
    """Its frontier of one budget did not say the budget's name."""
    buffer = BytesIO()
    plan.frontier.drop("budget").write_parquet(buffer)
    sign(
        folder,
        json.loads((folder / "plan.json").read_text()) | {"format": FORMAT - 1},
        frontier_parquet=buffer.getvalue(),
    )
    opened = Plan.load(folder)
    assert opened.frontier.equals(plan.frontier)
    assert opened.certificate == plan.certificate
    opened.save(folder, {})
    assert json.loads((folder / "plan.json").read_text())["format"] == FORMAT
    assert Plan.load(folder).frontier.equals(plan.frontier)


def test_a_frontier_of_the_format_before_is_checked_as_well(plan: Plan, folder: Path) -> None:
    edit(folder, format=FORMAT - 1)
    with pytest.raises(PlanError, match=r"frontier\.parquet must have the columns dual"):
        Plan.load(folder)


@pytest.mark.parametrize("format_", [FORMAT - 2, 3, 1, 0, -1])
def test_an_older_format_is_refused_with_what_to_do(folder: Path, format_: int) -> None:
    edit(folder, format=format_, package="0.1.0")
    with pytest.raises(PlanError, match=f"format {format_} by version 0.1.0.*make the plan again"):
        Plan.load(folder)


def test_another_price_under_the_same_certificate_is_refused(folder: Path) -> None:
    edit(folder, pricing={"prices": [[0.0]], "shares": [1.0]})
    with pytest.raises(PlanError, match="not that of the ladder's place"):
        Plan.load(folder)


def test_files_outside_of_the_folder_are_not_opened(folder: Path) -> None:
    manifest = json.loads((folder / "plan.json").read_text())
    (folder.parent / "secret").write_text("secret")
    sign(folder, manifest | {"files": manifest["files"] | {"../secret": ""}})
    with pytest.raises(PlanError, match="outside of the folder"):
        Plan.load(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", "null", '{"format": "x"}', '{"format": 2}'])
def test_a_manifest_that_is_none_is_refused(folder: Path, content: str) -> None:
    (folder / "plan.json").write_text(content)
    with pytest.raises(PlanError):
        Plan.load(folder)


@pytest.mark.parametrize("key", ["source", "policy", "pricing", "encoder", "catalogue", "record"])
def test_a_manifest_with_a_part_of_the_wrong_kind_is_refused(folder: Path, key: str) -> None:
    edit(folder, **{key: {"nothing": 1}})
    with pytest.raises(PlanError):
        Plan.load(folder)


@pytest.mark.parametrize("format_", [True, None, "4", 4.0, [4]])
def test_a_format_that_is_no_whole_number_is_refused(folder: Path, format_: object) -> None:
    edit(folder, format=format_)
    with pytest.raises(PlanError, match="not the manifest of a plan"):
        Plan.load(folder)


def test_every_flipped_bit_of_the_manifest_is_refused(folder: Path) -> None:
    content = (folder / "plan.json").read_bytes()
    generator = np.random.default_rng(0)
    # Every bit of the parts that matter most would take minutes; these are drawn from all of it.
    for place in generator.choice(len(content) * 8, 400, replace=False):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << (place % 8)
        (folder / "plan.json").write_bytes(flipped)
        with pytest.raises(PlanError):
            Plan.load(folder)


def test_other_labels_under_the_same_certificate_are_refused(plan: Plan, folder: Path) -> None:
    labels = list(plan.catalogue.labels)
    edit(folder, catalogue={"labels": [*labels[1:], labels[0]], "numeric": plan.catalogue.numeric})
    with pytest.raises(PlanError, match="not this policy's"):
        Plan.load(folder)


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"actions": ["gift"], "at_most": 1}, "an action that the plan does not know"),
        ({"actions": ["0"], "only_where": "secret > 1"}, "asks for 'secret'"),
        ({"actions": ["0"], "only_where": "state > 1"}, "asks for 'state'"),
        ({"actions": ["0"], "only_where": "__import__('os')"}, "cannot be read"),
        ({"actions": ["0"], "only_where": "(" * 900 + "step" + ")" * 900}, "nested levels"),
        ({"actions": ["0"], "at_most": -1}, "whole number"),
        ({"actions": ["0"], "cooldown": 10**9}, "whole number"),
        ({"actions": [], "at_most": 1}, "list of action labels"),
        ({"actions": ["0"], "at_most": 1, "only_where": "step > 1"}, "already has only_where"),
        ({"actions": "0", "at_most": 1}, "damaged"),
        ([[]], "damaged"),
    ],
)
def test_rules_that_make_no_sense_here_are_refused(plan: Plan, folder: Path, rule: object, complaint: str) -> None:
    if isinstance(rule, dict) and rule["actions"] == ["0"]:
        rule = rule | {"actions": [plan.catalogue.labels[0]]}
    edit(folder, rules=[rule] if isinstance(rule, dict) else rule)
    with pytest.raises(PlanError, match=complaint):
        Plan.load(folder)


def test_other_rules_under_the_same_certificate_are_refused(plan: Plan, folder: Path) -> None:
    edit(folder, rules=[{"actions": [plan.catalogue.labels[-1]], "at_most": 1}])
    with pytest.raises(PlanError, match="not this policy's"):
        Plan.load(folder)
    edit(folder, rules=[{"actions": [plan.catalogue.labels[-1]], "cooldown": 60}] * 9)
    with pytest.raises(PlanError, match="look back too many steps"):
        Plan.load(folder)


@pytest.mark.parametrize("explore", [-0.1, 1.5, {"number": "not a number"}])
def test_an_exploration_that_is_no_share_is_refused(folder: Path, explore: object) -> None:
    written = json.loads((folder / "plan.json").read_text())["policy"]
    edit(folder, policy=written | {"explore": explore})
    with pytest.raises(PlanError, match="explore is a share"):
        Plan.load(folder)


def test_a_manifest_without_files_is_refused(folder: Path) -> None:
    manifest = json.loads((folder / "plan.json").read_text())
    sign(folder, manifest | {"files": {}})
    with pytest.raises(PlanError, match="must name"):
        Plan.load(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"budget": "four"},
        {"budget": 0.001},
        {"cost": None},
        {"reasons": ["because"]},
        {"status": "approved"},
        {"dual": "infinity"},
        {"dual": -1.0},
        {"budgets": []},
        {"users": 10**9},
        {"confidence": 2.0},
        {"logged": {}},
        {"method": "magic"},
        {"cost": {"estimate": 0.1, "lower": 0.1, "upper": 0.1, "standard_error": 0.0, "estimator": "marginalised"}},
    ],
)
def test_a_certificate_of_other_figures_is_refused(folder: Path, changes: dict[str, object]) -> None:
    edit_json(folder, "certificate.json", **changes)
    with pytest.raises(PlanError, match=r"certificate"):
        Plan.load(folder)


def test_a_folder_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="not a"):
        Plan.load(tmp_path)
