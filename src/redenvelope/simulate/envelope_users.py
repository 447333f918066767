"""The users of the envelopes campaign: what is seen of them, and the hidden traits that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.simulate.envelope_parameters import CHANNELS, CITIES, EnvelopeParameters, Response

__all__ = ["EnvelopeUsers", "draw_users"]

FloatArray = NDArray[np.float64]

_CITY_SHARES = (0.24, 0.18, 0.15, 0.13, 0.11, 0.09, 0.06, 0.04)
_CHANNEL_SHARES = (0.55, 0.3, 0.15)
_NEVER_BOUGHT_SHARE = 0.15


@dataclass(frozen=True, eq=False)
class EnvelopeUsers:
    """Users and everything about them that does not change. Traits are functions of the features alone."""

    features: pl.DataFrame
    """The static features, a row a user."""
    activity: FloatArray
    """Logit of being active before habit, fatigue and envelopes, [users]."""
    lifts: FloatArray
    """What each envelope adds to that logit for a rested user, [users, actions]."""
    consumption: FloatArray
    """Probability that an active user consumes the envelope, [users]."""
    logging_tilts: FloatArray
    """The logging policy's preference for dear envelopes, [users]."""
    habits: NDArray[np.int64]
    """Habit at the first step, [users]."""
    fatigues: NDArray[np.int64]
    """Fatigue at the first step, [users]."""

    def __len__(self) -> int:
        return len(self.activity)

    def take(self, rows: NDArray[np.intp] | slice) -> EnvelopeUsers:
        """Some of the users, in the order asked for."""
        return EnvelopeUsers(
            self.features[rows],
            self.activity[rows],
            self.lifts[rows],
            self.consumption[rows],
            self.logging_tilts[rows],
            self.habits[rows],
            self.fatigues[rows],
        )


def draw_users(
    parameters: EnvelopeParameters, users: int, generator: np.random.Generator, noise_features: int = 0
) -> EnvelopeUsers:
    """New users, with `noise_features` more columns that mean nothing."""
    features = _draw_features(users, generator)
    curves = _curves(features)
    traits = {
        name: _follow(getattr(parameters, name), curves, features)
        for name in ("activity", "strength", "appetite", "consumption")
    }
    amounts = np.array(parameters.amounts, dtype=np.float64)
    doses = 1 - np.exp(-amounts / np.exp(traits["appetite"])[:, None])
    lifts = parameters.greatest_lift * _sigmoid(traits["strength"])[:, None] * doses
    channel = _codes(features["channel"], CHANNELS)
    tilts = (
        parameters.logging_tilt
        + parameters.logging_tenure * curves["tenure"]
        + np.array(parameters.logging_channels)[channel]
    )
    # Busy users come with a habit; nobody comes tired of more than one earlier envelope.
    habits = generator.binomial(4, 0.1 + 0.5 * curves["sessions"])
    fatigues = generator.binomial(1, 0.3, size=users)
    # A stream of its own: the same seed gives the same users and events, with noise or without.
    (spare,) = generator.spawn(1)
    noise = {f"noise_{number}": spare.standard_normal(users) for number in range(noise_features)}
    return EnvelopeUsers(
        features=features.with_columns(pl.Series(name, values) for name, values in noise.items()),
        activity=traits["activity"],
        lifts=lifts,
        consumption=_sigmoid(traits["consumption"]),
        logging_tilts=tilts,
        habits=habits,
        fatigues=fatigues,
    )


def _draw_features(users: int, generator: np.random.Generator) -> pl.DataFrame:
    tenure = generator.gamma(1.2, 350.0, size=users).round()
    days_since_purchase = generator.exponential(45.0, size=users).round(1)
    never_bought = generator.random(users) < _NEVER_BOUGHT_SHARE
    sessions = generator.poisson(generator.gamma(1.5, 4.0, size=users))
    return pl.DataFrame(
        {
            "age": generator.normal(38.0, 13.0, size=users).clip(18, 85).astype(np.int64),
            "tenure_days": tenure.astype(np.int64),
            "sessions": sessions,
            "balance": generator.lognormal(4.0, 1.1, size=users).round(2),
            "days_since_purchase": days_since_purchase,
            "screen_size": generator.normal(5.9, 0.5, size=users).round(1),
            "lucky_number": generator.integers(100, size=users),
            "city": np.array(CITIES)[generator.choice(len(CITIES), size=users, p=_CITY_SHARES)],
            "channel": np.array(CHANNELS)[generator.choice(len(CHANNELS), size=users, p=_CHANNEL_SHARES)],
            "subscriber": generator.random(users) < _sigmoid(tenure / 500 - 1.5),
        }
    ).with_columns(pl.when(pl.Series(never_bought)).then(None).otherwise("days_since_purchase").name.keep())


def _curves(features: pl.DataFrame) -> dict[str, FloatArray]:
    """The curve of each feature that a Response weighs, each [users] and of a size near one."""
    column = {
        name: features[name].cast(pl.Float64).fill_null(np.inf).to_numpy()
        for name in ("age", "tenure_days", "sessions", "balance", "days_since_purchase", "subscriber")
    }
    app = (features["channel"] == "app").to_numpy()
    return {
        "age": np.exp(-(((column["age"] - 32) / 14) ** 2)),
        "tenure": np.log1p(column["tenure_days"] / 100) - 1.4,
        "sessions": 1 - np.exp(-column["sessions"] / 6),
        "balance": np.tanh((np.log(column["balance"] + 1) - 4.0) / 0.9),
        "recency": np.exp(-column["days_since_purchase"] / 30),
        "never_bought": np.isinf(column["days_since_purchase"]).astype(np.float64),
        "subscriber": column["subscriber"],
        "young_in_app": ((column["age"] < 30) & app).astype(np.float64),
    }


def _follow(response: Response, curves: dict[str, FloatArray], features: pl.DataFrame) -> FloatArray:
    """The trait of each user, [users]."""
    trait = np.full(features.height, response.intercept)
    for name, curve in curves.items():
        trait += getattr(response, name) * curve
    trait += np.array(response.cities)[_codes(features["city"], CITIES)]
    trait += np.array(response.channels)[_codes(features["channel"], CHANNELS)]
    return trait


def _codes(labels: pl.Series, known: tuple[str, ...]) -> NDArray[np.intp]:
    return labels.cast(pl.Enum(known)).to_physical().to_numpy().astype(np.intp)


def _sigmoid(logits: FloatArray) -> FloatArray:
    return 1 / (1 + np.exp(-logits))
