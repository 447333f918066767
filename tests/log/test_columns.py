"""How a table's own names are told: by flag and by campaign file."""

from __future__ import annotations

from pathlib import Path

import pytest

from redenvelope import ColumnMap, LogError, UsageError, read_log
from redenvelope.log.columns import ROLES

from .files import good_log


def test_every_role_stands_for_itself_unless_told() -> None:
    mapping = ColumnMap.parse(" user = customer_id , reward=active,", " row_id ,comment")
    assert mapping.name_of("user") == "customer_id"
    assert mapping.name_of("reward") == "active"
    assert mapping.ignored == {"row_id", "comment"}
    assert all(mapping.name_of(role) == role for role in set(ROLES) - {"user", "reward"})
    assert ColumnMap.parse() == ColumnMap.parse("", "") == ColumnMap()


def test_roles_may_trade_names(tmp_path: Path) -> None:
    good_log().rename({"reward": "cost", "cost": "reward"}).write_csv(tmp_path / "log.csv")
    log = read_log(tmp_path / "log.csv", ColumnMap.parse("reward=cost,cost=reward"))
    assert log.cost.tolist() == good_log()["cost"].to_list()
    assert log.reward.tolist() == good_log()["reward"].to_list()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_ignored_role_is_missing_whatever_the_format(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"log.{ending}"
    good_log().write_csv(path) if ending == "csv" else good_log().write_parquet(path)
    with pytest.raises(LogError, match="propensity_missing"):
        read_log(path, ColumnMap.parse(ignore="propensity"))
    assert read_log(path, ColumnMap.parse(ignore="propensity"), estimate_propensity=True).features.names


@pytest.mark.parametrize(
    ("columns", "ignore", "complaint"),
    [
        ("customer=user", None, "'customer' is not a role; the roles are user, step"),
        ("user", None, "cannot read 'user'; write role=your_column"),
        ("user=", None, "cannot read"),
        ("=name", None, "cannot read"),
        ("user=a,user=b", None, "mapped twice"),
        ("user=step", None, "'step' is mapped to two roles"),
        ("user=a,step=a", None, "'a' is mapped to two roles"),
        ("user=a", "a", "both mapped to a role and ignored"),
    ],
)
def test_mappings_without_sense_are_refused(columns: str, ignore: str | None, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        ColumnMap.parse(columns, ignore)


def test_a_campaign_file_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "campaign.toml"
    path.write_text('ignore = ["row_id"]\n[columns]\nuser = "customer_id"\n', encoding="utf-8")
    assert ColumnMap.from_toml(path) == ColumnMap.parse("user=customer_id", "row_id")
    path.write_text("", encoding="utf-8")
    assert ColumnMap.from_toml(path) == ColumnMap()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"[columns", "not a valid TOML file"),
        (b"\xff\xfe", "not a valid TOML file"),
        (b"budgets = 3", "'budgets' is not an entry"),
        (b"columns = 3", r"\[columns\] must map"),
        (b"[columns]\nuser = 3", r"\[columns\] must map"),
        (b'ignore = "row_id"', "ignore must be a list"),
        (b"ignore = [1]", "ignore must be a list"),
        (b'[columns]\nwho = "x"', "'who' is not a role"),
    ],
)
def test_campaign_files_without_sense_are_refused(content: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "campaign.toml").write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        ColumnMap.from_toml(tmp_path / "campaign.toml")


def test_a_campaign_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such campaign file"):
        ColumnMap.from_toml(tmp_path / "campaign.toml")
    with pytest.raises(UsageError, match="not a valid"):
        ColumnMap.from_toml(tmp_path)
