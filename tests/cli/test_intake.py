"""Tables as shops export them, through the real program: what is read, what is asked, and what is said."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.log.files import many_users
from tests.program import run_here as run


def audited(*arguments: object) -> dict[str, Any]:
    """The audit as data; its exit code is under "code"."""
    result = run("audit", *arguments, "--json")
    assert "Traceback" not in result.stderr, result.stderr
    return {**json.loads(result.stdout), "code": result.returncode}


def rules(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["rule"]: finding for finding in content["findings"]}


def shop(log: pl.DataFrame) -> pl.DataFrame:
    """The log as a shop calls things, with the time of each decision in the place of steps."""
    moments = (
        datetime(2024, 3, 1, 9) + timedelta(days=7) * pl.col("step") + timedelta(minutes=1) * (pl.col("user") % 60)
    )
    names = {"user": "customer_id", "action": "coupon", "reward": "revenue", "cost": "redeemed_amount"}
    return log.with_columns(sent_at=moments).drop("step").rename(names)


def test_missing_roles_are_guessed_in_a_line_to_paste(tmp_path: Path) -> None:
    shop(many_users()).rename({"propensity": "p_send"}).write_csv(tmp_path / "export.csv")
    refused = audited(tmp_path / "export.csv")
    assert refused["code"] == 2
    errors = [finding for finding in refused["findings"] if finding["severity"] == "error"]
    (line,) = {finding["remedy"].split(": ")[1].split(";")[0] for finding in errors}
    assert line.endswith("--time sent_at")
    again = audited(tmp_path / "export.csv", *line.split())
    assert (again["code"], again["steps"]) == (0, 3)


def test_steps_are_numbered_by_time_as_text_and_as_dates(tmp_path: Path) -> None:
    table = shop(many_users()).sample(fraction=1.0, shuffle=True, seed=1)
    table.write_parquet(tmp_path / "log.parquet")
    table.with_columns(pl.col("sent_at").dt.to_string("%d.%m.%Y %H:%M")).write_csv(tmp_path / "log.csv")
    named = ("--columns", "user=customer_id,action=coupon,reward=revenue,cost=redeemed_amount", "--time", "sent_at")
    for name in ("log.parquet", "log.csv"):
        content = audited(tmp_path / name, *named)
        assert (content["code"], content["steps"], content["users"]) == (0, 3, 960)
        assert rules(content)["steps_numbered"]["column"] == "sent_at"
    # Without the option a step that is a time is refused, and the recipe said.
    refused = audited(tmp_path / "log.parquet", "--columns", f"{named[1]},step=sent_at")
    assert "--time sent_at" in rules(refused)["step_not_integer"]["remedy"]


def two_waves() -> dict[str, pl.DataFrame]:
    log = many_users()
    return {"1": log, "2": log.with_columns(pl.col("cost") * 1.5, reward=1 - pl.col("reward"))}


def test_a_second_wave_of_the_same_users_is_recognised_from_folders(tmp_path: Path) -> None:
    for week, part in two_waves().items():
        (tmp_path / "log" / f"week={week}").mkdir(parents=True)
        part.write_parquet(tmp_path / "log" / f"week={week}" / "part.parquet")
    content = audited(tmp_path / "log")
    found = rules(content)
    assert content["code"] == 0
    assert "folders of this name" in found["episodes"]["message"]
    assert (content["users"], content["rows"], content["steps"]) == (960, 5760, 3)
    # The same rows copied into two folders are no waves.
    two_waves()["1"].write_parquet(tmp_path / "log" / "week=2" / "part.parquet")
    assert "episodes" not in rules(audited(tmp_path / "log"))


def test_waves_in_one_file_are_asked_about_and_named(tmp_path: Path) -> None:
    parts = [part.with_columns(campaign=pl.lit(f"spring {week}")) for week, part in two_waves().items()]
    pl.concat(parts).write_csv(tmp_path / "log.csv")
    refused = audited(tmp_path / "log.csv")
    assert refused["code"] == 2
    remedy = rules(refused)["rows_conflict"]["remedy"]
    assert remedy.startswith("if these are several waves of the same users")
    assert "--episode campaign" in remedy
    content = audited(tmp_path / "log.csv", "--episode", "campaign")
    assert (content["code"], content["users"], content["rows"]) == (0, 960, 5760)


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_costs_on_redemption_are_empty_elsewhere(name: str, tmp_path: Path) -> None:
    log = many_users().with_columns(cost=pl.when(pl.col("cost") > 0).then("cost"))
    log.write_csv(tmp_path / name) if name.endswith("csv") else log.write_parquet(tmp_path / name)
    refused = audited(tmp_path / name)
    (error,) = (finding for finding in refused["findings"] if finding["severity"] == "error")
    assert "--missing-cost 0" in error["remedy"]
    assert "remove" not in error["remedy"]
    content = audited(tmp_path / name, "--missing-cost", "0")
    assert content["code"] == 0
    assert rules(content)["cost_filled"]["count"] == int((many_users()["cost"] == 0).sum())


def test_a_german_export_is_read_as_it_is(tmp_path: Path) -> None:
    log = many_users()
    cost = pl.col("cost") * 1_000
    euros = cost.map_elements(lambda value: f"{value:,.2f} €".translate(str.maketrans(",.", ".,")), pl.String)
    german = log.with_columns(
        cost=euros,
        propensity=pl.col("propensity").map_elements(lambda value: f"{value:.1%}".replace(".", ","), pl.String),
        reward=pl.col("reward").replace_strict({1: "Ja", 0: "Nein"}),
    )
    german.write_csv(tmp_path / "export.csv", separator=";")
    german.write_parquet(tmp_path / "export.parquet")
    log.with_columns(cost=cost.round(2), propensity=pl.col("propensity").round(3)).write_parquet(
        tmp_path / "plain.parquet"
    )
    wanted = audited(tmp_path / "plain.parquet")
    for name in ("export.csv", "export.parquet"):
        content = audited(tmp_path / name)
        assert content["code"] == 0
        assert (
            "'1.142,40 €' is" in rules(content)["number_dress"]["message"] or rules(content)["number_dress"]["examples"]
        )
        assert content["actions"] == wanted["actions"]


def test_offending_values_are_the_ones_shown(tmp_path: Path) -> None:
    log = many_users().with_columns(
        cost=pl.col("cost").map_elements(lambda value: f"{value:.2f}".replace(".", ","), pl.String)
    )
    log = log.with_columns(cost=pl.when(pl.int_range(pl.len()) == 77).then(pl.lit("1.142.40")).otherwise("cost"))
    log.write_csv(tmp_path / "log.csv", separator=";")
    refused = audited(tmp_path / "log.csv")
    (error,) = (finding for finding in refused["findings"] if finding["severity"] == "error")
    assert (error["examples"], error["rows"], error["count"]) == (["1.142.40"], [78], 1)


def test_lists_are_left_out_and_said(tmp_path: Path) -> None:
    many_users().with_columns(basket=pl.concat_list("visits", "age")).write_parquet(tmp_path / "log.parquet")
    content = audited(tmp_path / "log.parquet")
    assert content["code"] == 0
    assert "a list's length" in rules(content)["column_nested"]["remedy"]


def test_a_workbook_is_read_and_its_other_sheets_are_named(tmp_path: Path) -> None:
    import xlsxwriter

    with xlsxwriter.Workbook(tmp_path / "log.xlsx") as book:
        shop(many_users(3)).write_excel(book, worksheet="export")
        book.add_worksheet("notes").write(0, 0, "never mind")
    named = ("--columns", "user=customer_id,action=coupon,reward=revenue,cost=redeemed_amount", "--time", "sent_at")
    content = audited(tmp_path / "log.xlsx", *named)
    assert (content["users"], content["steps"]) == (360, 3)
    assert rules(content)["workbook_sheets"]["examples"] == ["notes"]
    (tmp_path / "broken.xlsx").write_bytes((tmp_path / "log.xlsx").read_bytes()[:3_000])
    assert "file_truncated" in rules(audited(tmp_path / "broken.xlsx", *named))


def test_a_workbook_without_an_engine_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from redenvelope.log.formats import excel as workbook
    from redenvelope.log.read import inspect_log

    many_users(1).write_excel(tmp_path / "log.xlsx")
    monkeypatch.setattr(workbook, "find_spec", lambda name: None)
    (finding,) = inspect_log(tmp_path / "log.xlsx").findings
    assert finding.rule == "workbook_engine"
    assert "redenvelope[excel]" in finding.remedy
    assert "CSV UTF-8" in finding.remedy


def test_costs_that_are_booked_a_step_later_are_noticed(tmp_path: Path) -> None:
    log = two_step_log(users=3_000)
    late = log.with_columns(cost=pl.col("cost").shift(1).over("user").fill_null(0.0))
    late.write_parquet(tmp_path / "late.parquet")
    log.write_parquet(tmp_path / "log.parquet")
    found = rules(audited(tmp_path / "late.parquet"))["cost_booked_later"]
    assert "book each cost in the row of the decision that caused it" in found["remedy"]
    assert "cost_booked_later" not in rules(audited(tmp_path / "log.parquet"))
    shown = run("audit", tmp_path / "late.parquet")
    assert "cost more than at its own step" in " ".join(shown.stdout.split())


def two_step_log(users: int) -> pl.DataFrame:
    """Two steps of four actions each, the dearer ones costing more, wherever the user stands."""
    from redenvelope.simulate.finite import two_step

    return two_step().log(users, seed=1)
