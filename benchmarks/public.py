"""What targeting earns on real randomised experiments: plans beside what a data scientist would write in an afternoon.

Every log is split by user, several times. On 70 % of the users a plan is fitted, and two peers: one ridge regression
and one boosted ensemble of trees per action (scikit-learn), both shrunk towards the means of the actions as far as
cross-validation says. All three decide for the other 30 % at the one price where, by their own account, half of the
logged cost is spent. What that earns and costs follows from the logged outcomes, weighed by the known propensities. A
figure is the gain per user over the best *untargeted* mixture at the same cost: fixed offers to random shares of users.

    benchmarks/public.py FOLDER [--splits 10]     the logs that FOLDER has of LOGS
    benchmarks/public.py --log MY.parquet         a log of your own, in the columns of the contract, of one step
    benchmarks/public.py --simulated 5000 30000   simulated campaigns of one step, where the truth is known
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.fitting.fit import fit
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.read import log_from_frame
from redenvelope.models.training import NeuralSettings
from redenvelope.plan.policy import DeployedPolicy, Rows
from redenvelope.randomness import user_keys

Array = NDArray[np.float64]
ROLES = ("user", "step", "action", "propensity", "reward", "cost", "cluster")
ROLES_OF_WAVES = ("user", "step", "action", "reward", "cost")
TEST_SHARE, BUDGET_SHARE = 0.3, 0.5
PRICES = 160


@dataclass(frozen=True)
class Source:
    """How a public log becomes one of a single step."""

    ignored: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    by_row: bool = False
    """Rows are decisions of their own; splits keep the rows of a user together."""


LOGS = {
    "thornton_hiv": Source(("villnum",)),
    "hillstrom": Source(("visit", "conversion")),
    "gotv": Source(("household",)),
    "starbucks_tiers": Source(
        renamed=(
            ("customer", "user"),
            ("wave", "step"),
            ("offer", "action"),
            ("completed", "reward"),
            ("payout", "cost"),
        ),
        by_row=True,
    ),
    "heartsteps": Source(("episode", "eligible"), by_row=True),
}
"""The first three ask for one decision per user. Of the others every decision is one of its own."""


def read(path: Path) -> tuple[pl.DataFrame, NDArray[np.int64]]:
    """A log of one step, and the group of each row, which splits keep together."""
    source = LOGS.get(path.stem, Source())
    frame = pl.read_parquet(path).rename(dict(source.renamed)).drop(source.ignored)
    if path.stem == "heartsteps":
        frame = frame.filter(pl.col("propensity") < 1)  # nothing is decided where the user is not available
    group = frame["user"].rank("dense").to_numpy().astype(np.int64)
    if source.by_row:
        frame = frame.with_columns(wave=pl.col("step"), user=pl.int_range(pl.len()), step=pl.lit(0))
    return frame.with_columns(pl.col("action").cast(pl.String)), group


@dataclass(frozen=True, eq=False)
class Decisions:
    """Action values of the test users, [users, actions] each, and the temperature of choices."""

    probabilities: Callable[[float], Array]
    """By price."""
    cost: Array
    """Expected, [users, actions]."""

    def at_budget(self, budget: float) -> Array:
        """Probabilities [users, actions] where the expected cost is the budget: the two prices around it, mixed."""
        prices = [0.0, *np.geomspace(1e-4, 1e4, PRICES)]
        low, high = 0, len(prices) - 1
        if self._spent(prices[low]) <= budget:
            return self.probabilities(prices[low])
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._spent(prices[middle]) <= budget else (middle, high)
        dear, cheap = prices[low], prices[high]
        for _ in range(25):
            middle = (dear + cheap) / 2
            dear, cheap = (dear, middle) if self._spent(middle) <= budget else (middle, cheap)
        more, less = self._spent(dear), self._spent(cheap)
        share = np.clip((budget - less) / max(more - less, 1e-12), 0, 1)
        return share * self.probabilities(dear) + (1 - share) * self.probabilities(cheap)

    def _spent(self, price: float) -> float:
        return float((self.probabilities(price) * self.cost).sum(axis=1).mean())


def greedy(reward: Array, cost: Array) -> Decisions:
    """The best action at a price, by expected outcomes [users, actions]."""

    def probabilities(price: float) -> Array:
        return np.eye(reward.shape[1])[(reward - price * cost).argmax(axis=1)]

    return Decisions(probabilities, cost)


def ours(**choices) -> Callable[..., Decisions]:
    """A plan of `fit`, without exploration, asked at any price; of several members, by the one that a user follows."""

    def decide(train: pl.DataFrame, test: pl.DataFrame, actions: list[str], budget: float, seed: int) -> Decisions:
        settings = FitSettings(seed=seed, explore=0.0, **choices)
        policy = fit(log_from_frame(train), budget=budget, settings=settings).policy
        order = [policy.catalogue.labels.index(action) for action in actions]
        states, _ = policy.encoder.encode_frame(test)
        left, keys = policy.steps_left(test["step"].to_numpy()), user_keys(test["user"])

        def values(price: float) -> Sequence[Array]:
            def of_member(own: DeployedPolicy, rows: Rows) -> list[Array]:
                found = own.valuer.values(states[rows], left[rows], [price])
                return [
                    np.asarray(table[:, 0], np.float64)[:, order] for table in (found.probabilities, found.to_go[1])
                ]

            return policy.by_member(keys, of_member, (0, 0))

        return Decisions(lambda price: values(price)[0], values(0.0)[1])

    return decide


def peer(kind: str) -> Callable[..., Decisions]:
    """A model of each outcome per action, its differences between users shrunk as cross-validation says."""

    def decide(train: pl.DataFrame, test: pl.DataFrame, actions: list[str], budget: float, seed: int) -> Decisions:
        from sklearn.model_selection import cross_val_predict

        inputs, asked = columns_of(kind, train, test)
        action = train["action"].to_numpy()
        found = []
        for outcome in ("reward", "cost"):
            value, columns = train[outcome].to_numpy().astype(float), []
            for own in (action == label for label in actions):
                mean, constant = value[own].mean(), value[own].std() < 1e-9
                if constant:
                    columns.append(np.full(len(asked), mean))
                    continue
                model = regression(kind, seed)
                out_of_fold = cross_val_predict(model, inputs[own], value[own], cv=5)
                spread = out_of_fold - out_of_fold.mean()
                slope = np.clip((spread * value[own]).sum() / max(np.square(spread).sum(), 1e-12), 0, 1)
                told = model.fit(inputs[own], value[own]).predict(asked)
                columns.append(mean + slope * (told - model.predict(inputs[own]).mean()))
            found.append(np.stack(columns, axis=1))
        return greedy(*found)

    return decide


def regression(kind: str, seed: int):
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV

    if kind == "ridge":
        return RidgeCV(np.geomspace(0.1, 1e5, 13))
    return HistGradientBoostingRegressor(
        learning_rate=0.05,
        max_iter=100,
        max_leaf_nodes=15,
        min_samples_leaf=50,
        l2_regularization=1.0,
        random_state=seed,
    )


def columns_of(kind: str, *frames: pl.DataFrame) -> list[Array]:
    """Numbers standardised, text as indicators (ridge) or codes (trees)."""
    everything = pl.concat([frame.drop([name for name in ROLES if name in frame.columns]) for frame in frames])
    made = []
    for column in everything.get_columns():
        if column.dtype in (pl.String, pl.Categorical, pl.Boolean):
            codes = column.cast(pl.String).fill_null("").rank("dense").to_numpy().astype(float)
            made.append(codes[:, None] if kind == "boosted" else (codes[:, None] == np.unique(codes)).astype(float))
            continue
        value = column.cast(pl.Float64).to_numpy()
        known = np.isfinite(value)
        value = (np.where(known, value, value[known].mean()) - value[known].mean()) / (value[known].std() + 1e-12)
        made.append(value[:, None])
        if not known.all():
            made.append(1.0 - known[:, None])
    table = np.concatenate(made, axis=1)
    edges = np.cumsum([0, *(len(frame) for frame in frames)])
    return [table[first:last] for first, last in pairwise(edges)]


POLICIES = {"ours": ours(), "ridge": peer("ridge"), "boosted": peer("boosted")}
VARIANTS = {
    "cross-fitted": ours(cross_fit=5),
    "larger-fold": ours(parts=(0.75, 0.1, 0.15)),
    "four-networks": ours(neural=NeuralSettings(members=4)),
}
"""Plans that learn from more users: of five members, or with few users left to check them; or of fewer networks."""


def envelope(costs: Array, rewards: Array) -> Array:
    """Corners of the best untargeted mixtures: places of the actions on it, by rising cost."""
    order = sorted(range(len(costs)), key=lambda place: (costs[place], -rewards[place]))
    corners: list[int] = []
    for place in order:
        if corners and rewards[place] <= rewards[corners[-1]]:
            continue
        while len(corners) > 1 and _slope(costs, rewards, corners[-2], place) >= _slope(
            costs, rewards, corners[-2], corners[-1]
        ):
            corners.pop()
        corners.append(place)
    return np.array(corners)


def _slope(costs: Array, rewards: Array, first: int, last: int) -> float:
    return float((rewards[last] - rewards[first]) / max(costs[last] - costs[first], 1e-12))


def best_untargeted(frame: pl.DataFrame, actions: list[str]) -> Array:
    """Places of the actions of which the best untargeted mixtures consist, by rising cost. Who picked them on the test
    users alone would pick what was lucky there."""
    weighted = frame.group_by("action").agg(
        (pl.col(name) / pl.col("propensity")).sum() / (1 / pl.col("propensity")).sum() for name in ("reward", "cost")
    )
    means = {label: (reward, cost) for label, reward, cost in weighted.iter_rows()}
    rewards, costs = np.array([means[label] for label in actions]).T
    return envelope(costs, rewards)


def gain(
    test: pl.DataFrame, group: NDArray[np.int64], actions: list[str], corners: Array, probabilities: Array
) -> dict[str, float]:
    """Gain per user over the untargeted mixture of `corners` at the same cost, with its standard error."""
    action = np.array([actions.index(label) for label in test["action"]])
    rows, weight = np.arange(len(test)), 1.0 / test["propensity"].to_numpy()
    outcomes = np.stack([test["reward"].to_numpy(), test["cost"].to_numpy()]).astype(float)
    total = np.bincount(action, weights=weight, minlength=len(actions))
    means = np.stack([np.bincount(action, weights=weight * own, minlength=len(actions)) / total for own in outcomes])
    # The means of the actions are the baseline: only differences between users are weighed.
    left = (outcomes - means[:, action]) * weight
    added = probabilities @ means.T + (probabilities[rows, action] * left).T
    reward, cost = added.mean(axis=0)
    corners = corners[np.argsort(means[1][corners], kind="stable")]
    costs, rewards = means[1][corners], means[0][corners]
    mixture = np.array([np.interp(cost, costs, row) for row in np.eye(len(actions))[corners].T])
    place = int(np.clip(np.searchsorted(costs, cost), 1, max(len(costs) - 1, 1)))
    inside = len(costs) > 1 and costs[0] < cost < costs[-1]
    slope = (rewards[place] - rewards[place - 1]) / (costs[place] - costs[place - 1]) if inside else 0.0
    influence = (probabilities - mixture) @ (means[0] - slope * means[1]) + (
        probabilities[rows, action] - mixture[action]
    ) * (left[0] - slope * left[1])
    by_group = np.bincount(group, weights=influence - influence.mean())
    error = float(np.sqrt(np.square(by_group).sum()) / len(test))
    return {"gain": float(reward - np.interp(cost, costs, rewards)), "error": error, "cost": float(cost)}


def run_log(path: Path, options: argparse.Namespace) -> list[dict]:
    frame, group = read(path)
    actions = frame.group_by("action").agg(pl.col("cost").mean()).sort("cost", "action")["action"].to_list()
    budget = BUDGET_SHARE * float(frame["cost"].mean())
    corners = best_untargeted(frame, actions)
    results = []
    for split in range(options.first_split, options.first_split + options.splits):
        tested = np.random.default_rng([7, split]).random(group.max() + 1)[group] < TEST_SHARE
        train, test = frame.filter(~tested), frame.filter(tested)
        for name in options.policies:
            start = time.perf_counter()
            decided = (POLICIES | VARIANTS)[name](train, test, actions, budget, split).at_budget(budget)
            seconds = time.perf_counter() - start
            found = gain(test, group[tested], actions, corners, decided)
            results.append({"log": path.stem, "split": split, "policy": name, "seconds": seconds, **found})
            print(json.dumps(results[-1]), flush=True)
    return results


def report(results: list[dict]) -> None:
    """Means over splits; their error counts that splits share users (it does not fall with their number)."""
    print(f"\n{'log':<18}{'policy':<22}gain over untargeted, its error, gain / error, seconds")
    pooled: dict[str, list[float]] = {}
    for log, policy in dict.fromkeys((result["log"], result["policy"]) for result in results):
        own = [result for result in results if (result["log"], result["policy"]) == (log, policy)]
        gains, errors = (np.array([result[key] for result in own]) for key in ("gain", "error"))
        # Test sets overlap by 30 % and train sets nearly wholly: what remains is at least the noise of all users.
        error = max(errors.mean() * np.sqrt(TEST_SHARE), gains.std() / np.sqrt(len(gains)))
        pooled.setdefault(policy, []).append(gains.mean() / errors.mean())
        seconds = np.mean([result["seconds"] for result in own])
        print(f"{log:<18}{policy:<22}{gains.mean():+.4f} ± {error:.4f}  {gains.mean() / error:+.1f}  {seconds:.0f} s")
    for policy, shares in pooled.items():
        print(f"pooled over logs, in standard errors of one split: {policy:<22}{np.mean(shares):+.2f}")


# Campaigns of one step where the truth is known.


@dataclass(frozen=True, eq=False)
class Users:
    """Users of a simulated campaign with the truth about them."""

    features: pl.DataFrame
    reward: Array
    """Expected reward of every action, [users, actions]."""
    chance: Array
    """Of what is rewarded, or of a payment where rewards are numbers, [users, actions]."""
    amounts: Array
    """What each action costs when it is paid, [actions]."""
    redeemed: Array
    """Chance of a payment, given what is rewarded, [users, actions]."""

    @property
    def cost(self) -> Array:
        """Expected, [users, actions]."""
        return self.chance * self.redeemed * self.amounts


def orders(users: int, draw: np.random.Generator) -> Users:
    """Categories, few-valued, skewed and irrelevant columns; who responds follows no straight line in any."""
    city = draw.choice(12, users, p=np.arange(12, 0, -1) / 78)
    tier, visits = draw.integers(1, 5, users), np.minimum(draw.poisson(2.0, users), 7)
    spend, age = draw.lognormal(3.0, 1.2, users), draw.integers(18, 80, users)
    dormant = draw.exponential(40.0, users).round()
    base = -2.6 + 0.35 * np.log1p(visits) + 0.25 * np.log(spend / 20) + np.array([0, -0.4, 0.3, 0.5])[tier - 1]
    base += np.random.default_rng(3).normal(0, 0.4, 12)[city] - 0.5 * (dormant > 60)
    # Who responds: some tiers, the middle aged, those who have been away for some weeks.
    lift = np.array([1.4, 0.1, 1.1, 0.2])[tier - 1] * np.exp(-(((age - 42) / 14.0) ** 2))
    lift += 0.7 * ((dormant > 14) & (dormant < 50)) * (visits <= 3) + 0.15
    order = sigmoid(base[:, None] + lift[:, None] * np.array([0.0, 0.55, 1.0, 1.35]))
    redeem = sigmoid(0.4 + 0.25 * np.arange(4) + 0.5 * (spend < 30)[:, None])
    features = pl.DataFrame(
        {"city": [f"c{code}" for code in city], "tier": tier, "visits": visits}
        | {"spend": spend, "age": age, "dormant": dormant}
        | {f"noise_{place}": draw.normal(size=users) for place in range(6)}
        | {"letter": [f"l{code}" for code in draw.integers(0, 20, users)]}
    )
    return Users(features, order, order, np.array([0.0, 2.0, 5.0, 10.0]), redeem)


def promotion(users: int, draw: np.random.Generator) -> Users:
    """A rare purchase, one promotion of a fixed cost, thresholds and interactions in four of seven columns."""
    first, fourth, seventh = draw.integers(0, 4, users), draw.random(users) < 0.68, draw.random(users) < 0.7
    second, third = draw.normal(30, 5, users), draw.uniform(-1.7, 1.7, users)
    fifth, sixth = draw.choice(4, users, p=[0.18, 0.37, 0.39, 0.06]), draw.integers(1, 5, users)
    base = -5.0 + 0.25 * (fifth == 2) - 0.2 * (third > 0.5)
    lift = 0.1 + 1.0 * (fourth & (third > 0)) + 0.5 * ((fifth <= 1) & (second > 32)) - 0.5 * ((first == 3) & ~fourth)
    bought = sigmoid(base[:, None] + lift[:, None] * np.array([0.0, 1.0]))
    columns = (first, second, third, 1 + fourth, 1 + fifth, sixth, 1 + seventh)
    features = pl.DataFrame({f"v{place}": column for place, column in enumerate(columns, 1)})
    return Users(features, 10 * bought, np.ones_like(bought), np.array([0.0, 0.15]), np.ones_like(bought))


def vouchers(users: int, draw: np.random.Generator) -> Users:
    """Vouchers that nearly everybody responds to, some more than others; half of the columns tell nothing."""
    age, distance = draw.integers(15, 70, users), draw.gamma(2, 1, users)
    children, school = np.minimum(draw.poisson(2.5, users), 8), draw.integers(0, 13, users)
    male, married, region = draw.random(users) < 0.46, draw.random(users) < 0.7, draw.integers(0, 3, users)
    base = -0.6 + 0.3 * male - 0.25 * (distance - 2) + 0.015 * (age - 35)
    lift = 1.0 + 0.45 * (school < 5) - 0.35 * (distance > 2.5) + 0.4 * (region == 1) + 0.02 * (35 - age)
    came = sigmoid(base[:, None] + lift[:, None] * np.array([0.0, 1.2, 1.7, 2.2, 2.5]))
    features = pl.DataFrame(
        {"age": age, "distance": distance, "children": children, "school": school, "male": male * 1.0}
        | {"married": married * 1.0, "region": [f"r{code}" for code in region]}
        | {f"noise_{place}": draw.normal(size=users) for place in range(5)}
    )
    return Users(features, came, came, np.array([0.0, 0.35, 0.9, 1.7, 2.6]), np.ones_like(came))


CAMPAIGNS = {"orders": orders, "promotion": promotion, "vouchers": vouchers}


def sigmoid(score: Array) -> Array:
    return 1 / (1 + np.exp(-score))


def simulated_users(campaign: str, users: int, seed: int) -> Users:
    found = CAMPAIGNS[campaign](users, np.random.default_rng([11, seed]))
    named = found.features.select(user=pl.int_range(users, dtype=pl.Int64), step=pl.lit(0, pl.Int64))
    return replace(found, features=pl.concat([named, found.features], how="horizontal"))


def simulated_log(campaign: str, users: int, seed: int) -> pl.DataFrame:
    """Actions are drawn evenly. A reward is its amount or nothing; a payment needs what is rewarded or is certain."""
    found = simulated_users(campaign, users, seed)
    draw, rows = np.random.default_rng([13, seed]), np.arange(users)
    action = draw.integers(0, len(found.amounts), users)
    largest = 10.0 if campaign == "promotion" else 1.0
    rewarded = draw.random(users) < found.reward[rows, action] / largest
    happened = rewarded if largest == 1 else np.ones(users, np.bool_)
    paid = happened & (draw.random(users) < found.redeemed[rows, action])
    return found.features.with_columns(
        pl.Series("action", [str(place) for place in action]),
        propensity=pl.lit(1 / len(found.amounts)),
        reward=pl.Series(largest * rewarded),
        cost=pl.Series(paid * found.amounts[action]),
    )


def run_simulated(campaign: str, users: int, options: argparse.Namespace) -> None:
    """The share of what knowing the truth earns, over no offers and over untargeted ones, at equal true cost."""
    test = simulated_users(campaign, 40_000, 10_000)
    truth = test.reward, test.cost
    actions = [str(place) for place in range(len(test.amounts))]
    budget = BUDGET_SHARE * float(truth[1].mean())
    means = [outcome.mean(axis=0) for outcome in truth]
    corners = envelope(means[1], means[0])
    shares: dict[str, list[list[float]]] = {}
    for split in range(options.first_split, options.first_split + options.splits):
        log = simulated_log(campaign, users, split)
        for name in options.policies:
            start = time.process_time()
            told = (POLICIES | VARIANTS)[name](log, test.features, actions, budget, split)
            decided = told.at_budget(budget)
            reward, cost = (float((decided * outcome).sum(axis=1).mean()) for outcome in truth)
            best = greedy(*truth).at_budget(cost)
            most = float((best * truth[0]).sum(axis=1).mean())
            plain = float(np.interp(cost, means[1][corners], means[0][corners]))
            found = [(reward - means[0][0]) / (most - means[0][0]), (reward - plain) / (most - plain)]
            shares.setdefault(name, []).append(found)
            line = f"{campaign:<10}{users:>7,} users  seed {split}  {name:<20} {found[0]:.3f} {found[1]:.3f}"
            print(f"{line}  {time.process_time() - start:.0f} processor s", flush=True)
    for name, found in shares.items():
        gains = np.mean(found, axis=0)
        line = f"{campaign:<10}{users:>7,} users  {name:<20} gain over no offers {gains[0]:.3f}"
        print(f"{line}, over untargeted ones {gains[1]:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where the logs are")
    parser.add_argument("--logs", nargs="*", default=list(LOGS), help="which of them")
    parser.add_argument("--log", type=Path, nargs="*", default=[], help="logs of your own (parquet, one step)")
    parser.add_argument("--simulated", type=int, nargs="*", default=[], metavar="USERS")
    parser.add_argument("--campaigns", nargs="*", default=["orders"], choices=list(CAMPAIGNS), help="which simulated")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--first-split", type=int, default=0)
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), choices=[*POLICIES, *VARIANTS])
    options = parser.parse_args()
    for campaign in options.campaigns:
        for users in options.simulated:
            run_simulated(campaign, users, options)
    named = [options.folder / f"{name}.parquet" for name in options.logs] if options.folder else []
    results = [result for path in (*named, *options.log) for result in run_log(path, options)]
    if results:
        report(results)


if __name__ == "__main__":
    sys.exit(main())
