"""Caps in trees: what was given counts along every branch, as exact induction over states with counters has it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redenvelope.campaign.records import Rule
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.log import ActionCatalogue
from redenvelope.planning.planner import ModelPrice, TreePlanner
from redenvelope.policies.eligibility_state import EligibilityState as Standing
from redenvelope.policies.rules import RuleConstraint
from tests.planning.exact import World

LABELS = ("a", "b", "c", "d")
STEPS = 4


def constraint_of(rules: tuple[Rule, ...]) -> RuleConstraint:
    return RuleConstraint(rules, Encoder((), (), 0, STEPS), ActionCatalogue(LABELS, False))


def allows(rules: tuple[Rule, ...], past: tuple[int, ...], action: int) -> bool:
    """By the words of the rules."""
    for rule in rules:
        if LABELS[action] not in rule.actions:
            continue
        window = rule.cooldown + 1 if rule.cooldown is not None else rule.within
        recent = past if window is None else past[max(0, len(past) - window + 1) :]
        if sum(LABELS[given_] in rule.actions for given_ in recent) >= (1 if rule.cooldown else rule.at_most):
            return False
    return True


def recursion(
    world: World, rules: tuple[Rule, ...], price: float, temperature: float, explore: float
) -> Callable[[int, tuple[int, ...], int], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """q and probabilities [actions] and outcomes to go [outcomes, actions] of a state, a past and steps left."""

    @cache
    def worth(state: int, past: tuple[int, ...], left: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, to_go = np.full(world.actions, -np.inf), world.outcomes[:, state].astype(np.float64).copy()
        allowed = [action for action in range(world.actions) if allows(rules, past, action)] or [0]
        for action in range(world.actions):
            later = 0.0
            if left > 1:
                below = worth(int(world.following[state, action]), (*past, action), left - 1)
                later = value(*below[:2])
                to_go[:, action] += (below[1] * below[2]).sum(axis=1)
            if action in allowed:
                q[action] = world.outcomes[0, state, action] - price * world.outcomes[1, state, action] + later
        return q, mixed(q), to_go

    def mixed(q: np.ndarray) -> np.ndarray:
        best = np.exp((q - q.max()) / temperature)
        return (1 - explore) * best / best.sum() + explore * np.isfinite(q) / np.isfinite(q).sum()

    def value(q: np.ndarray, probabilities: np.ndarray) -> float:
        soft = q.max() + temperature * np.log(np.exp((q - q.max()) / temperature).sum())
        return float((1 - explore) * soft + explore * q[np.isfinite(q)].mean())

    return worth


groups = st.lists(st.sampled_from(LABELS), min_size=1, max_size=4, unique=True).map(tuple)
caps = st.builds(
    lambda actions, most, within: Rule(actions, at_most=most, within=within),
    groups,
    st.integers(0, 3),
    st.sampled_from([None, 2, 3, 4]),
) | st.builds(lambda actions, wait: Rule(actions, cooldown=wait), groups, st.integers(1, 3))


@pytest.fixture(scope="module")
def world(table_world) -> tuple[object, World]:
    return table_world(5)


@settings(max_examples=25, deadline=None)
@given(
    rules=st.lists(caps, min_size=1, max_size=3).map(tuple),
    explore=st.sampled_from([0.0, 0.1]),
    past=st.lists(st.integers(0, 3), max_size=2).map(tuple),
)
def test_trees_with_caps_equal_exact_induction_over_states_with_counters(world, rules, explore, past) -> None:
    model, known = world
    constraint = constraint_of(rules)
    states, left = np.arange(known.states, dtype=np.float32)[:, None], STEPS - len(past)
    starts = np.arange(known.states + 1) * len(past)
    counters = constraint.counters_after(starts, np.tile(np.array(past, dtype=int), known.states))
    eligibility = Standing(np.ones((known.states, len(LABELS)), dtype=bool), counters)
    planner = TreePlanner(model, STEPS, 0.3, STEPS, constraint=constraint, explore=explore)
    found = planner.values(states, left, [0.4], eligibility)
    exact = recursion(known, rules, 0.4, 0.3, explore)
    for state in range(known.states):
        q, probabilities, to_go = exact(state, past, left)
        np.testing.assert_allclose(found.q[state, 0], q, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found.probabilities[state, 0], probabilities, atol=1e-4)
        np.testing.assert_allclose(found.to_go[:, state, 0], to_go, rtol=1e-4, atol=1e-4)


def test_policies_that_are_followed_keep_the_caps(world) -> None:
    # Trees of one step, planned anew at every step: the counters move along the way.
    model, known = world
    rules = (Rule(("c", "d"), at_most=1), Rule(("b",), cooldown=1))
    constraint = constraint_of(rules)
    states = np.arange(known.states, dtype=np.float32)[:, None]
    planner = TreePlanner(model, 1, 0.0, STEPS, constraint=constraint)
    found = ModelPrice(planner, states)([[0.0]])
    total = np.zeros(2)
    for state in range(known.states):
        now, past = state, ()
        for _ in range(STEPS):
            allowed = [action for action in range(known.actions) if allows(rules, past, action)]
            action = max(allowed, key=lambda choice: known.outcomes[0, now, choice])
            total += known.outcomes[:, now, action]
            now, past = int(known.following[now, action]), (*past, action)
    np.testing.assert_allclose(found[:, 0], total / known.states, rtol=1e-5)


def test_counters_are_read_off_a_log() -> None:
    rng = np.random.default_rng(0)
    rules = (Rule(("b", "c"), at_most=2), Rule(("c",), at_most=1, within=3), Rule(("d",), cooldown=1))
    constraint = constraint_of(rules)
    lengths = rng.integers(1, 5, size=50)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    action = rng.integers(0, 4, size=starts[-1])
    found = constraint.counters(starts, action)
    memory = constraint.remembered(None, found)
    allowed = constraint.eligible(np.zeros((len(action), 1), np.float32), np.ones(len(action), int), memory)
    for user, first in enumerate(starts[:-1]):
        for row in range(first, starts[user + 1]):
            past = tuple(action[first:row].tolist())
            assert allowed[row].tolist() == [allows(rules, past, choice) for choice in range(4)]
