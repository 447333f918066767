"""Guesses say how sure they are, and classes of numbers are labels."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from redenvelope import Log, LogError, audit_log, log_from_frame, two_step


def a_shop() -> pl.DataFrame:
    """Names that mislead: what was paid before, and the value of what is open, are features."""
    draw = np.random.default_rng(1)
    rows = 3_000
    offer = draw.integers(0, 3, rows)
    done = draw.random(rows) < 0.2 + 0.2 * offer
    return pl.DataFrame(
        {
            "customer": np.repeat(np.arange(rows // 2), 2),
            "wave": np.tile([0, 1], rows // 2),
            "open_value": draw.gamma(2.0, 3.0, rows),
            "paid": draw.gamma(1.0, 4.0, rows),
            "offer": np.array(["none", "small", "large"])[offer],
            "propensity": np.full(rows, 1 / 3),
            "completed": done.astype(float),
            "payout": done * offer * 2.0,
        }
    )


def guessed(frame: pl.DataFrame) -> str:
    with pytest.raises(LogError) as refused:
        log_from_frame(frame)
    (finding,) = [finding for finding in refused.value.findings if finding.rule == "columns_missing"]
    return finding.remedy


def test_outcomes_are_told_from_features_by_what_actions_do() -> None:
    remedy = guessed(a_shop())
    assert remedy.endswith("--columns user=customer,step=wave,action=offer,reward=completed,cost=payout")
    assert "reward by its name and because it differs by action" in remedy


def test_a_guess_says_where_it_is_not_sure() -> None:
    remedy = guessed(a_shop().rename({"completed": "revenue"}).with_columns(sales=pl.col("revenue") * 2 + 0.01))
    assert "look whether it is revenue or sales" in remedy
    blind = guessed(a_shop().drop("payout", "paid"))
    assert "cost: nothing looks like it" in blind
    assert "cost=YOUR_COLUMN" in blind


@pytest.mark.parametrize("labels", [("0", "1", "2", "3+"), ("<1", "1", "2", "10+"), ("1", "2", "3-4", "5 or more")])
def test_classes_of_numbers_are_labels(labels: tuple[str, ...]) -> None:
    frame = two_step().log(200, seed=1)
    log: Log = log_from_frame(frame.with_columns(kids=pl.Series((labels * len(frame))[: len(frame)])))
    assert "kids" in log.features.category_names
    assert set(log.features.labels[log.features.category_names.index("kids")]) == set(labels)


def test_a_word_among_many_numbers_is_still_a_mistake() -> None:
    frame = two_step().log(200, seed=1)
    ages = [str(20 + row % 60) for row in range(len(frame) - 1)] + ["old"]
    with pytest.raises(LogError, match="feature_mixed"):
        log_from_frame(frame.with_columns(age=pl.Series(ages)))


def test_an_audit_says_what_its_budget_means() -> None:
    frame = two_step().log(400, seed=1)
    assert "A budget of 2 per user, " in str(audit_log(frame, 2.0))
    assert "the most expensive fixed offer that it pays for is 'a" in str(audit_log(frame, 2.0))
    assert "less than any fixed action costs" in str(audit_log(frame, 0.5))
    assert "more would buy nothing" in str(audit_log(frame, 50.0))
    assert "A budget of" not in str(audit_log(frame))
