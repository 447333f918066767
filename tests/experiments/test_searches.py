"""The searches, on the exact prices of the two-step problem."""

from __future__ import annotations

import pytest
from experiments.searches import ASCENT, BISECTION, MANY, NEWTON, _Problem, _run, _Search

from redenvelope import two_step
from redenvelope.dual.solvers import Secant
from redenvelope.finite.problem import exact_price
from redenvelope.simulate.finite import two_step_problem

# Not the paper's: that one is a corner, which a plan meets without any mixture.
BUDGET = 2.5


def _problem(temperature: float) -> _Problem:
    price = exact_price(two_step_problem(), temperature)
    return _Problem("two-step", temperature, BUDGET, lambda: price, lambda: price)


def test_with_entropy_all_searches_meet_the_budget_at_the_same_price() -> None:
    searches = [_Search("planning", name, solver) for name, solver in (("b", BISECTION), ("n", NEWTON), ("m", MANY))]
    rows = _run(_problem(0.05), searches)
    for row in rows:
        assert row["status"] == "converged"
        assert 0 <= BUDGET - row["cost"] <= 1e-3 * BUDGET
        assert row["dual"] == pytest.approx(rows[0]["dual"], abs=0.01)
    assert rows[1]["steps"] < rows[0]["steps"]
    assert rows[2]["passes"] < rows[0]["passes"]


def test_without_entropy_the_secant_is_exact_and_ascent_does_not_stop() -> None:
    searches = [_Search("planning", "secant", Secant()), _Search("retraining", "ascent", ASCENT)]
    secant, ascent = _run(_problem(0.0), searches)
    optimum = two_step().optimum(BUDGET)
    assert secant["cost"] == pytest.approx(BUDGET, rel=1e-9)
    assert secant["reward"] == pytest.approx(optimum.reward, rel=1e-9)
    assert secant["dual"] == pytest.approx(optimum.dual, rel=1e-6)
    assert ascent["status"] == "max_steps_reached"
    assert ascent["cost"] <= BUDGET + 1e-9
