"""Random variants of the envelopes campaign, for tests and benchmarks."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from redenvelope.simulate.dynamics import CHANNELS, CITIES, EnvelopeParameters, Response

_WEIGHTS = [field.name for field in fields(Response) if field.default == 0.0]


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
