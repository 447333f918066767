"""The form of the paper's second table, on the envelopes campaign, whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import brentq

from experiments.charts import second_table_chart
from experiments.checking import estimated_curve
from experiments.curve import MonotoneCurve
from experiments.methods import Continued, Planned, true_values
from experiments.paper import TABLE_TWO
from experiments.result import Figure, Result, with_interval
from experiments.studies import EnvelopeStudy, Studies
from redenvelope.dual.frontier import refined_frontier
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.finite.problem import Value
from redenvelope.planning.planner import ModelPrice
from redenvelope.simulate.campaign import Optimum
from redenvelope.simulate.envelopes import EnvelopeCampaign

__all__ = ["run_second_table"]

_POLICIES = ("bandit", "constrained MDP")
_FOUND, _GIVEN = "neural model", "neural model, price given"
"""The price found on validation users, or by the truth: then the policies are compared at the very same aim."""
_SCOUTS, _BENDS, _DUALS = 500, 8, 48

FloatArray = NDArray[np.float64]


def run_second_table(studies: Studies) -> Result:
    """At random's cost, what bandit and plan earn; at random's reward, what they cost."""
    campaign = studies.envelopes[0].campaign
    random = campaign.uniform()
    rows = [_row("random", "random", "truth known", random, [random])]
    for policy in _POLICIES:
        rows.append(_row("fixed budget", policy, "truth known", random, [_at_budget(campaign, policy, random.cost)]))
    for policy in _POLICIES:
        rows.append(_row("fixed reward", policy, "truth known", random, [_at_reward(campaign, policy, random)]))
    learned = [_learned(study, random) for study in studies.envelopes]
    for names in learned[0]:
        rows.append(_row(*names, random, [found[names] for found in learned]))
    table = pl.DataFrame(rows, infer_schema_length=None)
    said = _said(table)
    settings = studies.settings
    return Result(
        name="second_table",
        title="The second table's form on envelopes, where the truth is known",
        key=said,
        sentences=(
            f"{settings.seeds} logs of {settings.envelope_users:,} users over {campaign.steps} steps; 70 % of the "
            "users teach, the others tell the price (doubly robust with marginalised ratios). As in the paper, "
            "the budget is what random costs, and the reward is what random earns; what is shown is "
            f"the exact cost and reward of the policies on {settings.population} fresh users, so a price that missed "
            "its aim shows as a cost above the budget. Rows with the price given have the price at which they truly "
            f"meet the aim: they compare the policies alone. The plan looks {settings.horizon} steps ahead.",
            f"{said}. The paper's own numbers are of another campaign, which is not public: only the signs and the "
            "order can be compared.",
        ),
        table=table,
        figures=(
            Figure(
                "second_table",
                "Fixed budget and fixed reward, on envelopes",
                "Change against random, at a fixed budget (of the reward) and at a fixed reward (of the cost). "
                "Diamonds are exact, the truth known; points were learned from logs, with their intervals; ticks are "
                "the paper's numbers, of another campaign. An interval that is wider than the panel is cut.",
                second_table_chart(table),
            ),
        ),
    )


def _said(table: pl.DataFrame) -> str:
    def change(form: str, policy: str) -> float:
        return float(table.filter(form=form, policy=policy, learned_by=_GIVEN)["change"][0])

    reward, cost = ([change(form, policy) for policy in _POLICIES] for form in ("fixed budget", "fixed reward"))
    return (
        f"learned, at random's true cost: bandit {reward[0]:+.1%} reward, constrained MDP {reward[1]:+.1%}; "
        f"at random's true reward: bandit {cost[0]:+.1%} cost, constrained MDP {cost[1]:+.1%}"
    )


def _solver(campaign: EnvelopeCampaign, policy: str) -> Callable[[float], Optimum]:
    return campaign.bandit if policy == "bandit" else campaign.optimum


def _at_budget(campaign: EnvelopeCampaign, policy: str, budget: float) -> Value:
    solution = _solver(campaign, policy)(budget)
    return Value(np.array([solution.reward, solution.cost]))


def _at_reward(campaign: EnvelopeCampaign, policy: str, random: Value) -> Value:
    """The least cost of a reward: the budget whose best reward it is."""
    solve = _solver(campaign, policy)
    cost = float(brentq(lambda budget: solve(budget).reward - random.reward, 1e-3, random.cost * 1.5, xtol=1e-4))
    return Value(np.array([solve(cost).reward, cost]))


def _learned(study: EnvelopeStudy, random: Value) -> dict[tuple[str, str, str], Value]:
    """(form, policy, learned by) -> what the policy learned from one log really costs and earns."""
    found = {}
    for policy in _POLICIES:
        method = study.methods[policy]
        curve = _curve(study, method)
        truth = true_values(study.campaign, method, study.material.encoder, curve.prices)
        # Without entropy no plan lies between two others, however close they are: neighbours are mixed.
        landings = {
            "fixed budget": curve.price_for(random.cost, jump=0.0),
            "fixed reward": curve.price_for_reward(random.reward),
        }
        for form, landing in landings.items():
            places = np.searchsorted(curve.prices, landing.prices)
            found[form, policy, _FOUND] = Value(np.asarray(landing.shares) @ truth[places])
            found[form, policy, _GIVEN] = _on_frontier(truth, form, random)
    return {names: found[names] for names in sorted(found)}


def _on_frontier(truth: FloatArray, form: str, random: Value) -> Value:
    """The mixture of policies with outcomes [duals, outcomes] that truly costs, or earns, what random does."""
    fixed = 0 if form == "fixed reward" else 1
    known = truth[:, fixed]
    order = np.argsort(known)
    return Value(np.array([np.interp(random.outcomes[fixed], known[order], values[order]) for values in truth.T]))


def _curve(study: EnvelopeStudy, method: Planned) -> MonotoneCurve:
    """Estimates of the validation users at prices spread over where the method's frontier bends."""
    log, encoder = study.material.validation, study.material.encoder
    first = log.starts[:-1][:_SCOUTS]
    states = encoder.encode_table(log.features.rows(first), log.step[first])
    price = ModelPrice(method.planner, states)
    bends = refined_frontier(price, _BENDS).duals
    finite = np.unique(bends[np.isfinite(bends)])
    places = np.linspace(0, len(finite) - 1, _DUALS)
    duals = np.append(np.interp(places, np.arange(len(finite)), finite), np.inf)
    # Codes of static categories are no numbers, and no policy changes who is in them.
    codes = len(encoder.layout.static_categories)
    return estimated_curve(
        Continued(method),
        encoder,
        log,
        duals,
        Marginalised(seed=study.seed),
        lambda batch: encoder.encode(batch)[:, codes:],
    )


def _row(form: str, policy: str, learned_by: str, random: Value, values: list[Value]) -> dict[str, Any]:
    paper = TABLE_TWO[form, policy]
    place = 1 if form == "fixed reward" else 0
    changes = [float(value.outcomes[place] / random.outcomes[place]) - 1 for value in values]
    return {
        "form": form,
        "policy": policy,
        "learned_by": learned_by,
        "paper_cost": paper.cost,
        "paper_reward": paper.reward,
        "paper_change": paper.change,
        **with_interval("cost", [value.cost for value in values]),
        **with_interval("reward", [value.reward for value in values]),
        **(with_interval("change", changes) if form != "random" else {}),
        "seeds": len(values) if len(values) > 1 else None,
    }
