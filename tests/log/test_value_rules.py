"""What was sent, with what probability, and what came of it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from redenvelope import ColumnMap, inspect_log

from .files import ROWS, Case, check, csv, good_log, put

FILL = "fill in the values"
NAN, INFINITE = float("nan"), float("inf")


def value_case(rule: str, column: str, values: dict[int, object], examples: tuple[str, ...], remedy: str) -> Case:
    return Case(
        rule,
        "error",
        lambda log: {"log.csv": csv(put(log, column, values))},
        column=column,
        rows=tuple(values),
        count=len(values),
        examples=examples,
        remedy=remedy,
        name=column,
    )


CURRENCIES = {1: "€1,200.50", 4: "$5", 5: "12 EUR", 6: "-1.200,50 kr", 8: "CHF 3"}
SEPARATED = {4: "1 200,5", 5: "1.200.300", 8: "1,5"}  # in columns of decimal points

OUTCOMES = [
    case
    for column in ("propensity", "reward", "cost")
    for case in (
        value_case("not_a_number", column, {3: "much", 9: "1.2.3"}, ("much", "1.2.3"), "write plain numbers"),
        value_case("value_percentage", column, {3: "25%", 9: "12,5 %"}, ("25%", "12,5 %"), "25% is 0.25"),
        value_case("value_currency", column, CURRENCIES, tuple(CURRENCIES.values()), "€1,200.50 is 1200.50"),
        value_case("value_separators", column, SEPARATED, tuple(SEPARATED.values()), "nothing else: 1,200.50"),
        value_case("cost_null" if column == "cost" else "value_null", column, {3: None}, ("missing",), FILL),
        value_case("cost_null" if column == "cost" else "value_nan", column, {3: NAN, 4: NAN}, ("NaN", "NaN"), FILL),
        value_case("value_infinite", column, {2: INFINITE, 8: -INFINITE}, ("inf", "-inf"), "divided by zero"),
    )
    # A probability of minus infinity is also not positive: its own case below.
    # Among whole numbers, separators tell how they are meant.
    if (case.rule, column)
    not in {("value_infinite", "propensity"), ("value_infinite", "cost"), ("value_separators", "reward")}
]

ACTIONS = [
    value_case("action_null", "action", {1: None, 2: None}, ("missing", "missing"), "call it 'none' or 0"),
    Case(
        "action_single",
        "error",
        lambda log: {"log.csv": csv(log.with_columns(action=pl.lit("coupon")))},
        file=None,
        column="action",
        count=ROWS,
        remedy="at least two actions",
        says="'coupon'",
    ),
    Case(
        "action_rare",
        "warning",
        lambda log: {"log.csv": csv(put(log, "action", dict.fromkeys(range(1, 50), 9)))},
        file=None,
        column="action",
        count=1,
        examples=("'9' (49)",),
        remedy="merge each with a similar one",
        says="1 of 4 actions have fewer than 50 rows",
    ),
    Case(
        "action_rare",
        "warning",
        lambda log: {"log.csv": csv(log.with_columns(action=pl.int_range(ROWS) // 3))},
        file=None,
        column="action",
        count=120,
        examples=tuple(f"'{label}' (3)" for label in range(5)),
        remedy="log them more often",
        says="120 of 120 actions",
        name="many",
    ),
    Case(
        "action_label_form",
        "repaired",
        lambda log: {"log.csv": csv(put(log, "action", {3: "5.0", 5: "5.00"}))},
        file=None,
        column="action",
        count=2,
        examples=("5.0", "5.00"),
    ),
    Case(
        "action_too_many",
        "error",
        lambda log: {
            "log.csv": csv(pl.concat([log] * 3).with_columns(user=pl.int_range(1080) // 3, action=pl.int_range(1080)))
        },
        file=None,
        column="action",
        count=1080,
        remedy="at most 1000",
    ),
    Case(
        "value_nan",
        "error",
        lambda log: {"log.parquet": put(log, "action", {7: NAN})},
        file="log.parquet",
        column="action",
        rows=(7,),
        examples=("nan",),
        remedy=FILL,
        name="action",
    ),
]

PROPENSITIES = [
    Case(
        "propensity_missing",
        "error",
        lambda log: {"log.csv": csv(log.drop("propensity"))},
        column="propensity",
        remedy="--estimate-propensity",
        says="user, step, action, reward, cost",
    ),
    value_case("propensity_not_positive", "propensity", {2: 0.0, 4: -0.5}, ("0.0", "-0.5"), "at the time it was drawn"),
    value_case(
        "propensity_too_small", "propensity", {2: 5e-324, 4: 1e-160}, ("5e-324", "1e-160"), "keep a floor under it"
    ),
    value_case("propensity_above_one", "propensity", {2: 1.5}, ("1.5",), "not a score or an odds ratio"),
    Case(
        "propensity_percentage",
        "error",
        lambda log: {"log.csv": csv(log.with_columns(propensity=pl.col("step") * 10.0 + 20))},
        file=None,
        column="propensity",
        count=ROWS,
        remedy="divide them by 100",
        says="from 20.0 to 40.0",
    ),
    Case(
        "propensity_deterministic",
        "error",
        lambda log: {"log.csv": csv(log.with_columns(propensity=pl.lit(1.0)))},
        file=None,
        column="propensity",
        count=ROWS,
        remedy="log with some randomisation",
    ),
    Case(
        "propensity_tiny",
        "warning",
        lambda log: {"log.csv": csv(put(log, "propensity", {5: 0.0009}))},
        column="propensity",
        rows=(5,),
        examples=("0.0009",),
        remedy="keep a floor",
    ),
    *(
        Case(
            "propensity_uniform_claim",
            "warning",
            lambda log, claim=claim: {
                "log.csv": csv(
                    put(log, "action", dict.fromkeys(range(1, 151), 0)).with_columns(propensity=pl.lit(claim))
                )
            },
            file=None,
            column="propensity",
            count=ROWS,
            remedy="--estimate-propensity",
            says="1/3",
            name=f"{claim:.2f}",
        )
        for claim in (1 / 3, 0.33)
    ),
    Case(
        "propensity_estimated",
        "warning",
        lambda log: {"log.csv": csv(log.drop("propensity"))},
        file=None,
        column="propensity",
        count=ROWS,
        remedy="log the probabilities next time",
        estimate_propensity=True,
    ),
    Case(
        "propensity_not_estimable",
        "error",
        lambda log: {"log.csv": csv(log.filter(pl.col("user") == 1).drop("propensity"))},
        file=None,
        column="propensity",
        count=1,
        remedy="log the probabilities",
        estimate_propensity=True,
        besides=("action_rare", "few_users", "feature_constant", "feature_constant"),
    ),
]

REWARD_AND_COST = [
    value_case("value_infinite", "cost", {2: INFINITE, 8: INFINITE}, ("inf", "inf"), "divided by zero"),
    value_case("value_infinite", "propensity", {2: INFINITE}, ("inf",), "divided by zero"),
    value_case("value_too_large", "cost", {2: 1e308, 8: 1e22}, ("1e+308", "1e+22"), "in a larger unit"),
    value_case("value_too_large", "reward", {2: -1e308, 8: 1e39}, ("-1e+308", "1e+39"), "in a larger unit"),
    value_case("cost_negative", "cost", {6: -1.0, 9: -0.01}, ("-1.0", "-0.01"), "refunds"),
    Case(
        "cost_constant",
        "error",
        lambda log: {"log.csv": csv(log.with_columns(cost=pl.lit(2.5)))},
        file=None,
        column="cost",
        count=ROWS,
        remedy="which column is the cost",
        says="2.5",
    ),
    Case(
        "reward_constant",
        "warning",
        lambda log: {"log.csv": csv(log.with_columns(reward=pl.lit(0)))},
        file=None,
        column="reward",
        count=ROWS,
        remedy="which column is the reward",
        says="0.0",
    ),
    *(
        Case(
            "mostly_zero",
            "warning",
            lambda log, column=column: {
                "log.parquet": pl.concat([log] * 3).with_columns(
                    (pl.int_range(3 * ROWS) == 5).cast(pl.Float64).alias(column), user=pl.int_range(3 * ROWS) // 3
                )
            },
            file=None,
            column=column,
            count=3 * ROWS - 1,
            remedy="more frequent outcome",
            says="99.91%",
            name=column,
        )
        for column in ("reward", "cost")
    ),
]

CASES = [*OUTCOMES, *ACTIONS, *PROPENSITIES, *REWARD_AND_COST]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_every_fault_of_a_value_is_named(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_looks_are_told_apart_from_each_other_and_from_words(tmp_path: Path) -> None:
    odd = {1: "5%", 2: "$5", 3: "1,2", 4: "five", 5: "5 apples", 6: "€5"}
    put(good_log(), "cost", odd).write_csv(tmp_path / "log.csv")
    found = {finding.rule: (finding.rows, finding.examples) for finding in inspect_log(tmp_path / "log.csv").findings}
    assert found == {
        "value_percentage": ((1,), ("5%",)),
        "value_currency": ((2, 6), ("$5", "€5")),
        "value_separators": ((3,), ("1,2",)),
        "not_a_number": ((4, 5), ("five", "5 apples")),
    }


def test_a_comma_before_three_digits_is_not_guessed_at(tmp_path: Path) -> None:
    # 1,5 can only be a decimal; whether 1,200 is 1200 or 1.2 only its writer knows, unless another column tells.
    for written, rules in (("1,200", {"value_separators"}), ("1,5", {"decimal_comma"}), ("0,200", {"decimal_comma"})):
        costs = pl.when(pl.col("action") > 0).then(pl.lit(written)).otherwise(pl.lit("0")).alias("cost")
        whole = good_log().drop("propensity").with_columns(costs)
        (tmp_path / "log.csv").write_bytes(csv(whole, ";"))
        found = {finding.rule for finding in inspect_log(tmp_path / "log.csv", estimate_propensity=True).findings}
        assert found - {"delimiter", "propensity_estimated"} == rules
    for chance, cost in ((0.25, 1200.0), ("0,25", 1.2)):
        costs = pl.when(pl.col("action") > 0).then(pl.lit("1,200")).otherwise(pl.lit("0")).alias("cost")
        (tmp_path / "log.csv").write_bytes(csv(good_log().with_columns(costs, propensity=pl.lit(chance)), ";"))
        log = inspect_log(tmp_path / "log.csv").log
        assert log is not None
        assert set(log.cost) == {0.0, cost}


@pytest.mark.parametrize("dtype", [pl.Date, pl.Datetime("ms", "UTC"), pl.Time, pl.Duration])
@pytest.mark.parametrize("column", ["propensity", "reward", "cost"])
def test_a_date_is_no_outcome_even_where_it_is_missing(column: str, dtype: pl.DataType, tmp_path: Path) -> None:
    null = "cost_null" if column == "cost" else "value_null"
    for values, rule in (([None] * ROWS, null), ([1] * ROWS, "not_a_number")):
        whole = pl.Int32 if dtype == pl.Date else pl.Int64
        dates = pl.Series(column, values, dtype=whole).cast(dtype)
        good_log().with_columns(dates).write_parquet(tmp_path / "log.parquet")
        found = {finding.rule: finding for finding in inspect_log(tmp_path / "log.parquet").findings}
        assert found[rule].count == ROWS
        assert found[rule].column == column


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["7", "30"]), pl.Decimal(10, 2), pl.Int128, pl.Float32])
def test_outcomes_are_read_by_value_whatever_their_type(dtype: pl.DataType, tmp_path: Path) -> None:
    texts = dtype in (pl.Categorical, pl.Enum)
    values = pl.Series("reward", ["7", "30"] * (ROWS // 2))
    reward = values.cast(dtype) if texts else values.cast(pl.Int64).cast(dtype)
    good_log().with_columns(reward).write_parquet(tmp_path / "log.parquet")
    log = inspect_log(tmp_path / "log.parquet").log
    assert log is not None
    assert log.reward.tolist() == [7.0, 30.0] * (ROWS // 2)


def test_costs_are_named_by_the_mapping(tmp_path: Path) -> None:
    good_log().rename({"cost": "spent"}).write_csv(tmp_path / "log.csv")
    inspection = inspect_log(tmp_path / "log.csv", ColumnMap({"cost": "spent"}))
    assert inspection.findings == ()
    assert inspection.log is not None
    assert inspection.log.cost.tolist() == good_log()["cost"].to_list()
