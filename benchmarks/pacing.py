"""Pacing in worlds that the log did not know: redemption above, below and drifting against it.

A plan for the envelopes campaign is served, in process and with a real ledger, to users who redeem more or less often
than those of the log. Beside it: the same without pacing, and what the best constant price in hindsight would have
earned in the same world: the plan at the price whose cost is the budget there, read off its ladder.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

WORLDS = {"as logged": (1.0, 1.0), "30 % above": (1.3, 1.3), "30 % below": (0.7, 0.7), "drifting up": (0.7, 1.3)}
BUDGET, GROUP = 4.0, 250
LEAST_SPENT, SHARE_OF_BEST = 0.97, 0.95


def new_crowd(users: int, factors: tuple[float, float], seed: int) -> list[Any]:
    """The users in ten parts, each with its own redemption."""
    sys.path.insert(0, str(Path(__file__).parent))
    from decide import FEATURES
    from redenvelope.simulate.envelopes import EnvelopeCampaign, EnvelopeCrowd

    known = {"user", "step", "action", "propensity", "reward", "cost"}
    own = len(set(EnvelopeCampaign(population=10).log(10, 0).columns) - known)
    campaign = EnvelopeCampaign(population=2_000, extra_noise_features=FEATURES - own)
    levels = np.linspace(*factors, 10)
    return [EnvelopeCrowd(campaign, users // 10, seed + part, level) for part, level in enumerate(levels)]


async def served(
    folder: Path, ledger: str, users: int, factors: tuple[float, float], paced: bool
) -> tuple[float, float]:
    """Share of the total that was spent, and reward per user."""
    from redenvelope.ledger.ledger import open_ledger
    from redenvelope.ledger.records import Fund
    from redenvelope.serve.messages import DecisionRequest, OutcomeRequest
    from redenvelope.serve.service import Service
    from redenvelope.serve.settings import PacingSettings, ServeSettings

    total = round(100 * BUDGET * users)
    settings = ServeSettings(audience=users, pacing=PacingSettings() if paced else None)
    service = Service(folder, open_ledger(ledger, seed=0), [Fund("budget", total, 0)], settings)
    await service.start()
    assert service.active is not None
    places = {float(label): place for place, label in enumerate(service.active.plan.labels)}
    earned = 0.0
    for part, people in enumerate(new_crowd(users, factors, 5)):
        for first in range(0, len(people), GROUP):
            rows = np.arange(first, min(first + GROUP, len(people)))
            for step in range(service.active.plan.steps):
                seen = people.seen(rows, step)
                names = [f"{part}-{row}" for row in rows]
                asked = [DecisionRequest(f"{name}-{step}", name, one) for name, one in zip(names, seen, strict=True)]
                answers: list[Any] = list(await service.decide(asked))
                given = np.array([places[float(answer.action)] for answer in answers])
                rewards, costs = people.happen(rows, given)
                earned += float(rewards.sum())
                outcomes = zip(answers, rewards.tolist(), costs.tolist(), strict=True)
                await service.settle([OutcomeRequest(one.decision_id, r, round(100 * c)) for one, r, c in outcomes])
    spent = service.ledger.balances()[0].spent
    await service.stop()
    return spent / total, earned / users


def best_constant(folder: Path, users: int, factors: tuple[float, float]) -> float:
    """Reward a user of the price whose cost is the budget in this world, mixed of two where none is."""
    from redenvelope.plan.plan import Plan
    from redenvelope.randomness import draw

    plan = Plan.load(folder)
    policy = plan.policy
    chance = np.random.default_rng(9)
    points = []
    for rung in np.unique(np.linspace(0, len(plan.ladder.rungs) - 1, 12).astype(int)):
        sums = np.zeros(2)
        for people in new_crowd(users, factors, 5):
            rows = np.arange(len(people))
            for step in range(policy.specification.steps):
                encoder = policy.encoder
                states = np.stack([encoder.encode_row({**one, "step": step}) for one in people.seen(rows, step)])
                left = np.full(len(rows), policy.specification.steps - step)
                decided = policy.valuer.decided(states, left, plan.ladder.prices[[rung]])
                given = draw(decided.probabilities[:, 0], chance.random(len(rows)))
                rewards, costs = people.happen(rows, given)
                sums += rewards.sum(), costs.sum()
        points.append(sums / users)
    rewards, costs = np.array(points).T
    order = np.argsort(costs)
    return float(np.interp(BUDGET, costs[order], rewards[order]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=50_000)
    parser.add_argument("--plan", type=Path, help="a folder with plan-1, as benchmarks/serve.py makes it")
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS), choices=list(WORLDS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.plan
        if folder is None:
            from serve import make_plan

            folder = Path(name)
            make_plan(folder, 6_000)
        plan = folder / "plan-1"
        print(f"{arguments.users:,} users, {BUDGET:g} each; plan from 6,000 users")
        print(
            f"{'world':<14}{'spent':>8}{'reward':>9}{'best constant':>15}{'share':>8}   without pacing: spent, reward"
        )
        for world in arguments.worlds:
            found = [
                asyncio.run(served(plan, f"sqlite:///{name}/{world}{paced}.db", arguments.users, WORLDS[world], paced))
                for paced in (True, False)
            ]
            best = best_constant(plan, min(arguments.users, 10_000), WORLDS[world])
            (spent, reward), (unpaced, other) = found
            good = LEAST_SPENT <= spent <= 1 and reward >= SHARE_OF_BEST * best
            print(
                f"{world:<14}{spent:>8.2%}{reward:>9.4f}{best:>15.4f}{reward / best:>8.3f}   {unpaced:.2%}, {other:.4f}"
                f"   {'met' if good else 'MISSED'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
