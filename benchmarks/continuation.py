"""What complete baselines are worth: trees that end before the campaign, with and without what comes after them.

Each campaign is longer than the horizon. A model is learned on some users; on others, policies at several duals are
estimated with baselines that end with the tree and with complete ones, and compared with the simulator's truth:
the error of the direct method (which cannot be less than the model's own), and error and standard error of the doubly
robust estimates. Means over duals.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from redenvelope.evaluation.data import off_policy_data
from redenvelope.evaluation.evaluate import Evaluation, evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.log import Log, split
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.models.fit import fit_neural
from redenvelope.models.training import NeuralSettings, TrainingSettings
from redenvelope.planning.continuation import Continuation
from redenvelope.planning.planner import ModelPrice, TreePlanner
from redenvelope.policies.action_values import ActionValues
from redenvelope.policies.policy import normalised
from redenvelope.simulate.campaign import Campaign
from redenvelope.simulate.dynamics import EnvelopeParameters
from redenvelope.simulate.envelopes import EnvelopeCampaign
from redenvelope.simulate.finite import FiniteCampaign, random_problem

SMALL = NeuralSettings(
    outcome_hidden=(32,), transition_hidden=(32,), members=1, training=TrainingSettings(steps=800, batch_rows=512)
)
LEARNED_FROM = 1_000


def campaigns(quick: bool) -> dict[str, tuple[Campaign, int, float, list[float]]]:
    """Campaign, horizon, temperature and duals, by name."""
    short = EnvelopeCampaign(EnvelopeParameters(steps=5), population=500)
    finite = FiniteCampaign(random_problem(7, states=5, actions=3, steps=6))
    found = {
        "finite, 6 steps, horizon 2": (finite, 2, 0.2, [0.3, 0.6, 1.2]),
        "envelopes, 5 steps, horizon 3": (short, 3, 0.1, [0.1, 0.2, 0.4]),
    }
    if not quick:
        long = EnvelopeCampaign(EnvelopeParameters(steps=8), population=500)
        found["envelopes, 8 steps, horizon 3"] = (long, 3, 0.1, [0.1, 0.2, 0.4])
    return found


def true_values(campaign: Campaign, planner: TreePlanner, encoder: Encoder, duals: list[float]) -> np.ndarray:
    """Reward and cost of the policy at each dual, [2, duals]."""
    values = []
    for dual in duals:

        def decide(users: Any, prices: tuple[float, ...] = (dual,)) -> np.ndarray:
            states, _ = encoder.encode_frame(users)
            values = planner.values(states, campaign.steps - users["step"].to_numpy(), [prices])
            return normalised(values.probabilities[:, 0])

        value = campaign.value(decide)
        values.append((value.reward, value.cost))
    return np.array(values).T


def estimates(log: Log, values: ActionValues, states: np.ndarray) -> dict[str, Evaluation]:
    data = off_policy_data(log, values.probabilities, values.to_go, features=states)
    found = evaluate_partitions([data], ["direct", "doubly_robust", Marginalised()])
    return {name.replace("_", " "): evaluation for name, evaluation in found.items()}


def one(name: str, campaign: Campaign, horizon: int, temperature: float, duals: list[float], users: int) -> None:
    log = log_from_frame(campaign.log(users, 1))
    train, rest = split(log, (0.5, 0.5), 0)
    encoder = Encoder.fit(train)
    model = fit_neural(Examples.from_log(train, encoder), SMALL, 0).model
    planner = TreePlanner(model, horizon, temperature, campaign.steps)
    states, left = encoder.encode(rest), campaign.steps - rest.step
    tree = planner.values(states, left, duals)
    first = rest.starts[:-1][:LEARNED_FROM]
    start = time.perf_counter()
    continuation = Continuation.fit(planner, states[first], left[first], duals)
    fitted = time.perf_counter()
    complete = continuation.extend(tree, states, left)
    extended = time.perf_counter()
    truth = true_values(campaign, planner, encoder, duals)
    numbers = states[:, len(encoder.layout.static_categories) :]
    print(f"\n{name}: {len(rest.users):,} users; true reward {truth[0].round(3)}, cost {truth[1].round(3)}")
    rewards, costs = ModelPrice(planner, states[first])(np.array(duals))
    print(f"  the model itself, followed to the end: reward {rewards.round(3)}, cost {costs.round(3)}")
    print(f"  learned in {fitted - start:.2f} s, applied to {len(states):,} rows in {extended - fitted:.2f} s")
    print(f"  {'':<16}{'':<10}{'reward error':>14}{'std. error':>12}{'cost error':>12}{'std. error':>12}")
    for kind, values in (("tree only", tree), ("complete", complete)):
        for estimator, found in estimates(rest, values, numbers).items():
            error, spread = np.abs(found.value - truth).mean(axis=1), found.standard_error.mean(axis=1)
            print(f"  {estimator:<16}{kind:<10}{error[0]:>14.3f}{spread[0]:>12.3f}{error[1]:>12.3f}{spread[1]:>12.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=8_000)
    parser.add_argument("--quick", action="store_true", help="fewer users and campaigns")
    arguments = parser.parse_args()
    users = 2_000 if arguments.quick else arguments.users
    for name, (campaign, horizon, temperature, duals) in campaigns(arguments.quick).items():
        one(name, campaign, horizon, temperature, duals, users)


if __name__ == "__main__":
    main()
