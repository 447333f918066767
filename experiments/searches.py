"""Steps and seconds of the searches for the price: retraining or planning, bisection, ascent, Newton, secant."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from experiments.charts import searches_chart
from experiments.paper import BUDGET
from experiments.result import Figure, Result
from experiments.retrained import RetrainedPrice
from experiments.studies import EnvelopeStudy, Studies, TwoStepStudy
from redenvelope.dual.oracle import PriceFunction
from redenvelope.dual.search import DualSolver, solve_dual
from redenvelope.dual.solvers import Bisection, DualAscent, Newton, Secant
from redenvelope.learning.soft_q import SoftQ
from redenvelope.models.neural_model import NeuralModel
from redenvelope.planning.planner import ModelPrice, TreePlanner

__all__ = ["run_searches"]

FloatArray = NDArray[np.float64]

_TOLERANCE = 1e-3
"""Share of the budget that may be left unspent: finer than these logs can tell."""
_PRECISION = 1e-5
"""Width at which a bracket is closed on a jump, as a share of the first."""
_TEMPERATURE = 0.05
"""Entropy on the two-step problem: it makes the cost smooth, and changes its reward by about a hundredth."""
_USERS = {"two-step": 2_000, "envelopes": 500}
"""Users whose first states are priced."""
_BUDGET_SHARE = 0.5
"""Budget on envelopes, as a share of what was logged."""
_PARTS = 64

BISECTION = Bisection(_TOLERANCE, _PRECISION)
ASCENT = DualAscent(tolerance=_TOLERANCE)
NEWTON = Newton(_TOLERANCE, _PRECISION)
MANY = Bisection(_TOLERANCE, _PRECISION, parts=_PARTS)


class _Problem(NamedTuple):
    """What is searched on: a campaign with a temperature, and the two ways to price."""

    name: str
    temperature: float
    budget: float
    plan: Callable[[], PriceFunction]
    retrain: Callable[[], PriceFunction]
    """Makes a price function that has learned nothing yet."""

    def price(self, pricing: str) -> PriceFunction:
        """A new price function."""
        return self.plan() if pricing == "planning" else self.retrain()


class _Search(NamedTuple):
    """One way to search."""

    pricing: str
    solver_name: str
    solver: DualSolver


def run_searches(studies: Studies) -> Result:
    """Evaluations, passes and seconds of every search; compilation is done before the clock starts."""
    smooth = [
        _Search("retraining", "bisection", BISECTION),
        _Search("retraining", "Newton", NEWTON),
        _Search("planning", "bisection", BISECTION),
        _Search("planning", "ascent", ASCENT),
        _Search("planning", "Newton", NEWTON),
        _Search("planning", f"bisection, {_PARTS} prices a pass", MANY),
    ]
    stairs = [*smooth[2:5], _Search("planning", "secant", Secant()), smooth[5]]
    first, envelopes = studies.two_step[0], studies.envelopes[0]
    rows = [
        *_run(_two_step(first, _TEMPERATURE), smooth),
        *_run(_two_step(first, 0.0), stairs),
        *_run(_envelopes(envelopes), [smooth[0], *stairs]),
    ]
    table = pl.DataFrame(rows, infer_schema_length=None)
    said = _said(table)
    return Result(
        name="searches",
        title="Steps and seconds of the search for λ",
        key=said,
        sentences=(
            "Each search looks for the price at which the cost, by the method's own account, is within "
            f"{_TOLERANCE:g} of the budget, from the same first states. A step is one price evaluated; a pass may "
            "evaluate several at once. Retraining trains a soft Q-network at every step, starting from the nearest "
            "price that it knows; planning backs up a tree in a model that is trained once, before the clock starts. "
            "Programs are compiled before the clock starts too. Seconds are of processor time, all threads together: "
            "they depend on the machine, and those of planning on how many users are priced "
            f"({_USERS['two-step']:,} and {_USERS['envelopes']:,} here, every plan followed to the last step).",
            f"{said}. Without entropy (temperature 0) the cost jumps: where no price meets the budget, the two plans "
            "at the jump are mixed, ascent finds no place to stop, and the secant is exact.",
        ),
        table=table,
        figures=(
            Figure(
                "searches",
                "How many prices a search tries, and how long it takes",
                "Left: prices evaluated until the budget is met. Right: seconds of processor time on this machine, "
                "on a logarithmic scale. Triangles stopped before the budget was met.",
                searches_chart(table),
            ),
        ),
    )


def _said(table: pl.DataFrame) -> str:
    def row(campaign: str, temperature: float, pricing: str, solver: str) -> dict[str, Any]:
        chosen = table.filter(campaign=campaign, temperature=temperature, pricing=pricing, solver=solver)
        return chosen.row(0, named=True)

    smooth = {name: row("two-step", _TEMPERATURE, "planning", name) for name in ("bisection", "ascent", "Newton")}
    steps = ", ".join(f"{name} {found['steps']}" for name, found in smooth.items())
    ratios = []
    for campaign, temperature in (("two-step", _TEMPERATURE), ("envelopes", 0.0)):
        trained, planned = (row(campaign, temperature, name, "bisection") for name in ("retraining", "planning"))
        ratios.append(f"{trained['seconds'] / planned['seconds']:.1f} ({campaign})")
    return (
        f"steps on the two-step problem with entropy: {steps}; bisection with retraining took as long as with planning "
        f"times {', '.join(ratios)}"
    )


def _two_step(study: TwoStepStudy, temperature: float) -> _Problem:
    first = _first_states(study, _USERS["two-step"])
    return _Problem(
        "two-step",
        temperature,
        BUDGET,
        lambda: _planned(study.model, study.campaign.steps, study.campaign.steps, temperature, first),
        lambda: RetrainedPrice(study.learner, first, temperature),
    )


def _envelopes(study: EnvelopeStudy) -> _Problem:
    log, first = study.material.validation, _first_states(study, _USERS["envelopes"])
    budget = _BUDGET_SHARE * float(log.cost.sum() / len(log.users))
    learner = SoftQ.prepare(study.material.examples, seed=study.seed)
    return _Problem(
        "envelopes",
        0.0,
        budget,
        lambda: _planned(study.model, study.settings.horizon, study.campaign.steps, 0.0, first),
        lambda: RetrainedPrice(learner, first),
    )


def _first_states(study: TwoStepStudy | EnvelopeStudy, users: int) -> NDArray[np.float32]:
    """Of some validation users, [users, width]."""
    log = study.material.validation
    first = log.starts[:-1][:users]
    return study.material.encoder.encode_table(log.features.rows(first), log.step[first])


def _planned(
    model: NeuralModel, horizon: int, steps: int, temperature: float, first: NDArray[np.float32]
) -> PriceFunction:
    return ModelPrice(TreePlanner(model, horizon, temperature, steps), first)


def _compile(problem: _Problem, pricing: str) -> None:
    """Have everything compiled that a search will need: a first price, one from a neighbour, and a block of prices."""
    price = problem.price(pricing)
    price(np.array([0.0, np.inf]))
    if pricing == "planning":
        price(np.linspace(0.0, 1.0, _PARTS - 1))


def _run(problem: _Problem, searches: list[_Search]) -> list[dict[str, Any]]:
    rows = []
    for pricing in dict.fromkeys(search.pricing for search in searches):
        _compile(problem, pricing)
    for search in searches:
        price = problem.price(search.pricing)
        # Processor time: what others do on the same machine is no part of a search.
        start = time.process_time()
        found = solve_dual(price, problem.budget, search.solver)
        seconds = time.process_time() - start
        rows.append(
            {
                "campaign": problem.name,
                "temperature": problem.temperature,
                "pricing": search.pricing,
                "solver": search.solver_name,
                "steps": len(found.priced),
                "passes": found.passes,
                "seconds": seconds,
                "seconds_a_step": seconds / len(found.priced),
                "status": found.status.value,
                "dual": found.dual,
                "cost": found.cost,
                "budget": problem.budget,
                "reward": found.reward,
            }
        )
    return rows
