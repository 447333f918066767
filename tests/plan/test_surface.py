"""A plan in Python: other people's tables in, a few lines and a page out."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from redenvelope import ColumnMap, FiniteCampaign, Log, LogError, Plan, UsageError, log_from_frame, two_step
from redenvelope.log.formats.dataframes import to_polars
from redenvelope.report.terminal import plan_truth_rows, truth_sentence
from tests.two_step_plan import BUDGET, true_value

NAMES = {"user": "customer_id", "action": "coupon", "reward": "revenue"}


class Interchanged:
    """A table that knows the interchange protocol and nothing else."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> object:
        return pa.Table.from_pandas(self._frame).__dataframe__(nan_as_null, allow_copy)


def shop(users: int = 6_000, seed: int = 4) -> pd.DataFrame:
    frame = two_step().log(users, seed=seed).rename(NAMES)
    return pd.DataFrame({name: frame[name].to_list() for name in frame.columns})


def same(log: Log, other: Log) -> None:
    for name in ("step", "action", "propensity", "reward", "cost"):
        np.testing.assert_array_equal(getattr(log, name), getattr(other, name))
    np.testing.assert_array_equal(log.features.codes, other.features.codes)


def test_any_dataframe_is_a_log() -> None:
    frame, columns = shop(300), ColumnMap(NAMES)
    wanted = log_from_frame(two_step().log(300, seed=4))
    indexed = frame.set_index(np.arange(len(frame)) * 3 + 7)
    arrow = pa.Table.from_pandas(frame)
    lazy = pl.from_arrow(arrow).lazy()  # type: ignore[union-attr]
    tables = (frame, indexed, arrow, lazy, Interchanged(frame), {name: frame[name].to_list() for name in frame})
    for table in tables:
        log = log_from_frame(table, columns)
        same(log, wanted)
        assert log.columns == columns
    assert to_polars(indexed).columns == list(frame.columns)


def test_what_is_no_table_is_refused_in_words() -> None:
    for odd in (7, "log.csv", [1, 2], {"user": [1, 2], "step": [1]}, None):
        with pytest.raises(UsageError, match="table"):
            log_from_frame(odd)
    with pytest.raises(LogError, match=r'columns=\{"missing_cost": 0\}'):
        log_from_frame(shop(300).assign(cost=np.nan), ColumnMap(NAMES))


@pytest.fixture
def shop_plan(plan: Plan) -> Plan:
    """The small plan, as if its log had had other names."""
    return plan.with_source("", ColumnMap(NAMES), "")


def test_decisions_for_tables_with_the_names_of_the_log(shop_plan: Plan) -> None:
    users = shop(50, seed=9).query("step == 0")[["customer_id", "step", "state"]]
    decisions, findings = shop_plan.allocate(users)
    renamed, _ = shop_plan.allocate(users.rename(columns={"customer_id": "user"}))
    assert findings == ()
    assert decisions.columns[0] == "customer_id"
    assert decisions.rename({"customer_id": "user"}).equals(renamed)
    assert len(decisions) == 50


def test_a_plan_is_shown_in_five_lines(shop_plan: Plan) -> None:
    lines = repr(shop_plan).splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) < 120
    given = shop_plan.certificate
    for said in (
        given.status,
        f"{given.budget:.4g}",
        f"{given.cost.upper:.4g}",
        f"{given.reward.lower:.4g}",
        "4 actions",
    ):
        assert said in repr(shop_plan)
    page = shop_plan._repr_html_()
    assert page.startswith("<div>") and "<script" not in page
    assert given.status in page


def test_the_truth_ends_in_a_sentence(plan: Plan, campaign: FiniteCampaign) -> None:
    shares = plan.policy.pricing.shares
    followed = [(share, partial(plan.policy.probabilities, row=row)) for row, share in enumerate(shares)]
    sentence = truth_sentence(campaign, plan_truth_rows(campaign, followed, BUDGET), plan.certificate)
    truth = true_value(campaign, plan)
    gain = (truth.reward - campaign.cheapest().reward) / (campaign.optimum(BUDGET).reward - campaign.cheapest().reward)
    for said in (
        f"{gain:.0%} of the gain",
        f"at {truth.cost / BUDGET:.0%} of it",
        f"{plan.certificate.cost.upper:.4g}",
    ):
        assert said in sentence


def test_a_plan_evaluates_reports_and_plots(shop_plan: Plan, tmp_path: Path) -> None:
    found = shop_plan.evaluate(shop(3_000, seed=11))
    assert found["verdict"]["status"] in ("confirmed", "undecided", "contradicted")
    assert shop_plan.evaluate(log_from_frame(shop(3_000, seed=11), ColumnMap(NAMES)))["verdict"] == found["verdict"]
    assert shop_plan.report(tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(UsageError, match="html"):
        shop_plan.report(tmp_path / "page.pdf")
    chart = shop_plan.plot_frontier().to_dict()
    curve = chart["datasets"][chart["layer"][1]["data"]["name"]]
    assert [row["cost"] for row in curve] == shop_plan.frontier.sort("cost")["cost"].to_list()
    again = Plan.load(shop_plan.save(tmp_path / "plan"))
    assert "<svg" in (tmp_path / "plan" / "report.html").read_text(encoding="utf-8")
    assert again.columns == ColumnMap(NAMES)
    assert repr(again) == repr(shop_plan)
