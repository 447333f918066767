from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from redenvelope import ModelError
from redenvelope.models.dataset import Examples
from redenvelope.models.fit import NeuralFit, fit_neural, row_losses, trial_losses, weighted
from redenvelope.models.neural_model import NeuralModel
from redenvelope.models.targets import NumberCost, NumberReward, RewardedCost
from redenvelope.models.training import NeuralSettings, new_task, outcome_loss

Draw = Callable[[int, int], Examples]


def same(one: NeuralModel, other: NeuralModel, tolerance: float = 0.0) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.allclose(first, second, rtol=0, atol=tolerance) for first, second in pairs)


def test_learns_a_logistic_truth(learned: NeuralFit, world, draw: Draw) -> None:
    states = draw(2_000, 7).states
    rewards, costs = learned.model.predict(states)
    # 16,000 rows and about 60 effective parameters leave an error of about ½·√(60/16000) = 0.03 in a chance.
    assert np.sqrt(np.mean((rewards - world.reward(states)) ** 2)) < 0.035
    assert abs((rewards - world.reward(states)).mean()) < 0.015
    error = (costs - world.cost(states)) / np.maximum([0, 1, 2, 4], 1)
    assert np.sqrt(np.mean(error**2)) < 0.035
    assert (costs[:, 0] == 0).all()
    assert isinstance(learned.model.targets.costs[0], RewardedCost)


def test_learns_the_transitions(learned: NeuralFit, world, draw: Draw) -> None:
    examples = draw(2_000, 8)
    states = examples.states[examples.continues]  # nothing follows the last step, and nothing is learned of it
    followed = np.asarray(jax.jit(NeuralModel.successors)(learned.model, states))
    for action in range(4):
        expected = world.next_tail(states, np.full(len(states), action))
        # As above; the number's noise of 0.3 leaves 0.3·√(60/11000) = 0.02.
        assert np.sqrt(np.mean((followed[:, action, 3:] - expected) ** 2)) < 0.04


def test_learns_a_linear_truth_of_numbers(draw: Draw, small: NeuralSettings) -> None:
    examples = draw(3_000, 2)
    generator = np.random.default_rng(5)
    effect = np.array([0.0, 2.0, 3.0, 7.0])
    mean = 10 + 3 * examples.states[:, 1] + effect[examples.action] * (1 + 0.5 * examples.states[:, 4])
    price = 1 + 0.5 * examples.action + 0.2 * examples.states[:, 1]
    reward = mean + generator.normal(size=len(mean))
    examples = replace(examples, outcomes=np.stack([reward, price + 0.1 * generator.normal(size=len(mean))]))
    fitted = fit_neural(examples, replace(small, members=1), seed=0)
    assert isinstance(fitted.model.targets.reward, NumberReward)
    assert isinstance(fitted.model.targets.costs[0], NumberCost)
    rewards, costs = fitted.model.predict(examples.states)
    taken = np.arange(len(mean)), examples.action
    # Noise of 1 over 8,000 rows and about 60 parameters: √(60/8000) = 0.09; twice that. The cost's is a tenth,
    # and its own spread of 0.5 sets how well a finite training resolves it.
    assert np.sqrt(np.mean((rewards[taken] - mean) ** 2)) < 0.18
    assert np.sqrt(np.mean((costs[taken] - price) ** 2)) < 0.05


@pytest.fixture(scope="module")
def few(draw: Draw, small: NeuralSettings) -> NeuralFit:
    """A model of 600 users."""
    return fit_neural(draw(600, 3), small, seed=4)


def test_the_same_seed_gives_the_same_model_and_progress_is_told(
    draw: Draw, small: NeuralSettings, few: NeuralFit
) -> None:
    examples = draw(600, 3)
    told: list[tuple[int, int]] = []
    again = fit_neural(examples, small, seed=4, progress=lambda *done: told.append(done))
    # Half of the 15 epochs of the settings: the log is small.
    assert told == [(epoch, 7) for epoch in range(1, again.epochs + 1)]
    assert same(few.model, again.model)
    assert not same(few.model, fit_neural(examples, small, seed=5).model)


def test_members_learn_in_company_what_they_learn_alone(draw: Draw, small: NeuralSettings, few: NeuralFit) -> None:
    task = new_task(draw(600, 3), small, seed=4)

    def learned(members: int) -> NeuralModel:
        untrained = replace(few.model.architecture, members=members).networks(4, task.starts, task.pieces)["outcome"]
        trained = task.train({"outcome": untrained}, outcome_loss, [(4, member) for member in range(members)])
        architecture = replace(few.model.architecture, members=members)
        return replace(few.model, outcome=trained.networks["outcome"], architecture=architecture)

    together, alone, states = learned(2), learned(1), task.examples.states[:200]
    first, second = (together.of_member(member).predict(states)[0] for member in (0, 1))
    # The same numbers in another order of summation: rounding grows over some 90 steps of training.
    np.testing.assert_allclose(first, alone.predict(states)[0], atol=2e-3)
    assert np.abs(first - second).mean() > 2e-3


def test_a_memory_map_in_chunks_teaches_the_same(
    draw: Draw, small: NeuralSettings, few: NeuralFit, tmp_path: Path
) -> None:
    examples = draw(600, 3)
    np.save(tmp_path / "states.npy", examples.states)
    mapped = replace(examples, states=np.load(tmp_path / "states.npy", mmap_mode="r"))
    chunked = replace(small, training=replace(small.training, chunk_rows=540))
    models = [fit_neural(source, chunked, seed=4).model for source in (examples, mapped)]
    assert same(*models)
    rewards, _ = models[0].predict(examples.states)
    whole, _ = few.model.predict(examples.states)
    # Another order of rows, the same truth: as far apart as two seeds would be.
    assert np.abs(rewards - whole).mean() < 0.03


def test_a_structure_learns_on_trial_what_it_learns_alone(draw: Draw, small: NeuralSettings, few: NeuralFit) -> None:
    examples = draw(600, 3)
    task = new_task(examples, small, seed=4)
    architecture = few.model.architecture
    alone = replace(architecture, members=1, reward_structure="low_rank", cost_structures=("low_rank",))
    networks = {"outcome": alone.networks(4, task.starts, task.pieces)["outcome"]}
    trained = task.train(networks, outcome_loss, [(4, 0)])
    network = weighted(trained.networks["outcome"], task.columns)
    expected = row_losses(network, task.targets, task.held_out)[0]
    tried = trial_losses(task, architecture)
    for place, outcome in enumerate(("reward", "cost")):
        # The same numbers in another order of summation, over some 90 steps of training.
        np.testing.assert_allclose(tried[outcome]["low_rank"], expected[place], atol=5e-3)
        assert np.abs(tried[outcome]["low_rank"] - tried[outcome]["independent"]).mean() > 5e-3


def test_structures_are_chosen_on_held_out_users_and_never_against_the_log(draw: Draw, small: NeuralSettings) -> None:
    examples = draw(2_000, 3)
    generator = np.random.default_rng(0)
    means = np.array([0.6, 0.3, 0.5, 0.4])
    reward = (generator.random(len(examples)) < means[examples.action]).astype(float)
    cost = reward * np.array([0.0, 1.0, 2.0, 4.0])[examples.action] * (generator.random(len(examples)) < 0.5)
    settings = replace(small, members=1, reward_structure=None)
    fitted = fit_neural(replace(examples, outcomes=np.stack([reward, cost])), settings, seed=0)
    choice, cost_choice = fitted.structures
    assert choice.structure in ("low_rank", "independent")
    assert set(choice.losses) == {"low_rank", "independent"}
    assert "a more expensive action has a lower reward" in choice.reason
    assert cost_choice.reason == "given"
    assert fitted.model.architecture.reward_structure == choice.structure
    assert fitted.as_dict()["reward_structure"]["outcome"] == "reward"
    rewards, _ = fitted.model.predict(examples.states)
    # Shares of 1,500 rows an action: three standard errors and the regularisation's pull.
    np.testing.assert_allclose(rewards.mean(axis=0), means, atol=0.05)


def test_not_a_number_in_a_state_is_refused_in_words(draw: Draw, small: NeuralSettings) -> None:
    examples = draw(50, 0)
    states = examples.states.copy()
    states[:, 3] = np.nan
    with pytest.raises(ModelError, match="not a number"):
        fit_neural(replace(examples, states=states), small)


def test_one_action_one_step_and_no_cost_can_be_learned(draw: Draw, small: NeuralSettings) -> None:
    examples = draw(400, 0)
    first = np.arange(0, len(examples), 3)
    layout = replace(examples.layout, step_change=1.0)
    lone = replace(
        examples,
        states=examples.states[first],
        action=np.zeros(len(first), np.int32),
        outcomes=np.stack([examples.reward[first], np.zeros(len(first))]),
        propensity=np.ones(len(first)),
        continues=np.zeros(len(first), dtype=bool),
        starts=np.arange(len(first) + 1),
        layout=layout,
        actions=1,
        campaign_steps=1,
    )
    fitted = fit_neural(lone, replace(small, members=1), seed=0)
    rewards, costs = fitted.model.predict(lone.states)
    assert rewards.shape == (400, 1)
    # Four standard errors of a share of 400.
    assert abs(rewards.mean() - lone.reward.mean()) < 0.1
    np.testing.assert_allclose(costs, 0.0, atol=1e-3)
    assert fitted.disagreement == {"reward": 0.0, "cost": 0.0}
