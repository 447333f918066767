"""The two-step problem: learning without a model against planning in a counted one, at equal true cost."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import polars as pl
from experiments.retrained import LearnedPolicy, RetrainedPrice
from experiments.tabular import fit_tabular
from numpy.typing import NDArray

from quality import interval
from redenvelope.finite.problem import backward_induction, evaluate
from redenvelope.learning.soft_q import SoftQ
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.planning.q_values import LearnedPrice
from redenvelope.policies.policy import Policy
from redenvelope.prices import scaled_dual, unscaled_dual
from redenvelope.simulate.finite import two_step
from sections.prices import Price, search

USERS, BUDGET, MOST_LOSS = 20_000, 2.9295, 0.02
CAMPAIGN = two_step()

FloatArray = NDArray[np.float64]
Truth = Callable[[Policy], tuple[float, float]]


def planned_frontier(examples: Examples, encoder: Encoder) -> FloatArray:
    """True rewards and costs of planning in a counted model at many duals, by rising cost, [duals, outcomes]."""
    problem, model = CAMPAIGN.problem, fit_tabular(examples)
    found = backward_induction(model.problem, np.append(np.linspace(0.0, 3.0, 301), np.inf)).probabilities
    truths = []
    for probabilities in found:
        table = np.full((2, problem.states, problem.actions), 1 / problem.actions)
        for step, met in enumerate(([0], range(1, problem.states))):
            frame = pl.DataFrame({"step": [step] * len(met), "state": [f"s{row}" for row in met]})
            table[step, list(met)] = probabilities[step, model.index(encoder.encode_frame(frame)[0])]
        truths.append(evaluate(problem, table).outcomes)
    return np.array(sorted(truths, key=lambda outcomes: outcomes[1]))


def truth_of(encoder: Encoder) -> Truth:
    def follow(policy: Policy) -> tuple[float, float]:
        value = CAMPAIGN.value(
            lambda frame: policy.probabilities(encoder.encode_frame(frame)[0], 2 - frame["step"].to_numpy())
        )
        return value.cost, value.reward

    return follow


def policy_at(price: Price, dual: float) -> LearnedPolicy:
    return price.policy(dual) if isinstance(price, RetrainedPrice) else LearnedPolicy(price.learned, dual)


def largest_rise(price: Price, truth: Truth) -> float:
    """The most that the policy's true cost rises from one dual to the next; 0 if it never does.

    Learning each price, the duals are those that the search asked for.
    """
    duals = sorted(price.known) if isinstance(price, RetrainedPrice) else [*np.linspace(0.0, 3.0, 61), np.inf]
    costs = [truth(policy_at(price, float(dual)))[0] for dual in duals]
    return max(0.0, float(np.diff(costs).max()))


def near_prices(learner: SoftQ, every: LearnedPrice, dual: float) -> FloatArray:
    """As many duals as at first, spread evenly between the two known ones around a dual, with 0 and infinity."""
    duals, unit, knots = every.learned.duals, learner.unit, learner.settings.knots
    place = int(np.clip(np.searchsorted(duals, dual), 1, len(duals) - 1))
    low, high = scaled_dual(duals[place - 1 : place + 1], unit)
    spread = np.linspace(low, min(high, 1 - 1e-6), knots - 2)
    return np.unique(np.concatenate([[0.0], unscaled_dual(spread, unit), [np.inf]]))


def run_seed(seed: int) -> dict[str, tuple[float, float, float]]:
    """Name of a way to learn -> loss against planning at equal true cost, true cost, largest rise of the cost."""
    log = log_from_frame(CAMPAIGN.log(USERS, seed))
    encoder = Encoder.fit(log)
    examples = Examples.from_log(log, encoder)
    first, truth = examples.states[log.starts[:-1]], truth_of(encoder)
    planned = planned_frontier(examples, encoder)
    learner = SoftQ.prepare(examples, seed=seed)
    every = LearnedPrice(learner.learn_all(), first)
    near = LearnedPrice(learner.learn(near_prices(learner, every, search(every, BUDGET).dual)), first)
    ways: dict[str, Price] = {"all": every, "near": near, "each": RetrainedPrice(learner, first)}
    result = {}
    for name, price in ways.items():
        found = search(price, BUDGET)
        shares = list(zip(found.prices[:, 0].tolist(), found.shares.tolist(), strict=True))
        points = np.array([truth(policy_at(price, dual)) for dual, _ in shares])
        cost, reward = np.array([share for _, share in shares]) @ points
        loss = 1 - reward / float(np.interp(cost, planned[:, 1], planned[:, 0]))
        result[name] = (loss, float(cost), largest_rise(price, truth))
        print(
            f"two-step: seed {seed} {name:<5} true cost {cost:.4f}, reward {reward:.4f}, {loss:.2%} less than "
            f"planning; cost rises with the dual by {result[name][2]:.4f} at most",
            flush=True,
        )
    return result


def run_two_step(options: argparse.Namespace) -> bool:
    """At the budget at which the uniform policy spends as much."""
    found = [run_seed(seed) for seed in range(options.seeds)]
    worst = rise = 0.0
    for name in found[0]:
        losses, costs, rises = (list(column) for column in zip(*(result[name] for result in found), strict=True))
        worst, rise = max(worst, *losses), max(rise, *rises)
        print(
            f"two-step: once for {name:<5}{np.mean(losses):.3%} less than planning at equal true cost on average, "
            f"{max(losses):.3%} at worst (bar: {MOST_LOSS:.0%}); true cost {interval(costs)} of {BUDGET}; "
            f"its cost rises with the dual by {max(rises):.4f} at most"
        )
    # What a log of so many users can tell of a mean cost at all.
    spent = CAMPAIGN.log(USERS, 0).group_by("user").agg(pl.col("cost").sum())["cost"].to_numpy()
    noise = 2 * float(spent.std()) / np.sqrt(USERS)
    print(f"two-step: {options.seeds} logs; a rise of the cost below two standard errors, {noise:.4f}, is noise")
    return worst <= MOST_LOSS and rise <= noise
