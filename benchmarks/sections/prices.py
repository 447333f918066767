"""Once for all prices against once for each: time of a whole search, and the true reward of what it finds."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import jax
import numpy as np
import polars as pl
from experiments.retrained import LearnedPolicy, RetrainedPrice
from numpy.typing import NDArray

from quality import Stage
from quality import learn as read_campaign
from redenvelope.dual.search import solve_dual
from redenvelope.dual.solution import DualSolution
from redenvelope.dual.solvers import Bisection
from redenvelope.learning.soft_q import SoftQ
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.models.dataset import Examples
from redenvelope.planning.q_values import LearnedPrice
from redenvelope.simulate.envelopes import EnvelopeCampaign

LEAST_SAVING = 8.0
EQUAL_REWARD = 0.01
"""Shares of the optimum's gain that differ by less are equal: logs of other seeds differ as much."""
# With the two ends and the first finite price this makes 24 prices at most, as many as the paper's search needs.
BISECTION = Bisection(max_steps=21)

Price = LearnedPrice | RetrainedPrice


@dataclass(frozen=True)
class Search:
    """A search from the log's rows to the price of the budget; seconds of processor time on one core."""

    price: Price
    found: DualSolution
    preparing: float
    """Outcomes of a step and the logger's habits, which need no price."""
    seconds: float
    """All of it, compilation included."""

    @property
    def prices(self) -> int:
        """Duals that were priced."""
        return len(self.found.priced)


def search(price: Price, budget: float) -> DualSolution:
    return solve_dual(price, budget, BISECTION)


def timed_search(examples: Examples, once: bool, budget: float) -> Search:
    """Everything is compiled anew, as in a process of its own."""
    jax.clear_caches()
    first = examples.states[examples.starts[:-1]]
    start = time.process_time()
    learner = SoftQ.prepare(examples)
    prepared = time.process_time()
    price: Price = LearnedPrice(learner.learn_all(), first) if once else RetrainedPrice(learner, first)
    found = search(price, budget)
    return Search(price, found, prepared - start, time.process_time() - start)


def plans(search: Search) -> list[tuple[LearnedPolicy, float]]:
    """The policies of a solution and the share of users of each."""
    return [
        (search.price.policy(dual), share)
        if isinstance(search.price, RetrainedPrice)
        else (LearnedPolicy(search.price.learned, dual), share)
        for dual, share in zip(search.found.prices[:, 0].tolist(), search.found.shares.tolist(), strict=True)
    ]


def truth(stage: Stage, encoder: Encoder, done: Search) -> tuple[float, float, float]:
    """True cost, true reward, and the share of the gain of the optimum at that very cost."""
    campaign = stage.campaign

    def answer(policy: LearnedPolicy, frame: pl.DataFrame) -> NDArray[np.float64]:
        return policy.probabilities(encoder.encode_frame(frame)[0], campaign.steps - frame["step"].to_numpy())

    cost = reward = 0.0
    for policy, share in plans(done):
        value = campaign.value(lambda frame, policy=policy: answer(policy, frame))
        cost, reward = cost + share * value.cost, reward + share * value.reward
    base = campaign.cheapest().reward
    return cost, reward, (reward - base) / (campaign.optimum(cost).reward - base)


def compiled_seconds(examples: Examples, budget: float, dual: float) -> tuple[float, float, float]:
    """What all programs being compiled leaves of: preparing, all of once for all, and one price of once for each."""
    first = examples.states[examples.starts[:-1]]
    for _ in range(2):  # the first time compiles
        start = time.process_time()
        learner = SoftQ.prepare(examples)
        prepared = time.process_time()
        search(LearnedPrice(learner.learn_all(), first), budget)
        found = time.process_time()
    RetrainedPrice(learner, first)(np.array([dual]))
    return prepared - start, found - start, time.process_time() - found


def run_prices(options: argparse.Namespace) -> bool:
    """Both search by the same bisection, with the same settings; each price starts from its nearest neighbour."""
    stage = Stage(EnvelopeCampaign(population=options.population))
    encoder, examples = read_campaign(stage.campaign, options.users, seed=0)
    budget = 0.5 * float(np.add.reduceat(examples.cost, examples.starts[:-1]).mean())
    shares, done = [], []
    for name in ("all", "each"):
        done.append(timed_search(examples, name == "all", budget))
        cost, reward, share = truth(stage, encoder, done[-1])
        shares.append(share)
        print(
            f"prices: once for {name:<5}{done[-1].seconds:7.1f} s ({done[-1].preparing:.1f} s before the first price), "
            f"{done[-1].prices} prices, dual {done[-1].found.dual:.4f}; in truth: cost {cost:.3f}, reward "
            f"{reward:.4f}, {share:.3f} of the optimum's gain at that cost",
            flush=True,
        )
    every, each = done
    preparing, compiled, one = compiled_seconds(examples, budget, each.found.dual)
    # The paper trains the whole of Q at every price: nothing learned is shared but where training starts.
    whole = each.seconds + (each.prices - 1) * preparing
    saving = each.seconds / every.seconds
    beyond = (each.seconds - each.preparing) / (every.seconds - every.preparing)
    equal = abs(shares[0] - shares[1]) <= EQUAL_REWARD
    print(
        f"prices: once for all is {saving:.1f} times faster (bar: {LEAST_SAVING}) at {'equal' if equal else 'another'} "
        f"reward, {(preparing + one * each.prices) / compiled:.1f} times without compilation\n"
        f"prices: {beyond:.1f} times beyond what needs no price and is learned once by both; "
        f"{whole / every.seconds:.1f} times where each price learns that again too, as the paper does",
        flush=True,
    )
    return saving >= LEAST_SAVING and equal
