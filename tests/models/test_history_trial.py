"""Held-out users tell whether what happened before matters."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from redenvelope import Encoder, log_from_frame, two_step
from redenvelope.models.dataset import Examples
from redenvelope.models.fit import HistoryChoice, _helps, try_history
from redenvelope.models.training import NeuralSettings

STEPS, USERS = 4, 2_500


def choice(carried: float, seed: int, told: bool = False) -> HistoryChoice:
    """Envelopes received so far lower the response by so much each; `told` by a column of the table as well."""
    generator = np.random.default_rng(seed)
    kind = generator.normal(size=USERS)
    received = np.zeros(USERS)
    frames = []
    for step in range(STEPS):
        action = generator.integers(0, 3, USERS)
        chance = 1 / (1 + np.exp(-(0.4 * kind + 0.6 * action - carried * received)))
        reward = (generator.random(USERS) < chance).astype(float)
        columns = {
            "user": np.arange(USERS),
            "step": np.full(USERS, step),
            "action": action.astype(str),
            "propensity": np.full(USERS, 1 / 3),
            "reward": reward,
            "cost": reward * action,
            "kind": kind,
        }
        frames.append(pl.DataFrame(columns | ({"received": received} if told else {})))
        received = received + (action > 0)
    log = log_from_frame(pl.concat(frames))
    examples = Examples.from_log(log, Encoder.fit(log).with_history(log))
    return try_history(examples, NeuralSettings(), seed)


def test_a_past_that_matters_is_told() -> None:
    found = choice(0.8, 0)
    assert found.included and found.gains["outcome"] > 4
    assert "matters beyond the state" in found.reason


@pytest.mark.parametrize("seed", [1, 2])
def test_without_carry_over_nothing_is_told(seed: int) -> None:
    found = choice(0.0, seed)
    assert not found.included and "does not help" in found.reason


def test_a_column_that_tells_it_is_enough() -> None:
    assert not choice(0.8, 3, told=True).included


def test_a_next_state_that_is_certain_is_no_reason_to_tell_the_past() -> None:
    # Where the state says what comes next, two networks differ by hundreds of standard errors of nothing.
    log = log_from_frame(two_step().log(3_000, seed=0))
    found = try_history(Examples.from_log(log, Encoder.fit(log).with_history(log)), NeuralSettings(), 0)
    assert not found.included
    assert found.gains["transition"] == 0


@pytest.mark.parametrize(
    ("outcome", "transition", "helps"),
    [(4.0, 0.0, True), (8.0, -2.5, True), (2.0, 0.0, False), (0.0, 5.0, True), (-3.0, 5.0, False), (4.0, -6.0, False)],
)
def test_outcomes_decide_first(outcome: float, transition: float, helps: bool) -> None:
    assert _helps(outcome, transition) == helps
