"""Columns that no decision could have known, made of what a log says came of it; and columns that tell much and were
known before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trials.families.laws import FloatArray, Happened, Laws, State


def leaked_columns(frame: pl.DataFrame, seed: int) -> dict[str, pl.Series]:
    """Columns known too late, by what they are, each [rows]; the frame is a log sorted by user and step."""
    generator, rows = np.random.default_rng([seed, 99]), len(frame)
    reward, cost = (frame[name].cast(pl.Float64).to_numpy() for name in ("reward", "cost"))
    noise = generator.standard_normal((2, rows))
    sums = frame.select(
        "user",
        cost=pl.col("cost").sum().over("user"),
        reward=pl.col("reward").cast(pl.Float64).sum().over("user"),
        so_far=pl.col("reward").cast(pl.Float64).cum_sum().over("user"),
        spent_so_far=pl.col("cost").cum_sum().over("user"),
        next_reward=pl.col("reward").cast(pl.Float64).shift(-1).over("user"),
        next_cost=pl.col("cost").shift(-1).over("user"),
        last=pl.col("reward").cast(pl.Float64).last().over("user"),
    )
    known = sums["user"].rank("dense").to_numpy() * 0.7548776662 % 1.0  # a number that each user brings along
    found: dict[str, Any] = {
        "the reward in text tiers": _tiers(reward, 10),
        "the reward with noise (80 % of it told)": reward + 0.5 * reward.std() * noise[0],
        "the reward with much noise (30 % told)": reward + 1.5 * reward.std() * noise[0],
        "the cost, bent: exp(−cost)": np.exp(-3 * cost / cost.max()),
        "the cost with noise": cost + 0.5 * _usual(cost) * noise[1],
        "rewards so far, this step's among them": sums["so_far"],
        "spent so far, this step's cost among it": sums["spent_so_far"] + 0.01 * generator.random(rows),
        "the next step's reward": sums["next_reward"],
        "the next step's cost": sums["next_cost"],
        "all rewards of the user in tiers, static": _tiers(sums["reward"].to_numpy(), 6),
        "all costs of the user beside what was before, static": sums["cost"] + known * _usual(sums["cost"].to_numpy()),
        "the last step's reward, static": sums["last"],
        "opened: only what was sent can be": _opened(frame, generator),
    }
    if (cost == 0).any():
        found |= {
            "redeemed, yes or no": cost > 0,
            "day of redemption, missing without": np.where(
                cost > 0, 19_000.0 + generator.integers(30, size=rows), np.nan
            ),
            "any number, missing where nothing was redeemed": np.where(cost > 0, generator.random(rows), np.nan),
        }
    return {name: pl.Series("leak", values, nan_to_null=True) for name, values in found.items()}


def honest_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """A log with columns of what came of earlier steps, which is known at every step."""
    return frame.with_columns(
        rewards_before=pl.col("reward").cast(pl.Float64).shift(1).fill_null(0.0).cum_sum().over("user"),
        spent_before=pl.col("cost").shift(1).fill_null(0.0).cum_sum().over("user"),
        last_time=pl.format("was {}", pl.col("reward").cast(pl.Float64).round(0).shift(1).over("user")).fill_null(
            "none"
        ),
    )


@dataclass(frozen=True)
class Telling:
    """A family that shows the true chance of a reward and the true mean cost of every user: no column is better."""

    laws: Laws

    def __getattr__(self, name: str) -> Any:
        return getattr(self.laws, name)

    def features(self, state: State, step: int) -> dict[str, NDArray[Any]]:
        """See Laws."""
        rewards, costs = self.laws.means(state, step)
        return {**self.laws.features(state, step), "chance": rewards.mean(axis=1), "usual_cost": costs.mean(axis=1)}

    def happen(self, state: State, step: int, action: NDArray[np.intp], generator: np.random.Generator) -> Happened:
        """See Laws."""
        return self.laws.happen(state, step, action, generator)


def spenders(users: int, steps: int, seed: int, lift: float = 0.3) -> pl.DataFrame:
    """What users spend, most of which their spending before tells: 80 % of what action and step leave of the reward."""
    generator = np.random.default_rng([seed, 98])
    trait = np.repeat(generator.normal(5.0, 2.0, size=users), steps)
    action = generator.integers(3, size=users * steps)
    spent: FloatArray = trait + lift * action + generator.standard_normal(users * steps)
    redeemed = generator.random(users * steps) < 0.4
    return pl.DataFrame(
        {
            "user": np.repeat(np.arange(users), steps),
            "step": np.tile(np.arange(steps), users),
            "action": action,
            "propensity": np.full(users * steps, 1 / 3),
            "reward": spent,
            "cost": action * redeemed * 1.0,
            "spent_last_year": trait,
        }
    )


def _tiers(values: FloatArray, tiers: int) -> list[str]:
    """Texts in no order that the values have."""
    edges = np.unique(np.quantile(values, np.arange(1, tiers) / tiers))
    return [f"tier {number * 7 % 11}" for number in np.searchsorted(edges, values, side="left")]


def _usual(values: FloatArray) -> float:
    """A spread that a handful of users does not decide."""
    positive = values[values > 0]
    return float(np.quantile(positive, 0.75)) if len(positive) else 1.0


def _opened(frame: pl.DataFrame, generator: np.random.Generator) -> NDArray[np.str_]:
    """Whether a message was opened, which takes one: the cheapest action sends none."""
    means = frame.group_by("action").agg(pl.col("cost").mean()).sort("cost", "action")
    sent = (frame["action"] != means["action"][0]).to_numpy()
    return np.where(sent & (generator.random(len(frame)) < 0.6), "yes", "no")
