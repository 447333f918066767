"""Learned values decide for one user as they do for many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.planning.q_values import LearnedValues
from redenvelope.planning.single_user import SingleLearned
from tests.random_networks import MIXED, WIDE, random_states, random_values

USERS, STEPS = 12, 10
ELIGIBLE = np.array([True, False, True, True, False, True])


def check(
    learned: LearnedValues, single: SingleLearned, prices: list[float], left: int, mask: np.ndarray | None
) -> None:
    """Values are of the order of ten, rounded to float32; probabilities are off by that over the temperature, 0.5."""
    states = random_states(learned.layout, USERS, STEPS - left, seed=left)
    many = learned.values(states, left, prices, None if mask is None else np.tile(mask, (USERS, 1)))
    now = learned.outcomes(states)
    for user, state in enumerate(states):
        found = single.decide(state, left, mask)
        assert np.allclose(found.values.q[0], many.q[user], atol=2e-5)
        assert np.abs(found.values.probabilities[0] - many.probabilities[user]).max() < 1e-5
        assert np.abs(found.values.to_go[:, 0] - many.to_go[:, user]).max() < 2e-5
        assert np.abs(found.outcomes - now[:, user]).max() < 1e-5


@pytest.mark.parametrize("layout", [WIDE, MIXED], ids=["wide", "mixed"])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_decisions_are_those_of_many(layout: StateLayout, temperature: float) -> None:
    learned = random_values(layout, temperature)
    for prices in ([0.3], [np.inf, 0.2], [0.0]):
        single = SingleLearned.of(learned, prices)
        for left in (1, 2, 10):
            for mask in (None, ELIGIBLE):
                check(learned, single, prices, left, mask)


def test_the_guard_rules_out_and_gives_way() -> None:
    strict = random_values(temperature=0.5, least_chance=0.2)
    states = random_states(WIDE, 50, 3)
    single = SingleLearned.of(strict, [0.3])
    barred = np.array([np.isneginf(single.decide(state, 7).values.q[0, 0]) for state in states])
    assert (barred == np.isneginf(strict.values(states, 7, [0.3]).q[:, 0])).all()
    assert barred.any() and not barred.all(axis=1).any()
    none = replace(strict, least_chance=0.99)
    assert np.isfinite(SingleLearned.of(none, [0.3]).decide(states[0], 7).values.q).all()


def test_a_campaign_of_one_step_and_other_prices() -> None:
    learned = replace(random_values(), steps=1, futures=None)
    single = SingleLearned.of(learned, [0.3]).at([[0.7], [0.1]])
    state = random_states(WIDE, 1, 0)
    many = learned.values(state, 1, [0.7, 0.1])
    assert np.allclose(single.decide(state[0], 1).values.q, many.q, atol=1e-5)
    longer = random_values()
    check(longer, SingleLearned.of(longer, [0.3]).at([0.7, 0.1]), [0.7, 0.1], 6, None)
    for wrong in ([[0.1, 0.2]], [-1.0]):
        with pytest.raises(UsageError):
            single.at(wrong)
    with pytest.raises(UsageError, match="steps left"):
        single.decide(state[0], 2)
