import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from experiments.tabular import fit_tabular

from redenvelope.models.dataset import Examples
from redenvelope.models.fidelity import Fidelity, FidelityThresholds, measure_fidelity
from redenvelope.models.fit import NeuralFit, fit_neural
from redenvelope.models.training import NeuralSettings
from redenvelope.serialization import from_plain, to_plain

Draw = Callable[[int, int], Examples]


@dataclass(frozen=True)
class Truth:
    """A model that knows, and may be made to err."""

    world: object
    lift: float = 1.0
    forward: bool = True
    heeds_actions: bool = True

    def predict(self, states: np.ndarray) -> np.ndarray:
        return np.stack([self.world.reward(states), self.world.cost(states)]) * self.lift

    def roll_out(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        followed, outcomes, now = [], [], states
        for action in actions.T:
            outcomes.append(self.predict(now)[:, np.arange(len(now)), action])
            tail = self.world.next_tail(now, action if self.heeds_actions else np.full_like(action, 1))
            moved = tail if self.forward else 2 * now[:, 3:] - tail
            now = np.concatenate([now[:, :2], now[:, 2:3] + 0.5, moved], axis=1)
            followed.append(now)
        return np.stack(followed), np.stack(outcomes, axis=1)


def test_the_truth_is_trusted(world, draw: Draw) -> None:
    report = measure_fidelity(Truth(world), draw(3_000, 11))
    assert report.trusted and report.reasons == ()
    assert [part.depth for part in report.roll_outs] == [1, 2]
    reward, cost = report.outcomes
    assert (reward.name, cost.name) == ("reward", "cost")
    assert reward.r_squared > 0.05
    # The truth is calibrated: no gap beyond four standard errors of its bin.
    for part in (*reward.calibration, *reward.actions, *cost.actions):
        assert abs(part.predicted - part.observed) <= 4 * part.standard_error
    assert sum(part.rows for part in reward.calibration) == report.rows


def test_log_loss_is_that_of_the_textbook(world, draw: Draw) -> None:
    examples = draw(500, 11)
    chance = world.reward(examples.states)[np.arange(len(examples)), examples.action]
    expected = -(examples.reward * np.log(chance) + (1 - examples.reward) * np.log(1 - chance)).mean()
    assert measure_fidelity(Truth(world), examples).outcomes[0].log_loss == pytest.approx(expected, rel=1e-6)


def test_a_learned_model_is_trusted(learned: NeuralFit, draw: Draw) -> None:
    report = measure_fidelity(learned.model, draw(3_000, 11))
    assert report.reasons == ()
    assert all(part.state_error < part.unchanged_error for part in report.roll_outs)
    assert report.trusted
    assert from_plain(Fidelity, json.loads(json.dumps(to_plain(report))), "the fidelity") == report


def test_rewards_ten_percent_too_high_are_not_trusted(world, draw: Draw) -> None:
    report = measure_fidelity(Truth(world, lift=1.1), draw(3_000, 11))
    assert any("predicted mean reward" in reason for reason in report.reasons)


def test_transitions_the_wrong_way_are_not_trusted(world, draw: Draw) -> None:
    report = measure_fidelity(Truth(world, forward=False), draw(3_000, 11))
    assert any("further off than an unchanged state" in reason for reason in report.reasons)


def test_a_model_that_does_not_know_what_an_action_leads_to_is_not_trusted(world, draw: Draw) -> None:
    """Its states and sums are right on average: only what follows each action gives it away."""
    strict = FidelityThresholds(later_gap=0.08)  # an action of this world moves what follows by about a tenth
    examples = draw(6_000, 11)
    report = measure_fidelity(Truth(world, heeds_actions=False), examples, strict)
    assert all("after action" in reason for reason in report.reasons)
    assert report.reasons
    assert measure_fidelity(Truth(world), examples, strict).trusted


def test_what_follows_an_action_is_measured_by_user(world, draw: Draw) -> None:
    examples = draw(3_000, 11)
    (deepest,) = (part for part in measure_fidelity(Truth(world), examples).roll_outs if part.depth == 2)
    first = examples.starts[:-1]
    for part in deepest.outcomes[0].later:
        rows = first[examples.action[first] == part.action]
        assert part.rows == len(rows)
        assert part.observed == pytest.approx((examples.reward[rows + 1] + examples.reward[rows + 2]).mean())
        assert abs(part.predicted - part.observed) <= 4 * part.standard_error


def test_a_model_taught_shuffled_actions_is_not_trusted(draw: Draw, small: NeuralSettings) -> None:
    examples = draw(6_000, 1)
    shuffled = np.random.default_rng(0).permutation(examples.action)
    fitted = fit_neural(replace(examples, action=shuffled), small, seed=0)
    report = measure_fidelity(fitted.model, draw(3_000, 11))
    assert any(reason.startswith("action 3: the predicted mean reward") for reason in report.reasons)


def test_a_table_is_measured_too(draw: Draw) -> None:
    examples = draw(4_000, 1)
    coarse = np.round(examples.states.clip(-1, 1))
    train, test = (
        replace(
            examples,
            **{name: getattr(examples, name)[rows] for name in ("action", "propensity", "continues")},
            outcomes=examples.outcomes[:, rows],
            states=coarse[rows],
            starts=np.arange(2_001) * 3,
            keys=examples.keys[users],
        )
        for rows, users in ((slice(0, 6_000), slice(0, 2_000)), (slice(6_000, 12_000), slice(2_000, 4_000)))
    )
    report = measure_fidelity(fit_tabular(train), test)
    assert report.trusted, report.reasons
    assert report.roll_outs[1].state_error < report.roll_outs[1].unchanged_error
