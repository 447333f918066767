"""Effects that show later than the next state tells: what values learned without a model earn, at equal true cost.

Campaigns of several families are learned with targets that bootstrap through states alone (`lags` 0) and with those
that follow the log. Policies along a ladder of prices are deployed, and their reward is read off where they cost a
share of the way from the cheapest to the uniform policy. Gains are in units of what the uniform policy earns more than
the cheapest; their difference stands with its standard error over campaigns.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.learning.soft_q import SoftQ
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.plan.policy import DeployedPolicy, LearnedSource, PolicySpecification
from redenvelope.policies.pricing import Pricing
from trials.campaigns import deployed, quick_settings
from trials.families.campaign import SimulatedCampaign
from trials.families.registry import FAMILIES

BUDGET_SHARES = np.array([0.3, 0.6, 0.9])
PRICES = np.array([0.03, 0.08, 0.15, 0.25, 0.4, 0.6, 1.0, 2.0])
"""In units of the price at which a mean reward is worth a mean cost."""
WALKERS = 8_000


def gains(campaign: SimulatedCampaign, users: int, seed: int, history: bool) -> dict[str, float]:
    """Mean gain over the budgets, by kind of targets."""
    log = log_from_frame(campaign.log(users, seed))
    encoder = Encoder.fit(log).with_history(log) if history else Encoder.fit(log)
    settings = quick_settings(seed).learning
    learner = SoftQ.prepare(Examples.from_log(log, encoder), settings, seed)
    found = {}
    for name, lags in (("states alone", 0), ("along the log", settings.lags)):
        values = replace(learner, settings=replace(settings, lags=lags)).learn_all()
        specification = PolicySpecification("learned", campaign.steps, 0.0, campaign.steps)
        policy = DeployedPolicy(specification, LearnedSource(values), encoder, Pricing.at(0.0))
        points = [(campaign.cheapest.cost, campaign.cheapest.reward)]
        points += [_truth(campaign, policy, log.catalogue.labels, values.unit * price) for price in PRICES]
        found[name] = _gain(campaign, np.array(sorted(points)))
    return found


def _truth(campaign: SimulatedCampaign, policy: DeployedPolicy, labels: tuple[str, ...], dual: float) -> Any:
    columns = [labels.index(label) for label in campaign.actions]
    decide = deployed(replace(policy, pricing=Pricing.at(dual)))
    truth = campaign.truth(lambda frame, past: decide(frame, past)[:, columns], users=WALKERS)
    return truth.cost, truth.reward


def _gain(campaign: SimulatedCampaign, points: NDArray[np.float64]) -> float:
    """Of (cost, reward) points [points, 2], by rising cost."""
    cheapest, uniform = campaign.cheapest, campaign.uniform
    budgets = cheapest.cost + BUDGET_SHARES * (uniform.cost - cheapest.cost)
    reward = np.interp(budgets, *points.T)
    return float(((reward - cheapest.reward) / (uniform.reward - cheapest.reward)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="+", default=["delayed_cost", "control", "leaving", "hidden_habit"])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--history", action="store_true", help="states tell what happened before")
    parser.add_argument("--quick", action="store_true", help="two campaigns of delayed costs")
    options = parser.parse_args()
    if options.quick:
        options.families, options.seeds = ["delayed_cost"], 2
    for name in options.families:
        family, table = FAMILIES[name], []
        for seed in range(options.seeds):
            found = gains(family.campaign(seed), family.users, seed, options.history)
            table.append(list(found.values()))
        plain, late = np.array(table).T
        error = (late - plain).std() / np.sqrt(max(len(plain) - 1, 1))
        print(
            f"{name:<16}states alone {plain.mean():.3f}  along the log {late.mean():.3f}  "
            f"difference {(late - plain).mean():+.3f} ± {error:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
