"""What is drawn when not everything can be paid: shares, amounts and propensities by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from redenvelope import Plan, UsageError
from redenvelope.ledger.records import Choice
from redenvelope.randomness import draw
from redenvelope.serve.funds import ChargeTable, FundedBudget, charge_table_of, choose, constant_costs, face_values
from redenvelope.serve.settings import ServeSettings
from tests.serve.coupons import LABELS

SHARES = (0.2, 0.5, 0.3)
EXPECTED = ((0.0, 0.25, 0.6),)


def table(mode: str = "strict", ceilings: tuple[int, ...] = (0, 100, 300)) -> ChargeTable:
    return ChargeTable(LABELS, (FundedBudget("money", "cost", 100),), np.array([ceilings]), mode, 0.25)


def drawn(left: int, uniform: float, **changes: object) -> Choice:
    known = {"table": table(), "probabilities": SHARES, "expected": EXPECTED, "eligible": None}
    choice = choose(**known | changes, uniform=uniform, left={"money": left})  # type: ignore[arg-type]
    assert choice is not None
    return choice


@pytest.mark.parametrize(
    ("left", "shares"),
    [(300, (0.2, 0.5, 0.3)), (299, (2 / 7, 5 / 7, 0.0)), (99, (1.0, 0.0, 0.0)), (0, (1.0, 0.0, 0.0))],
)
def test_only_what_can_be_paid_is_drawn_and_the_propensity_says_so(left: int, shares: tuple[float, ...]) -> None:
    uniforms = (np.arange(2_000) + 0.5) / 2_000
    choices = [drawn(left, float(uniform)) for uniform in uniforms]
    for place, label in enumerate(LABELS):
        given = [choice for choice in choices if choice.action == label]
        assert len(given) / len(choices) == pytest.approx(shares[place], abs=1e-3)
        assert all(choice.propensity == pytest.approx(shares[place]) for choice in given)
    assert json.loads(choices[0].probabilities) == pytest.approx(dict(zip(LABELS, shares, strict=True)))


def test_what_is_held_is_face_value_or_what_is_expected() -> None:
    assert [(one.held, one.ceiling) for one in drawn(300, 0.99).charges] == [(300, 300)]
    booked = drawn(300, 0.99, table=table("overbook")).charges
    assert [(one.held, one.ceiling, one.expected_thousandths) for one in booked] == [(75, 300, 60_000)]
    assert drawn(300, 0.1).charges == ()
    assert drawn(75, 0.99, table=table("overbook")).action == "3 €"


def test_a_plan_that_wants_nothing_of_what_can_be_paid_gives_the_cheapest() -> None:
    hard = (0.0, 0.0, 1.0)
    choice = drawn(299, 0.5, probabilities=hard)
    assert (choice.action, choice.propensity) == ("nothing", 1.0)


def test_with_nothing_to_give_there_is_no_decision() -> None:
    dear = table(ceilings=(50, 100, 300))
    known = {"table": dear, "probabilities": SHARES, "expected": EXPECTED, "uniform": 0.5}
    assert choose(**known, eligible=None, left={"money": 49}) is None  # type: ignore[arg-type]
    only = (False, False, True)
    assert choose(**known, eligible=only, left={"money": 299}) is None  # type: ignore[arg-type]
    assert drawn(300, 0.01, eligible=only).action == "3 €"


def test_several_budgets_must_all_pay() -> None:
    budgets = (FundedBudget("money", "cost", 100), FundedBudget("pushes", "", 1))
    both = ChargeTable(LABELS, budgets, np.array([[0, 100, 300], [0, 1, 1]]), "overbook", 0.0)
    expected = ((0.0, 0.25, 0.6), (0.0, 1.0, 1.0))
    given = choose(both, SHARES, expected, None, 0.99, {"money": 1_000, "pushes": 1})
    assert given is not None
    assert {one.budget: one.held for one in given.charges} == {"money": 60, "pushes": 1}
    without = choose(both, SHARES, expected, None, 0.99, {"money": 1_000, "pushes": 0})
    assert without is not None
    assert without.action == "nothing"


def test_the_plan_knows_what_its_coupons_cost(plan: Plan) -> None:
    assert face_values(plan) == pytest.approx([0.0, 1.0, 3.0], abs=1e-6)
    assert charge_table_of(plan, ["money"], None, ServeSettings()).ceilings.tolist() == [[0, 100, 300]]


@pytest.mark.parametrize(
    "amounts", [{"nothing": 0.0}, {"nothing": 0, "1 €": 1, "3 €": 3, "5 €": 5}, {"nothing": 0, "1 €": -1, "3 €": 3}]
)
def test_amounts_are_given_for_every_action_or_refused(plan: Plan, amounts: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="--amounts"):
        charge_table_of(plan, ["money"], {"": amounts}, ServeSettings())


@pytest.mark.parametrize("uniform", [0.0, 0.1, 0.2, 0.5, 0.7, 0.999999, 1 - 2**-53])
def test_one_row_is_drawn_as_rows_are(uniform: float) -> None:
    chance = np.random.default_rng(1)
    for shares in chance.dirichlet(np.ones(3), 50):
        assert drawn(300, uniform, probabilities=shares.tolist()).action == LABELS[int(draw(shares, uniform))]


def test_what_always_cost_the_same_is_known_from_the_audit(plan: Plan) -> None:
    def with_costs(error: float, rows: int) -> Plan:
        audit = plan.record.audit
        costs = [
            replace(audit.actions[0].cost, estimate=cost, standard_error=error * cost)
            for cost in (0.0, 0.1, 0.30000000000003)
        ]
        effects = [replace(audit.actions[0], rows=rows, cost=cost) for cost in costs]
        return replace(plan, record=replace(plan.record, audit=replace(audit, actions=tuple(effects))))

    assert constant_costs(with_costs(1e-14, 1_000)) == [0.0, 0.1, 0.3]
    assert constant_costs(with_costs(1e-3, 1_000)) is None
    assert constant_costs(with_costs(1e-14, 50)) is None  # too few to say that nobody redeems
