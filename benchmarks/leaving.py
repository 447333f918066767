"""Users who leave without an envelope: what a plan earns at equal true cost, with who stays in the model and without.

The campaign is finite, so that the optimum (a linear program) and the value of every policy are exact. Whoever gets
nothing stays with a chance of 0.45, with a small envelope 0.9, with a large one 0.95. The share is
(reward − cheapest) / (optimum − cheapest) at budgets that are shares of what the uniform policy costs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import equinox as eqx
import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.finite.problem import FiniteProblem
from redenvelope.learning.soft_q import SoftQ
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.models.fit import fit_neural
from redenvelope.models.neural_model import NeuralModel
from redenvelope.models.targets import OutcomeTargets
from redenvelope.models.training import NeuralSettings
from redenvelope.planning.planner import TreePlanner
from redenvelope.policies.action_values import Valuer
from redenvelope.simulate.finite import FiniteCampaign

STAYING = np.array([0.45, 0.9, 0.95])
BUDGET_SHARES = np.array([0.4, 0.8, 1.2])
DUALS = np.append(np.geomspace(0.02, 4.0, 24), np.inf)
STEPS, STATES = 5, 6


def leaving_campaign(seed: int = 0) -> FiniteCampaign:
    """Envelopes earn little at once, and keep users who earn later."""
    generator = np.random.default_rng(seed)
    rewards = generator.uniform(0.2, 0.6, (STATES, 1)) + np.array([0.0, 0.05, 0.12]) * generator.uniform(
        0.3, 1.7, (STATES, 1)
    )
    costs = np.array([0.0, 0.3, 0.8]) * generator.uniform(0.8, 1.2, (STATES, 1))
    moves = generator.dirichlet(np.full(STATES, 0.5), size=(STATES, 3))
    staying = STAYING * generator.uniform(0.9, 1.0, (STATES, 1))
    initial = generator.dirichlet(np.ones(STATES))
    problem = FiniteProblem(rewards, costs, moves * staying[:, :, None], initial, STEPS)
    return FiniteCampaign(problem, reward_variance=0.05, cost_variance=0.02)


def earned(campaign: FiniteCampaign, encoder: Encoder, valuer: Valuer) -> NDArray[np.float64]:
    """Exact reward at each budget of a valuer's policies along the duals, mixed to land on it, [budgets]."""

    def value(dual: float) -> tuple[float, float]:
        def decide(frame: pl.DataFrame) -> NDArray[np.float64]:
            left = campaign.steps - frame["step"].to_numpy()
            found = valuer.values(encoder.encode_frame(frame)[0], left, [dual]).probabilities[:, 0]
            return np.asarray(found / found.sum(axis=1, keepdims=True), np.float64)

        exact = campaign.value(decide)
        return exact.cost, exact.reward

    points = [value(float(dual)) for dual in DUALS]
    cheapest, dearest = campaign.cheapest(), value(0.0)
    costs, rewards = np.array([(cheapest.cost, cheapest.reward), dearest, *points]).T
    order = np.argsort(costs)
    return np.interp(BUDGET_SHARES * campaign.uniform().cost, costs[order], rewards[order])


def blind(model: NeuralModel) -> NeuralModel:
    """The same model, taking for granted that everybody stays."""
    outcome = replace_responses(model)
    architecture = replace(model.architecture, survival_structure=None)
    targets = OutcomeTargets(model.targets.reward, model.targets.costs)
    return NeuralModel(outcome, model.transition, targets, model.scale, architecture, model.history)


def replace_responses(model: NeuralModel) -> object:
    responses = model.outcome.responses
    return eqx.tree_at(lambda part: part.responses, model.outcome, responses[:-1])


def shares(users: int, seed: int, learned: bool) -> dict[str, NDArray[np.float64]]:
    """Share of the optimum's gain at each budget, by policy."""
    campaign = leaving_campaign(seed)
    log = log_from_frame(campaign.log(users, seed))
    encoder = Encoder.fit(log)
    examples = Examples.from_log(log, encoder)
    model = fit_neural(examples, NeuralSettings(), seed=seed).model
    valuers: dict[str, Valuer] = {
        "planned": TreePlanner(model, STEPS, 0.0, STEPS),
        "planned, blind to leaving": TreePlanner(blind(model), STEPS, 0.0, STEPS),
    }
    if learned:
        valuers["learned"] = SoftQ.prepare(examples, seed=seed).learn_all()
    base = campaign.cheapest().reward
    budgets = BUDGET_SHARES * campaign.uniform().cost
    best = np.array([campaign.optimum(float(budget)).reward for budget in budgets])
    return {name: (earned(campaign, encoder, valuer) - base) / (best - base) for name, valuer in valuers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=8_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learned", action="store_true", help="values learned without a model as well")
    parser.add_argument("--quick", action="store_true", help="one campaign")
    options = parser.parse_args()
    found: dict[str, list[NDArray[np.float64]]] = {}
    for seed in range(1 if options.quick else options.seeds):
        for name, share in shares(options.users, seed, options.learned).items():
            print(f"campaign {seed}  {name:<28}{np.round(share, 3).tolist()}", flush=True)
            found.setdefault(name, []).append(share)
    for name, parts in found.items():
        print(f"{name:<28}{np.mean(parts):.3f} of the optimum's gain")


if __name__ == "__main__":
    sys.exit(main())
