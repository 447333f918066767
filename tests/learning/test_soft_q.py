"""Learned values against exact induction on finite problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope.errors import ModelError, UsageError
from redenvelope.finite.problem import FiniteProblem, backward_induction
from redenvelope.learning.backward import LearningSettings
from redenvelope.learning.soft_q import SoftQ, all_prices
from redenvelope.planning.q_values import LearnedValues
from redenvelope.simulate.finite import random_problem
from tests.learning.conftest import TABLE, World, make_world, prepared

DUALS = np.array([0.0, 0.4, 1.5])


def errors(world: World, values: LearnedValues, duals: np.ndarray, temperature: float) -> np.ndarray:
    """Distance of learned from exact action values in every state of the log, [found, duals, actions]."""
    states, step, state = world.every_state()
    learned = values.values(states, world.problem.steps - step, duals).q
    exact = backward_induction(world.problem, duals, temperature).action_values[:, step, state].swapaxes(0, 1)
    return np.abs(learned - exact)[np.isfinite(exact)]


def one_state(actions: int, steps: int = 2) -> FiniteProblem:
    """Nothing ever changes, and no action earns anything."""
    return FiniteProblem(
        rewards=np.zeros((1, actions)),
        costs=np.arange(1.0, actions + 1)[None],
        transitions=np.ones((1, actions, 1)),
        initial=np.ones(1),
        steps=steps,
    )


# Nothing is random in these problems but which actions were logged: what is left is the error of a few
# hundred steps of training, well below 0.05 where action values have a standard deviation of two to three.
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
def test_values_equal_exact_soft_and_hard_values(seed: int) -> None:
    # Users start everywhere alike: what hardly any user was in cannot be learned, and would only blur the bound.
    problem = replace(random_problem(seed, states=5, steps=3, deterministic=True), initial=np.full(5, 0.2))
    world = make_world(problem, users=2_000, seed=seed)
    learner = prepared(world)
    for temperature in (0.0, 0.3):
        values = learner.learn(DUALS, temperature)
        assert errors(world, values, DUALS, temperature).max() < 0.05
        assert (values.report.bellman_error < 0.05).all()


@pytest.fixture(scope="module")
def noisy() -> World:
    """Random transitions, users who leave, forbidden actions, noisy outcomes."""
    return make_world(
        random_problem(5, states=4, actions=3, steps=3, leaving=0.2, ineligible=0.3), 12_000, 0, variance=0.1
    )


@pytest.fixture(scope="module")
def noisy_learner(noisy: World) -> SoftQ:
    return prepared(noisy)


# A value's error is the mean of what 12,000 / 12 rows a state and action say: a standard deviation of about
# 1.5 / sqrt(1000) = 0.05 a step, over two steps that are followed; the mean of its absolute value is below that.
def test_values_with_leaving_users_and_masks_are_within_the_noise(noisy: World, noisy_learner: SoftQ) -> None:
    values = noisy_learner.learn(DUALS)
    assert errors(noisy, values, DUALS, 0.0).mean() < 0.08


def test_masks_matter_for_the_future(noisy: World, noisy_learner: SoftQ) -> None:
    unmasked = replace(noisy_learner, eligible=np.ones_like(noisy_learner.eligible))
    assert errors(noisy, unmasked.learn(DUALS), DUALS, 0.0).mean() > 0.12


def test_rows_whose_successor_is_missing_teach_nothing_rather_than_an_end() -> None:
    world = make_world(random_problem(1, states=5, steps=3, deterministic=True), users=2_000, seed=1)
    gaps = world.examples.continues & (np.random.default_rng(0).random(len(world.examples)) < 0.7)
    broken = replace(world, examples=replace(world.examples, continues=gaps))
    assert errors(broken, prepared(broken).learn(DUALS), DUALS, 0.0).max() < 0.05


def test_double_estimator_undoes_the_flattery_of_a_maximum() -> None:
    """Eight equal actions, pure noise: the truth is 0, a plain maximum over noisy means is not."""
    plain, double = [], []
    problem = one_state(8)
    short = {"immediate": replace(TABLE.immediate, steps=150), "future": replace(TABLE.future, steps=100)}
    for seed in range(3):
        world = make_world(problem, 600, seed, variance=1.0)
        for folds, found in ((1, plain), (2, double)):
            values = prepared(world, folds=folds, **short).learn([0.0])
            to_go = (
                values.values(world.first_states()[:1], 2, [0.0]).to_go[0]
                - values.values(world.first_states()[:1], 1, [0.0]).to_go[0]
            )
            found.append(to_go.mean())
    # 540 rows, 67 an action: the greatest of eight means of standard error 0.12 is 0.17 on average.
    assert np.mean(plain) > 0.12
    assert abs(np.mean(double)) < 0.08


def test_guard_leaves_out_what_the_log_hardly_contains() -> None:
    problem = one_state(3)
    behaviour = np.array([[0.5, 0.498, 0.002]])
    world = make_world(problem, 3_000, 0, variance=0.01, behaviour=behaviour)
    # The few rows of the rare action were lucky beyond reason.
    outcomes = world.examples.outcomes.copy()
    outcomes[0, world.examples.action == 2] = 50.0
    lucky = replace(world, examples=replace(world.examples, outcomes=outcomes))
    for least, taken in ((0.0, 1.0), (0.02, 0.0)):
        values = prepared(lucky, least_chance=least).learn([0.0])
        first = values.values(lucky.first_states()[:1], 2, [0.0])
        assert first.probabilities[0, 0, 2] == taken
        assert (values.report.excluded[2] == 1.0) == (least > 0)
        assert bool(values.report.notes) == (least > 0)
        assert (first.to_go[0, 0, 0, 0] > 10) == (least == 0.0)


def test_divergence_is_reported_in_words() -> None:
    world = make_world(random_problem(1, states=5, steps=3, deterministic=True), users=500, seed=1)
    wild = replace(TABLE.future, learning_rate=1e4, patience=2)
    with pytest.raises(ModelError, match="learning diverged at step 2 of the campaign"):
        prepared(world, future=wild).learn([0.5])


def test_same_seed_same_values_other_seed_others() -> None:
    world = make_world(random_problem(2, states=5, steps=3), users=400, seed=1)
    states = world.first_states()
    found = [prepared(world, seed).learn([0.5]).values(states, 3, [0.5]).to_go for seed in (0, 0, 1)]
    assert (found[0] == found[1]).all()
    assert not (found[0] == found[2]).all()


def test_a_campaign_of_one_step_has_no_future() -> None:
    world = make_world(random_problem(3, states=4, actions=3, steps=1), users=2_000, seed=0)
    values = prepared(world).learn(DUALS, 0.2)
    assert values.futures is None
    assert errors(world, values, DUALS, 0.2).max() < 0.05


def test_progress_and_wrong_arguments(noisy: World) -> None:
    told: list[tuple[int, int]] = []
    short = replace(TABLE, immediate=replace(TABLE.immediate, steps=1), future=replace(TABLE.future, steps=1))
    learner = SoftQ.prepare(noisy.examples, short, progress=lambda done, of: told.append((done, of)))
    values = learner.learn([0.5, 1.0], progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    with pytest.raises(UsageError, match=r"learned for duals from 0\.5 to 1, not for 2"):
        values.values(noisy.first_states(), 3, [2.0])
    for wrong in ({"prices": [-1.0]}, {"prices": [1.0], "temperature": -1.0}, {"prices": [1.0], "warm": values}):
        with pytest.raises(UsageError):
            learner.learn(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no eligible action"):
        SoftQ.prepare(noisy.examples, short, eligible=np.zeros((len(noisy.examples), 3), bool))
    with pytest.raises(UsageError, match="knots"):
        all_prices(1.0, 1)
    for bad in ({"folds": 0}, {"least_chance": 1.0}, {"discount": 0.0}):
        with pytest.raises(UsageError):
            LearningSettings(**bad)  # type: ignore[arg-type]


def test_all_prices_run_from_zero_to_infinity() -> None:
    duals = all_prices(0.5, 5)
    assert duals[0] == 0 and np.isinf(duals[-1])
    assert np.allclose(np.sqrt(duals[:-1] / (duals[:-1] + 0.5)), [0, 0.25, 0.5, 0.75])
