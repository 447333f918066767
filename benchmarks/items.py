"""Hundreds of items: what certified plans earn at equal budget where every action is an offer with an amount and a
category, with these attributes given and not given.

Users have tastes for categories that their features tell in part, and a warmth that rises when they redeem an offer
and falls otherwise. A redeemed offer costs its amount and brings an order. The truth is exact: a user's warmth has
three values, so backward induction over them gives the optimum and the value of every plan. The share is
(reward − cheapest) / (optimum − cheapest).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.campaign.campaign import Campaign
from redenvelope.campaign.items import Catalogue
from redenvelope.finite.problem import Value
from redenvelope.fitting.fit import fit
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.read import log_from_frame
from redenvelope.plan.plan import Plan
from redenvelope.randomness import draw
from redenvelope.simulate.campaign import climb_envelope

STEPS, WARMTHS, CATEGORIES, FEATURES = 3, 3, 8, 4
POPULATION = 600
"""Users on whom the truth is taken."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Users:
    """Users by their features, [users, features], and their tastes, [users, categories]."""

    features: Array
    tastes: Array


@dataclass(frozen=True, eq=False)
class Offers:
    """A campaign of `items` actions, the first of which is to offer nothing."""

    items: int
    seed: int = 0

    @cached_property
    def catalogue(self) -> tuple[Array, NDArray[np.int64]]:
        """Amount and category of every item, [items] each; nothing costs nothing and has none (−1)."""
        generator = np.random.default_rng([self.seed, 1])
        amounts = np.round(generator.uniform(0.5, 8.0, self.items), 2)
        categories = generator.integers(0, CATEGORIES, self.items)
        amounts[0], categories[0] = 0.0, -1
        return amounts, categories

    @cached_property
    def labels(self) -> list[str]:
        """Names that tell nothing."""
        return ["nothing", *(f"offer {place:03d}" for place in range(1, self.items))]

    @cached_property
    def quality(self) -> Array:
        """What makes an item better or worse than its attributes say, [items]."""
        return np.random.default_rng([self.seed, 2]).normal(0.0, 0.15, self.items)

    def users(self, count: int, seed: int) -> Users:
        """New users."""
        loadings = np.random.default_rng([self.seed, 3]).normal(0.0, 0.6, (FEATURES, CATEGORIES))
        generator = np.random.default_rng([self.seed, 4, seed])
        features = generator.normal(0.0, 1.0, (count, FEATURES))
        return Users(features, features @ loadings + generator.normal(0.0, 0.2, (count, CATEGORIES)))

    def redeems(self, users: Users, warmth: int) -> Array:
        """Probability that each user at a warmth redeems each item, [users, items]."""
        amounts, categories = self.catalogue
        wanted = -3.0 + 1.1 * np.log1p(amounts) + users.tastes[:, np.maximum(categories, 0)] + self.quality
        chances = 1.0 / (1.0 + np.exp(-(wanted + 0.35 * (warmth - 1))))
        chances[:, 0] = 0.0
        return np.asarray(chances)

    def organic(self, warmth: int) -> float:
        """Orders without any offer."""
        return 0.1 + 0.06 * warmth

    def log(self, count: int, seed: int) -> pl.DataFrame:
        """Users under a policy that gives small amounts more often, whoever they are."""
        users, generator = self.users(count, 1_000 + seed), np.random.default_rng([self.seed, 5, seed])
        chances = np.exp(-self.catalogue[0] / 8.0)
        chances[0] = 3 * chances[1:].mean()
        chances /= chances.sum()
        tables = np.stack([self.redeems(users, warmth) for warmth in range(WARMTHS)])
        warmth, rows = generator.integers(0, WARMTHS, count), []
        for step in range(STEPS):
            action = draw(np.broadcast_to(chances, (count, self.items)), generator.random(count))
            redeemed = generator.random(count) < tables[warmth, np.arange(count), action]
            organic = generator.random(count) < 0.1 + 0.06 * warmth
            rows.append(
                pl.DataFrame(
                    {
                        "user": np.arange(count),
                        "step": np.full(count, step),
                        "action": np.array(self.labels)[action],
                        "propensity": chances[action],
                        "reward": redeemed.astype(float) + organic,
                        "cost": np.where(redeemed, self.catalogue[0][action], 0.0),
                    }
                ).hstack(_features(users, warmth))
            )
            warmth = np.where(redeemed, np.minimum(warmth + 1, WARMTHS - 1), np.maximum(warmth - 1, 0))
        return pl.concat(rows).sort("user", "step")

    @cached_property
    def population(self) -> Users:
        """Users on whom the truth is taken."""
        return self.users(POPULATION, 0)

    @cached_property
    def tables(self) -> Array:
        """[warmths, users, items] of the population."""
        return np.stack([self.redeems(self.population, warmth) for warmth in range(WARMTHS)])

    def follow(self, choose: Callable[[int, int, Array, Array], Array]) -> Value:
        """The exact value of a policy: `choose` gives probabilities [users, items] at a step and a warmth, given reward
        and cost to go of every item, [users, items] each."""
        later = np.zeros((2, WARMTHS, POPULATION))
        for step in range(STEPS - 1, -1, -1):
            now = np.empty_like(later)
            for warmth in range(WARMTHS):
                redeemed = self.tables[warmth]
                up, down = later[:, min(warmth + 1, WARMTHS - 1)], later[:, max(warmth - 1, 0)]
                ahead = redeemed * up[:, :, None] + (1 - redeemed) * down[:, :, None]
                reward = redeemed + self.organic(warmth) + ahead[0]
                cost = redeemed * self.catalogue[0] + ahead[1]
                chosen = choose(step, warmth, reward, cost)
                now[:, warmth] = (chosen * reward).sum(axis=1), (chosen * cost).sum(axis=1)
            later = now
        return Value(later.mean(axis=(1, 2)))  # a user begins at any warmth

    def best(self, price: float) -> Value:
        """The value of the policy that is best at a price."""

        def choose(step: int, warmth: int, reward: Array, cost: Array) -> Array:
            worth = -cost + 1e-9 * reward if np.isinf(price) else reward - price * cost
            return np.eye(self.items)[worth.argmax(axis=1)]

        return self.follow(choose)

    def uniform(self) -> Value:
        """The value of choosing evenly."""
        return self.follow(lambda step, warmth, reward, cost: np.full_like(reward, 1 / self.items))

    def worth(self, plan: Plan) -> Array:
        """Exact reward and cost of a plan, its users drawn to prices once each."""
        order = [plan.catalogue.labels.index(label) for label in self.labels]
        frame = pl.concat(
            _features(self.population, np.full(POPULATION, warmth)).with_columns(
                user=pl.Series(np.arange(POPULATION)), step=pl.lit(step)
            )
            for step in range(STEPS)
            for warmth in range(WARMTHS)
        )
        values = []
        for row in range(len(plan.policy.pricing.shares)):
            answers = plan.policy.probabilities(frame, row)[:, order].reshape(STEPS, WARMTHS, POPULATION, -1)
            values.append(self.follow(lambda step, warmth, *_, answers=answers: answers[step, warmth]).outcomes)
        return plan.policy.pricing.mix(np.array(values), axis=0)


def _features(users: Users, warmth: NDArray[np.int64]) -> pl.DataFrame:
    named = {f"feature {place}": users.features[:, place] for place in range(FEATURES)}
    return pl.DataFrame(named | {"warmth": warmth.astype(float)})


def run(
    items: int, users: int, seed: int, share: float, attributes: bool, explore: float | None = None
) -> dict[str, object]:
    """One campaign, fitted, certified and compared with the truth."""
    campaign = Offers(items, seed)
    budget = share * campaign.uniform().cost
    cheapest, optimum = campaign.best(np.inf), climb_envelope(campaign.best, budget)
    began = time.perf_counter()
    log = log_from_frame(campaign.log(users, seed))
    amounts, categories = campaign.catalogue
    known = pl.DataFrame({"action": campaign.labels, "amount": amounts, "category": [f"c{own}" for own in categories]})
    given = Campaign(items=Catalogue.of(known) if attributes else None)
    plan = fit(log, budget=budget, campaign=given, settings=FitSettings(seed=seed, history="none", explore=explore))
    reward, cost = campaign.worth(plan)
    model = plan.record.model
    return {
        "items": items,
        "users": users,
        "seed": seed,
        "attributes": attributes,
        "share": (reward - cheapest.reward) / (optimum.reward - cheapest.reward),
        "spent": cost / budget,
        "status": plan.certificate.status,
        "under_spent": plan.certificate.is_under_spent,
        "explore": plan.policy.specification.explore,
        "effective_users": plan.certificate.diagnostics["effective_users_by_step"],
        "weights_of": plan.certificate.diagnostics["weights_of"],
        "structures": [model[f"{name}_structure"]["structure"] for name in ("reward", "cost")],
        "reasons": [f"{reason.rule}: {reason.message}" for reason in plan.certificate.reasons],
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, nargs="*", default=[20, 60, 120, 300])
    parser.add_argument("--users", type=int, nargs="*", default=[20_000])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--budget", type=float, default=0.7, help="as a share of what choosing evenly costs")
    parser.add_argument("--attributes", action=argparse.BooleanOptionalAction, help="given or not; by default both")
    parser.add_argument("--explore", type=float, help="the exploration share, instead of the default")
    parser.add_argument("--quick", action="store_true", help="20 items, 3,000 users")
    options = parser.parse_args()
    if options.quick:
        options.items, options.users = [20], [3_000]
    for items in options.items:
        for users in options.users:
            for seed in range(options.seeds):
                for attributes in (True, False) if options.attributes is None else (options.attributes,):
                    print(json.dumps(run(items, users, seed, options.budget, attributes, options.explore)), flush=True)


if __name__ == "__main__":
    main()
