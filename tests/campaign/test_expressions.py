"""The language of conditions, held against polars on the same rows."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redenvelope import UsageError
from redenvelope.campaign.conditions import Condition, columns_of, holds, parse_condition
from redenvelope.campaign.rows import FrameRows

FRAME = pl.DataFrame(
    {
        "tenure_days": [10, 30, 45, None, 0, 90],
        "visits": [0.5, 3.0, 4.0, 1.0, None, 0.1],
        "purchases": [1.0, 2.0, 5.0, 1.0, 1.0, None],
        "segment": ["new", "old", None, "new", "it's", "old"],
        "member": [True, False, None, True, False, True],
        "days since": [1, None, 3, None, 5, 6],
    }
)
ROWS = FrameRows(FRAME, frozenset({"segment"}))

tenure, visits, purchases = pl.col("tenure_days"), pl.col("visits"), pl.col("purchases")
segment, member, since = pl.col("segment"), pl.col("member"), pl.col("days since")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tenure_days >= 30", tenure >= 30),
        ("30 <= tenure_days", tenure >= 30),
        ("segment == 'new' and not (visits > 3)", (segment == "new") & ~(visits > 3)),
        ("not visits > 3 or tenure_days < 20", ~(visits > 3) | (tenure < 20)),
        ("segment in ('old', 'it''s')", segment.is_in(["old", "it's"])),
        ("segment not in ['old']", ~segment.is_in(["old"])),
        ('segment != "old"', segment != "old"),
        ("member", member),
        ("not member and visits <= 0.1 or member == true", (~member & (visits <= 0.1)) | member),
        ("`days since` is not null", since.is_not_null()),
        ("segment IS NULL OR visits is null", segment.is_null() | visits.is_null()),
        ("visits <= 0.1", visits <= 0.1),
        ("visits > purchases", visits > purchases),
        ("tenure_days in (10, 9e1)", tenure.is_in([10, 90])),
        ("tenure_days = 0 or tenure_days <> 10 and visits < -1", (tenure == 0) | ((tenure != 10) & (visits < -1))),
        ("segment == 'never seen'", segment == "never seen"),
        ("not (segment == 'never seen')", segment != "never seen"),
    ],
)
def test_conditions_hold_where_polars_says_so(text: str, expected: pl.Expr) -> None:
    truth = FRAME.select(expected.fill_null(False)).to_series().to_numpy()
    assert holds(parse_condition(text), ROWS).tolist() == truth.tolist()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        ("tenure_days >=", "character 15: a value or a column is expected, not the end"),
        ("tenure_days >= 30 and", "not the end"),
        ("tenure_days 30", "'and', 'or' or the end is expected, not '30'"),
        ("(tenure_days > 3", r"'\)' is expected"),
        ("segment == 'new", "character 12: .* is never closed"),
        ("visits > 3 & member", "write 'and'"),
        ("0 < visits < 3", "cannot be chained"),
        ("1 < 2", "one side must be a column"),
        ("segment < 'new'", "cannot be ordered"),
        ("visits in ()", "a number or a quoted text is expected"),
        ("visits in (1, 'a')", "mixes numbers and texts"),
        ("visits in 3", "a list such as"),
        ("visits is 3", "'null' is expected"),
        ("visits not 3", "'in' is expected"),
        ("__import__('os').system('true')", "character 17: '.' is not expected here"),
        ("open('x')", "'and', 'or' or the end is expected, not '\\('"),
        ("visits > 1e39", "too large"),
        ("3visits > 1", "is not expected here"),
        ("(" * 60 + "visits > 1" + ")" * 60, "more than 50 nested levels"),
        ("x > 1 or " * 400 + "x > 1", "too long"),
        ("lambda: 1", "character 7: ':' is not expected here"),
        ("visits + 1 > 2", "character 8"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_condition(text)


def test_names_that_are_patterns_are_plain_names() -> None:
    frame = pl.DataFrame({"*": [1.0, 2.0], "^x$": [5.0, 0.0], "x": [0.0, 0.0]})
    rows = FrameRows(frame, frozenset())
    assert holds(parse_condition("`*` > 1"), rows).tolist() == [False, True]
    assert holds(parse_condition("`^x$` > 1"), rows).tolist() == [True, False]
    assert columns_of(parse_condition("`*` > 1 and `^x$` > x")) == {"*", "^x$", "x"}


@given(st.text(alphabet="ab<>=!()[],'\"`01. andorti\n\x00ü", max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        condition: Condition = parse_condition(text)
    except UsageError as error:
        assert str(error)
        return
    assert columns_of(condition)


def _simple(draw: st.DrawFn) -> tuple[str, pl.Expr]:
    kind = draw(st.integers(0, 3))
    if kind == 0:
        sign, bound = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="])), draw(st.integers(0, 90))
        comparisons = {"<": tenure < bound, "<=": tenure <= bound, ">": tenure > bound, ">=": tenure >= bound}
        comparisons |= {"==": tenure == bound, "!=": tenure != bound}
        return f"tenure_days {sign} {bound}", comparisons[sign]
    if kind == 1:
        label = draw(st.sampled_from(["new", "old", "other"]))
        return f"segment == '{label}'", segment == label
    if kind == 2:
        return "member", member
    return "visits is null", visits.is_null()


@st.composite
def _conditions(draw: st.DrawFn, depth: int = 3) -> tuple[str, pl.Expr]:
    kind = draw(st.integers(0, 3)) if depth else 0
    if kind == 0:
        return _simple(draw)
    text, expected = draw(_conditions(depth=depth - 1))
    if kind == 1:
        return f"not ({text})", ~expected
    other, further = draw(_conditions(depth=depth - 1))
    return (f"({text}) and ({other})", expected & further) if kind == 2 else (f"{text} or {other}", expected | further)


@given(_conditions())
@settings(max_examples=100, deadline=None)
def test_unknown_is_carried_as_polars_does(pair: tuple[str, pl.Expr]) -> None:
    text, expected = pair
    truth = FRAME.select(pl.lit(True).and_(expected).fill_null(False)).to_series().to_numpy()
    assert np.array_equal(holds(parse_condition(text), ROWS), np.broadcast_to(truth, (len(FRAME),)))
