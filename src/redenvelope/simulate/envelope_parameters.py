"""Every number behind the envelopes campaign, and random variants nobody tuned to."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from redenvelope.errors import ProblemError

__all__ = ["CHANNELS", "CITIES", "EnvelopeParameters", "Response", "random_parameters"]

CITIES = ("Arden", "Brixby", "Corvale", "Dunmore", "Eastwick", "Farrow", "Glenholm", "Harwich")
CHANNELS = ("app", "web", "partner")


@dataclass(frozen=True)
class Response:
    """How one hidden trait of a user follows from the features; each weight multiplies a curve of one."""

    intercept: float
    age: float = 0.0
    """Times a hump around the early thirties."""
    tenure: float = 0.0
    """Times a logarithm: the first months matter most."""
    sessions: float = 0.0
    """Times a curve that saturates at a dozen sessions."""
    balance: float = 0.0
    """Times a soft step between poor and rich balances."""
    recency: float = 0.0
    """Times a decay since the last purchase; nothing for users who never bought."""
    never_bought: float = 0.0
    subscriber: float = 0.0
    young_in_app: float = 0.0
    """An interaction: under thirty and on the app channel."""
    cities: tuple[float, ...] = (0.0,) * len(CITIES)
    channels: tuple[float, ...] = (0.0,) * len(CHANNELS)


_WEIGHTS = [field.name for field in fields(Response) if field.default == 0.0]


@dataclass(frozen=True)
class EnvelopeParameters:
    """The truth of one envelopes campaign. Effects on activity are in logits."""

    amounts: tuple[int, ...] = (0, 1, 2, 3, 5, 8)
    steps: int = 5

    activity: Response = Response(
        intercept=-2.4, age=0.5, tenure=0.25, sessions=0.8, balance=0.2, recency=0.6, never_bought=-0.3,
        subscriber=0.4, young_in_app=0.3, cities=(0.3, 0.1, 0.0, -0.2, 0.2, -0.3, 0.0, -0.1),
        channels=(0.2, 0.0, -0.3),
    )  # fmt: skip
    """Logit of being active without envelope, habit or fatigue."""
    strength: Response = Response(
        intercept=-0.3, age=-0.9, tenure=-0.5, sessions=0.6, balance=-1.4, recency=0.9, never_bought=0.7,
        subscriber=-0.6, young_in_app=1.6, cities=(0.5, -0.6, 0.2, 0.8, -0.4, 0.0, -0.8, 0.3),
        channels=(0.3, 0.0, -0.5),
    )  # fmt: skip
    """Logit of the share of `greatest_lift` that an envelope without limit would bring."""
    appetite: Response = Response(
        intercept=1.2, age=-0.3, tenure=0.2, sessions=-0.6, balance=0.9, recency=-0.4,
        subscriber=-0.3, young_in_app=-0.5, cities=(0.2, 0.0, -0.3, 0.3, 0.1, -0.2, 0.0, -0.1),
        channels=(-0.2, 0.1, 0.3),
    )  # fmt: skip
    """Logarithm of the amount that brings 63 % of the lift: small for users whom a coin moves."""
    consumption: Response = Response(
        intercept=0.5, age=0.3, sessions=0.5, balance=-0.6, recency=0.4, never_bought=-0.5,
        subscriber=0.5, channels=(0.3, 0.0, -0.4),
    )  # fmt: skip
    """Logit of consuming the envelope once active."""

    greatest_lift: float = 3.2
    habit_effect: float = 0.55
    """On activity, a level of habit."""
    habit_rise: float = 0.75
    """Probability that an active step raises habit by one."""
    habit_fall: float = 0.45
    """Probability that an inactive step lowers habit by one."""
    fatigue_effect: float = 0.12
    """On activity, lost a level of fatigue."""
    fatigue_decay: float = 0.3
    """An envelope's lift shrinks by exp(−fatigue_decay · fatigue)."""
    used_effect: float = 0.25
    """On activity, after a consumed envelope."""
    ignored_effect: float = -0.25
    """On activity, after an envelope that was not consumed."""

    logging_tilt: float = -0.6
    """Preference of the logging policy for the dearest envelope over none, in logits."""
    logging_tenure: float = 0.8
    logging_channels: tuple[float, ...] = (0.5, 0.0, -0.5)
    logging_habit: float = 0.35
    logging_fatigue: float = -0.3
    logging_exploration: float = 0.2
    """Share of the logging policy that is uniform; over the number of actions, the least propensity."""

    def __post_init__(self) -> None:
        amounts = self.amounts
        if len(amounts) < 2 or amounts[0] < 0 or list(amounts) != sorted(set(amounts)):
            raise ProblemError(f"amounts must be two or more, rising, from 0 up; not {amounts}")
        if self.steps < 1:
            raise ProblemError(f"steps must be at least 1, not {self.steps}")
        shares = (self.habit_rise, self.habit_fall, self.logging_exploration)
        if not all(0 <= share <= 1 for share in shares):
            raise ProblemError("habit_rise, habit_fall and logging_exploration lie between 0 and 1")


def random_parameters(seed: int) -> EnvelopeParameters:
    """A campaign with the same features and other coefficients, drawn from wide ranges."""
    generator = np.random.default_rng([seed, 40_961])

    def response(intercept: float, spread: float) -> Response:
        weights = dict(zip(_WEIGHTS, generator.normal(0.0, spread, size=len(_WEIGHTS)).tolist(), strict=True))
        cities = tuple(generator.normal(0.0, spread / 2, size=len(CITIES)).tolist())
        channels = tuple(generator.normal(0.0, spread / 2, size=len(CHANNELS)).tolist())
        return replace(Response(intercept, cities=cities, channels=channels), **weights)

    def between(low: float, high: float) -> float:
        return float(generator.uniform(low, high))

    return EnvelopeParameters(
        activity=response(between(-2.6, -1.4), 0.5),
        strength=response(between(-0.8, 0.4), 1.0),
        appetite=response(between(0.5, 1.6), 0.5),
        consumption=response(between(0.0, 1.2), 0.4),
        greatest_lift=between(2.0, 4.0),
        habit_effect=between(0.25, 0.7),
        habit_rise=between(0.5, 0.9),
        habit_fall=between(0.3, 0.7),
        fatigue_effect=between(0.0, 0.2),
        fatigue_decay=between(0.1, 0.5),
        used_effect=between(0.0, 0.4),
        ignored_effect=between(-0.4, 0.0),
        logging_tilt=between(-1.0, 1.0),
        logging_tenure=between(-1.0, 1.0),
        logging_channels=tuple(generator.normal(0.0, 0.5, size=len(CHANNELS)).tolist()),
        logging_habit=between(-0.4, 0.4),
        logging_fatigue=between(-0.4, 0.2),
    )
