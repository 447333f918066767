"""Can the certificate be trusted? Many campaigns, a plan fitted on each, and the truth it was not shown.

For every campaign: fit on a log, then ask the simulator what the plan really costs. Prints how many plans were
certified, how many of those really keep to the budget, how often the one-sided bound covers the truth, and beside it
the plug-in plan, whose price comes from the model's own belief about the users it was trained on.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

from redenvelope.dual.solve import solve_dual
from redenvelope.log.encoding import Encoder
from redenvelope.log.read import log_from_frame
from redenvelope.models.fit import NeuralSettings
from redenvelope.models.training import TrainingSettings
from redenvelope.plan.fit import fit
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.settings import FitSettings
from redenvelope.planning.planned import PlannedPolicy
from redenvelope.planning.rollout import ModelPrice
from redenvelope.simulate.campaign import Campaign
from redenvelope.simulate.envelope_parameters import random_parameters
from redenvelope.simulate.envelopes import EnvelopeCampaign
from redenvelope.simulate.finite import FiniteCampaign, random_problem

QUICK = NeuralSettings(
    outcome_hidden=(32,), transition_hidden=(32,), members=1, training=TrainingSettings(steps=600, batch_rows=512)
)


@dataclass(frozen=True)
class Outcome:
    """One campaign's figures."""

    certified: bool
    budget: float
    estimate: float
    bound: float
    true_cost: float
    plug_in_cost: float


def campaign_of(family: str, seed: int) -> Campaign:
    if family == "finite":
        return FiniteCampaign(random_problem(seed, states=5, actions=3, steps=3))
    return EnvelopeCampaign(random_parameters(seed), population=400)


def plug_in_cost(campaign: Campaign, policy: DeployedPolicy, frame: object, budget: float) -> float:
    """True cost of the plan whose price the model alone found, on the very users it was trained on."""
    log = log_from_frame(frame)  # type: ignore[arg-type]
    encoder: Encoder = policy.encoder
    first = log.starts[:-1][:2_000]
    states = encoder.encode_table(log.features.rows(first), log.step[first])
    planner = policy.planner
    dual = solve_dual(ModelPrice(planner, states), budget).dual
    component = PlannedPolicy(planner, dual)

    def decide(users):  # type: ignore[no-untyped-def]
        rows, _ = encoder.encode_frame(users)
        return component.probabilities(rows, policy.steps_left(users["step"].to_numpy()))

    return campaign.value(decide).cost


def one(family: str, seed: int, users: int, share: float) -> Outcome:
    campaign = campaign_of(family, seed)
    frame = campaign.log(users, seed)
    least, uniform = campaign.cheapest().cost, campaign.uniform().cost
    budget = least + share * (uniform - least)
    plan = fit(log_from_frame(frame), budget=budget, settings=FitSettings(neural=QUICK, seed=seed))
    shares = plan.policy.specification.shares
    values = [
        campaign.value(lambda users, place=place: plan.policy.probabilities(users, place)).cost
        for place in range(len(shares))
    ]
    cost = plan.certificate.cost
    return Outcome(
        certified=plan.certificate.status == "certified",
        budget=budget,
        estimate=cost.estimate,
        bound=cost.upper,
        true_cost=float(np.dot(shares, values)),
        plug_in_cost=plug_in_cost(campaign, plan.policy, frame, budget),
    )


def report(family: str, outcomes: list[Outcome], seconds: float) -> None:
    certified = [outcome for outcome in outcomes if outcome.certified]
    kept = sum(outcome.true_cost <= outcome.budget for outcome in certified)
    covered = sum(outcome.bound >= outcome.true_cost for outcome in outcomes)
    plug_in = [outcome.plug_in_cost / outcome.budget - 1 for outcome in outcomes]
    spent = [outcome.true_cost / outcome.budget for outcome in certified]
    print(f"\n{family}: {len(outcomes)} campaigns in {seconds:.0f} s")
    print(f"  certified                            {len(certified)}")
    print(f"  of those within the budget in truth  {kept} = {kept / max(len(certified), 1):.1%}   (bar 95 %)")
    print(
        f"  bound covers the true cost           {covered} = {covered / len(outcomes):.1%}   (95 % asked for, bar 93 %)"
    )
    print(f"  share of the budget spent, certified {np.mean(spent) if spent else float('nan'):.1%}")
    over = sum(excess > 0 for excess in plug_in)
    print(
        f"  plug-in plan: over the budget in     {over} = {over / len(outcomes):.1%}, "
        f"by {np.mean(plug_in):+.1%} on average"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=200, help="of each family")
    parser.add_argument("--users", type=int, default=8_000)
    parser.add_argument("--share", type=float, default=0.6, help="budget between the cheapest and the uniform policy")
    parser.add_argument("--families", nargs="+", default=["finite", "envelopes"])
    parser.add_argument("--first", type=int, default=1_000, help="seed of the first campaign")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    for family in arguments.families:
        outcomes: list[Outcome] = []
        start = time.perf_counter()
        for number in range(3 if arguments.quick else arguments.campaigns):
            outcomes.append(one(family, arguments.first + number, arguments.users, arguments.share))
            last = outcomes[-1]
            print(
                f"{family} {number}: {'certified' if last.certified else 'refused'} budget {last.budget:.3f} "
                f"estimate {last.estimate:.3f} bound {last.bound:.3f} truth {last.true_cost:.3f} "
                f"plug-in {last.plug_in_cost:.3f}",
                flush=True,
            )
        report(family, outcomes, time.perf_counter() - start)


if __name__ == "__main__":
    main()
