"""Money in words, and means per user as totals."""

import json
from pathlib import Path

import pytest

from redenvelope import Plan, UsageError
from redenvelope.plan.money import Money, money
from tests.program import run_here as run


@pytest.mark.parametrize(
    ("value", "figures", "shown"),
    [
        (1_234_567.8, None, "1,234,568 EUR"),
        (1_234_567.8, 4, "1,235,000 EUR"),
        (999.994, None, "999.99 EUR"),
        (3.4567, None, "3.46 EUR"),
        (0.00123, None, "0.0012 EUR"),
        (0.04944, None, "0.0494 EUR"),
        (0.05, None, "0.05 EUR"),
        (0.3, None, "0.30 EUR"),
        (0.686, None, "0.69 EUR"),
        (-47_000, 4, "-47,000 EUR"),
        (0.0, 4, "0 EUR"),
    ],
)
def test_money_is_shown_as_people_write_it(value: float, figures: int | None, shown: str) -> None:
    assert money(value, "EUR", figures) == shown


def test_odd_currencies_and_audiences_are_refused(plan: Plan) -> None:
    for odd in ("EURO!", "two words"):
        with pytest.raises(UsageError):
            Money(odd)
    for odd in (0, 2.5, "many", True):
        with pytest.raises(UsageError, match="an audience is a whole number, at least 1"):
            Money("EUR", odd)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="an audience is a whole number"):
        plan.with_money(Money("EUR", 10).told(None, 0, None))
    with pytest.raises(UsageError, match="an audience is a whole number"):
        plan.reprice(audience=0)


def test_totals_are_the_means_times_the_audience(plan: Plan) -> None:
    assert plan.totals is None
    told = plan.with_money(Money("EUR", 50_000)).totals
    assert told is not None
    certificate = plan.certificate
    assert told.budget == pytest.approx(50_000 * certificate.budget)
    assert told.unspent == pytest.approx(50_000 * (certificate.budget - certificate.cost.estimate))
    assert "of 146,475 EUR" in told.sentence()
    assert "unspent" in told.sentence()


def test_a_repriced_plan_tells_totals_in_its_currency(plan: Plan, tmp_path: Path) -> None:
    plan.with_money(Money("EUR", 1_000)).save(tmp_path / "plan", {})
    wanted = ("--budget-total", "125_000".replace("_", ""), "--audience", 50_000)
    shown = run("reprice", tmp_path / "plan", *wanted, "--out", tmp_path / "again")
    assert "of 125,000 EUR" in " ".join(shown.stdout.split())
    told = run("reprice", tmp_path / "plan", *wanted, "--out", tmp_path / "again", "--json", "--currency", "CHF")
    content = json.loads(told.stdout)
    totals, cost = content["totals"], content["certificate"]["cost"]["estimate"]
    assert (totals["currency"], totals["audience"], totals["budget"]) == ("CHF", 50_000, 125_000)
    assert totals["unspent"] == pytest.approx(125_000 - 50_000 * cost)
