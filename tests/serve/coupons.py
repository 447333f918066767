"""A small campaign of coupons whose redemption can be turned up and down: what the log said, and another world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = ["LABELS", "STEPS", "Coupons"]

LABELS = ("nothing", "1 €", "3 €")
FACES = np.array([0.0, 1.0, 3.0])
STEPS = 2


@dataclass(frozen=True)
class Coupons:
    """Users with a taste for coupons; whoever is active redeems, more or less often than in the log."""

    redemption: float = 0.5

    def users(self, count: int, seed: int) -> pl.DataFrame:
        chance = np.random.default_rng([seed, 1])
        return pl.DataFrame(
            {
                "user": np.arange(count),
                "taste": chance.random(count),
                "city": chance.choice(["Graz", "Lyon"], count),
            }
        )

    def active(self, taste: NDArray[Any], lyon: NDArray[Any], action: NDArray[Any], step: int) -> NDArray[np.float64]:
        """Probability of being active, any shape."""
        lift = 2.2 * taste * np.sqrt(FACES[action] / 3)
        return np.asarray(1 / (1 + np.exp(1.4 - lift - 0.4 * lyon - 0.2 * step)))

    def happen(
        self, row: dict[str, Any], action: int, step: int, chance: np.random.Generator, factor: float = 1.0
    ) -> tuple[float, int]:
        """Reward, and the amount in cents, of one decision; `factor` turns redemption up or down."""
        active = chance.random() < self.active(row["taste"], row["city"] == "Lyon", np.array(action), step)
        redeemed = active and chance.random() < self.redemption * factor
        return float(active), int(100 * FACES[action]) if redeemed else 0

    def log(self, count: int, seed: int) -> pl.DataFrame:
        """What a random assignment did to users."""
        chance = np.random.default_rng([seed, 2])
        users = self.users(count, seed)
        frames = []
        for step in range(STEPS):
            action = chance.integers(0, len(LABELS), count)
            rates = self.active(users["taste"].to_numpy(), (users["city"] == "Lyon").to_numpy(), action, step)
            active = chance.random(count) < rates
            redeemed = active & (chance.random(count) < self.redemption)
            frames.append(
                users.with_columns(
                    pl.lit(step).alias("step"),
                    pl.Series("action", LABELS).gather(action),
                    pl.lit(1 / len(LABELS)).alias("propensity"),
                    pl.Series("reward", active.astype(float)),
                    pl.Series("cost", redeemed * FACES[action]),
                )
            )
        return pl.concat(frames).sort("user", "step")
