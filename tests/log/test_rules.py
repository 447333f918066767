"""The whole of the rules: none untested, none raised for a good log, all reported at once."""

from __future__ import annotations

import ast
import gzip
from pathlib import Path

import polars as pl
import pytest

import redenvelope.log.rules
from redenvelope import ColumnMap, Finding, LogError, UsageError, inspect_log, log_from_frame, read_log
from redenvelope.log import read as tabulate
from redenvelope.log.findings import Findings
from redenvelope.log.formats.discovery import SourceFile
from redenvelope.log.rules import RULES

from .files import ROWS, csv, good_log, lines, put
from .test_feature_rules import CASES as FEATURE_CASES
from .test_file_rules import CASES as FILE_CASES
from .test_row_rules import CASES as ROW_CASES
from .test_value_rules import CASES as VALUE_CASES

# Found by the audit and by the encoder, not by reading; `file_unreadable`, `file_too_large`, those of lists and of item
# catalogues have tests of their own.
ELSEWHERE = {rule for rule in RULES if rule.startswith("items_")} | {
    "propensity_miscalibrated",
    "draws_depend_on_past",
    "action_never_given",
    "reward_not_monotone",
    "cost_booked_later",
    "budget_infeasible",
    "budget_slack",
    "overlap_thin",
    "feature_suspected_leak",
    "feature_tells_action",
    "feature_said_known",
    "eligible_not_logged",
    "eligible_no_lists",
    "rules_forbid_logged",
    "serving_nothing_eligible",
    "fit_step_gap",
    "fit_few_users",
    "fit_few_clusters",
    "assigned_by_cluster",
    "evaluate_steps",
    "evaluate_feature_missing",
    "evaluate_feature_kind",
    "evaluate_feature_left_out",
    "drift_number",
    "drift_category",
    "serving_column_missing",
    "serving_not_a_number",
    "serving_unseen_label",
    "serving_rare_label",
    "serving_outside",
    "workbook_engine",
    "workbook_sheets",
    "file_unreadable",
    "file_too_large",
}


def test_every_rule_of_reading_has_a_case() -> None:
    covered = {case.rule for case in (*FILE_CASES, *ROW_CASES, *VALUE_CASES, *FEATURE_CASES)}
    assert covered == set(RULES) - ELSEWHERE


def test_every_rule_is_used_and_no_other() -> None:
    folder = Path(redenvelope.log.rules.__file__).parents[1]
    used = {
        node.value
        for file in folder.rglob("*.py")
        if file.name not in ("rules.py", "file_rules.py", "use_rules.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(RULES) <= used


@pytest.mark.parametrize("name", ["log.csv", "log.tsv", "log.csv.gz", "log.parquet", "log[1].parquet", "LOG.PQ"])
def test_a_good_log_breaks_no_rule(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(csv(good_log())))
    elif name.endswith(("csv", "tsv")):
        path.write_bytes(csv(good_log()))
    else:
        good_log().write_parquet(path)
    inspection = inspect_log(path)
    assert inspection.findings == ()
    assert inspection.log is not None
    assert len(inspection.log) == ROWS
    assert inspection.log.catalogue.labels == ("0", "1", "5")
    assert inspection.log.reward.tolist() == good_log()["reward"].to_list()


def test_all_mistakes_are_reported_in_one_go(tmp_path: Path) -> None:
    spoilt = good_log().drop("reward")
    for column, values in {
        "user": {6: None},
        "step": {9: "last"},
        "action": {10: None},
        "propensity": {1: 0.0, 2: 1.5, 3: float("nan")},
        "cost": {4: -1.0, 5: float("inf")},
        "age": {7: "old"},
        "visits": {8: float("inf")},
    }.items():
        spoilt = put(spoilt, column, values)
    (tmp_path / "log.csv").write_bytes(b"\xef\xbb\xbf" + csv(spoilt, ";").replace(b"\n", b"\r\n"))
    with pytest.raises(LogError) as refusal:
        read_log(tmp_path / "log.csv")
    errors = {
        *("column_missing", "user_null", "step_not_integer", "action_null", "propensity_not_positive"),
        *("propensity_above_one", "value_nan", "cost_negative", "value_infinite", "feature_mixed", "feature_infinite"),
    }
    assert {finding.rule for finding in refusal.value.findings} == errors
    assert len(str(refusal.value).splitlines()) == len(errors)
    findings = inspect_log(tmp_path / "log.csv").findings
    assert {finding.rule for finding in findings} == errors | {"byte_order_mark", "carriage_returns", "delimiter"}
    severities = [finding.severity for finding in findings]
    assert severities == sorted(severities, key=["error", "warning", "repaired"].index)


def test_faults_of_several_files_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"")
    (tmp_path / "b.csv").write_bytes(lines(good_log(), lambda text: [*text[:2], "1,2", *text[3:]]))
    (tmp_path / "c.csv").write_bytes(csv(put(good_log(), "cost", {2: -1.0})))
    found = {(finding.rule, finding.file, finding.rows) for finding in inspect_log(tmp_path).findings}
    assert found == {("file_empty", "a.csv", ()), ("csv_ragged_row", "b.csv", (2,)), ("cost_negative", "c.csv", (2,))}


def test_examples_are_few_and_short() -> None:
    findings = Findings()
    findings.add("not_a_number", column="cost", count=9, rows=list(range(9)), examples=["x" * 100] * 9)
    (finding,) = findings.sorted()
    assert finding.rows == (0, 1, 2, 3, 4)
    assert len(finding.examples) == 5
    assert max(map(len, finding.examples)) <= 60


def test_a_finding_reads_as_a_sentence_and_as_data() -> None:
    findings = Findings()
    findings.add("cost_negative", file="log.csv", column="cost", count=2, rows=[3, 4], examples=[-1.0, -2.5])
    (finding,) = findings.sorted()
    assert str(finding) == (
        "error: cost_negative [log.csv, column cost, lines 4, 5]: 2 rows with a negative cost (e.g. -1.0, -2.5) "
        "→ log refunds as reward, or as a cost of 0"
    )
    assert Finding(**finding.as_dict()) == finding
    assert type(finding.as_dict()["severity"]) is str


def test_a_file_that_vanishes_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gone.csv", "gone.parquet"):
        monkeypatch.setattr(tabulate, "files_of", lambda _, name=name: [SourceFile(tmp_path / name, name)])
        (finding,) = inspect_log(tmp_path / name).findings
        assert (finding.rule, finding.severity, finding.file) == ("file_unreadable", "error", name)
        assert "check the path" in finding.remedy


def test_a_folder_or_a_glob_is_one_log(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    good_log()[:200].write_parquet(tmp_path / "first" / "part.parquet")
    good_log()[200:].write_parquet(tmp_path / "rest.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".part.parquet").write_bytes(b"half written")
    (tmp_path / "notes.md").write_text("not a table")
    for source, rules in ((tmp_path, ["files_hidden"]), (f"{tmp_path}/**/*.parquet", [])):
        log = read_log(source)
        assert [finding.rule for finding in log.findings] == rules
        assert log.cost.tolist() == good_log()["cost"].to_list()


def test_places_are_named_as_people_count_them(tmp_path: Path) -> None:
    # The header is line 1 of a text file, so the second row is line 3 there, and row 2 in parquet.
    (tmp_path / "monday").mkdir()
    spoilt = put(good_log(), "cost", {2: -1.0})
    spoilt.write_csv(tmp_path / "monday" / "part.csv")
    spoilt.write_parquet(tmp_path / "part.parquet")
    for source, where in (
        (tmp_path / "monday" / "part.csv", "[part.csv, column cost, line 3]"),
        (tmp_path / "monday", "[part.csv, column cost, line 3]"),
        (tmp_path / "part.parquet", "[part.parquet, column cost, row 2]"),
        (f"{tmp_path}/*.parquet", "[part.parquet, column cost, row 2]"),
    ):
        (finding,) = inspect_log(source).findings
        assert where in str(finding)
        assert finding.rows == (2,)
    (tmp_path / "part.parquet").unlink()
    for source in (tmp_path, f"{tmp_path}/**/*.csv"):
        good_log().write_csv(tmp_path / "good.csv")
        assert "[monday/part.csv, column cost, line 3]" in str(inspect_log(source).findings[0])


@pytest.mark.parametrize("source", ["nowhere.csv", "*.csv", "empty"])
def test_a_source_without_files_is_a_mistake_of_use(source: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no such file|no file matches|no tables in this folder"):
        read_log(tmp_path / source)


def test_a_frame_is_held_to_the_same_rules() -> None:
    assert log_from_frame(good_log()).findings == ()
    with pytest.raises(LogError, match=r"cost_negative \[table, column cost, row 2\]"):
        log_from_frame(put(good_log(), "cost", {2: -1.0}))
    with pytest.raises(LogError, match="file_no_rows"):
        log_from_frame(good_log().head(0))
    with pytest.raises(LogError, match="columns_missing"):
        log_from_frame(pl.DataFrame({"x": [1]}), ColumnMap({"user": "x"}))


def test_quotes_inside_a_value_are_characters(tmp_path: Path) -> None:
    for label, written in (('5" disc', '5" disc'), ("a,b", '"a,b"'), ('say "x"', '"say ""x"""'), ("a\nb", '"a\nb"')):
        spoilt = lines(put(good_log(), "city", {4: "XX"}), lambda text: [t.replace("XX", written) for t in text])  # noqa: B023
        (tmp_path / "log.csv").write_bytes(spoilt)
        inspection = inspect_log(tmp_path / "log.csv")
        assert inspection.findings == ()
        assert inspection.log is not None
        assert label in inspection.log.features.labels[0]
        assert len(inspection.log) == ROWS


def test_a_stray_quote_among_quoted_values_loses_no_row(tmp_path: Path) -> None:
    labels = {4: '5" disc', 9: '7" disc', 200: '"Rome"', 300: '8" disc'}
    written = {f"X{row}X": label for row, label in labels.items()}
    text = csv(put(good_log(), "city", {row: f"X{row}X" for row in labels})).decode()
    for place, label in written.items():
        text = text.replace(place, label)
    (tmp_path / "log.csv").write_text(text, encoding="utf-8")
    inspection = inspect_log(tmp_path / "log.csv")
    if inspection.log is None:
        assert [finding.rule for finding in inspection.findings] == ["csv_unclosed_quote"]
    else:
        assert len(inspection.log) == ROWS
        assert '5" disc' in inspection.log.features.labels[0]


AT_THE_LIMIT = {
    "half missing": good_log().with_columns(pl.when(pl.int_range(ROWS) >= 180).then("age").alias("age")),
    "fifty rows of an action": put(good_log(), "action", dict.fromkeys(range(1, 51), 9)),
    "a hundred users": good_log().filter(pl.col("user") <= 100),
    "a propensity of a thousandth": put(good_log(), "propensity", {1: 0.001, 2: 1.0}),
    "ids of 2^53 as integers": good_log().with_columns(pl.col("user") + 2**53),
    "a free row": put(good_log(), "cost", {1: 0.0, 2: -0.0}),
    "a step below zero": good_log().with_columns(pl.col("step") - 1),
    "the largest float32": put(good_log(), "age", {1: 3.4e38}),
}


@pytest.mark.parametrize("frame", AT_THE_LIMIT.values(), ids=AT_THE_LIMIT)
def test_what_is_just_good_enough_is_good(frame: pl.DataFrame) -> None:
    assert log_from_frame(frame).findings == ()


def test_blank_lines_are_counted_but_not_read(tmp_path: Path) -> None:
    spoilt = lines(
        put(good_log(), "cost", {1: "x", 7: "y"}),
        lambda text: ["", "", text[0], "", *text[1:5], "", "", *text[5:], "", ""],
    )
    (tmp_path / "log.csv").write_bytes(spoilt)
    (finding,) = inspect_log(tmp_path / "log.csv").findings
    assert (finding.rule, finding.rows, finding.examples) == ("not_a_number", (2, 10), ("x", "y"))
