"""Outcomes right on average in every action and step, and effects believed as far as held-out users confirm them."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.models.calibration import CalibrationRows, calibrate
from redenvelope.models.fit import NeuralFit, calibrated
from redenvelope.models.neural_model import NeuralModel
from redenvelope.models.training import NeuralSettings

ACTIONS, LIFTS, PRICES = 3, np.array([0.0, 1.0, 1.6]), np.array([0.0, 1.0, 2.0])


def drawn(users: int, seed: int, told: float, true: float, bias: float = 0.0) -> CalibrationRows:
    """Two steps of users whose effects differ by `true` where a model says `told`, and whose costs are those of the
    actions; the model is wrong by `bias` about the second action in the second step."""
    draw = np.random.default_rng(seed)
    kind, level = draw.choice([-1.0, 1.0], users * 2), draw.normal(0, 1, users * 2)
    hat, action = np.tile([0, 1], users), draw.integers(0, ACTIONS, users * 2).astype(np.int32)
    predicted = level[:, None] + LIFTS * (1 + told * kind[:, None])
    predicted[hat == 1, 1] += bias
    reward = level + LIFTS[action] * (1 + true * kind) + draw.normal(0, 1, users * 2)
    costs = np.broadcast_to(PRICES + 0.05 * draw.normal(size=(users * 2, 1)), predicted.shape)
    return CalibrationRows(
        np.stack([predicted, costs]),
        np.stack([reward, PRICES[action]]),
        action,
        np.full(users * 2, float(ACTIONS)),
        hat,
        np.repeat(np.arange(users), 2),
    )


def corrected(rows: CalibrationRows, users: int = 4_000, **known: float) -> np.ndarray:
    calibration, _ = calibrate(rows, drawn(users, 9, **known), hats=2)
    outcomes = [jnp.asarray(own.T) for own in rows.predicted]
    return np.stack([np.asarray(own).T for own in calibration(outcomes, jnp.asarray(rows.hat, jnp.float32))])


def test_effects_that_users_confirm_stay_as_learned() -> None:
    choice = calibrate(drawn(4_000, 0, told=0.5, true=0.5), drawn(4_000, 1, told=0.5, true=0.5), hats=2)[1]
    assert choice.share == 1 and "as learned" in choice.reason
    assert abs(choice.slope - 1) < 4 * choice.error


def test_effects_twice_too_large_are_shrunk_by_half() -> None:
    rows = drawn(4_000, 0, told=0.5, true=0.25)
    choice = calibrate(rows, drawn(4_000, 1, told=0.5, true=0.25), hats=2)[1]
    assert 0.35 < choice.share < 0.65
    found = corrected(rows, told=0.5, true=0.25)[0]
    responders = rows.predicted[0, :, 2] - rows.predicted[0, :, 0] > LIFTS[2]
    gap = (found[responders, 2] - found[responders, 0]).mean() - (found[~responders, 2] - found[~responders, 0]).mean()
    assert gap == pytest.approx(2 * 0.25 * LIFTS[2], rel=0.3)


@pytest.mark.parametrize("seed", range(4))
def test_effects_that_are_noise_are_not_targeted_by(seed: int) -> None:
    known = {"told": 0.5, "true": -0.1}
    rows = drawn(3_000, seed, **known)
    choice = calibrate(rows, drawn(3_000, 100 + seed, **known), hats=2)[1]
    assert choice.is_untargeted and "not targeted" in choice.reason
    effects = corrected(rows, **known)[0]
    effects = (effects - effects[:, :1]).round(3)
    assert all(len(np.unique(effects[rows.hat == step], axis=0)) <= 3 for step in (0, 1))  # but for what is clipped


def test_outcomes_are_right_on_average_in_every_action_and_step() -> None:
    rows = drawn(6_000, 0, told=0.5, true=0.5, bias=0.4)
    found, each = corrected(rows, told=0.5, true=0.5, bias=0.4), np.arange(len(rows.action))
    for step in (0, 1):
        for action in range(ACTIONS):
            own = (rows.hat == step) & (rows.action == action)
            error = (found[0, each, rows.action] - rows.observed[0])[own]
            assert abs(error.mean()) < 2 * error.std() / np.sqrt(own.sum())
    # Costs that an action always has are known, whatever networks say; nothing below the log is expected.
    np.testing.assert_allclose(found[1], np.broadcast_to(PRICES, found[1].shape), atol=1e-6)
    assert found[0].min() >= rows.observed[0].min() - 1e-5


def test_a_calibrated_model_is_stored_and_read(learned: NeuralFit, draw, small: NeuralSettings) -> None:
    train, tune = draw(6_000, 1), draw(1_000, 3)
    fitted = calibrated(learned, train, tune, small, 0)
    assert fitted.targeting is not None and fitted.targeting.share == 1  # the truth is learned well here
    # Two of four folds of the training users have a network that was not trained on them.
    assert fitted.targeting.decisions == len(tune) + (train.folds(4, 0) < 2).sum()
    restored = NeuralModel.from_state(*fitted.model.state())
    states = tune.states[:200]
    np.testing.assert_array_equal(restored.predict(states), fitted.model.predict(states))
    taken = np.arange(len(tune)), tune.action
    before, after = (
        [abs((fit.model.predict(tune.states)[:, *taken] - tune.outcomes)[:, tune.action == a].mean()) for a in range(4)]
        for fit in (learned, fitted)
    )
    assert np.sum(after) <= np.sum(before) + 0.01
    plain = replace(fitted.model, calibration=None)
    np.testing.assert_array_equal(NeuralModel.from_state(*plain.state()).predict(states), learned.model.predict(states))


def test_shrunk_effects_never_make_a_free_action_cost_anything() -> None:
    def with_redemptions(users: int, seed: int) -> CalibrationRows:
        """Costs differ between users, and a model tells them apart three times too much; the first action is free."""
        rows = drawn(users, seed, told=0.6, true=0.2)
        kind = np.sign(rows.predicted[0, :, 2] - rows.predicted[0, :, 0] - LIFTS[2])
        each = np.arange(len(rows.action))
        predicted, true = (PRICES * (1 + strength * kind[:, None]) for strength in (0.6, 0.2))
        observed = np.stack([rows.observed[0], true[each, rows.action]])
        return rows._replace(predicted=np.stack([rows.predicted[0], predicted]), observed=observed)

    rows = with_redemptions(4_000, 0)
    calibration, choice = calibrate(rows, with_redemptions(4_000, 1), hats=2)
    assert choice.share < 0.6
    outcomes = [jnp.asarray(own.T) for own in rows.predicted]
    cost = np.asarray(calibration(outcomes, jnp.asarray(rows.hat, jnp.float32))[1])
    np.testing.assert_allclose(cost[0], 0.0, atol=1e-5)
    # Right on average, but for what is cut at the greatest cost that was logged.
    np.testing.assert_allclose(cost.mean(axis=1), PRICES, atol=0.06)


def test_no_action_is_expected_to_cost_less_or_more_than_it_was_logged_to() -> None:
    def with_amounts(users: int, seed: int) -> CalibrationRows:
        """The first action is free and the last costs one of several amounts; networks are a little wrong of both."""
        rows, draw = drawn(users, seed, told=0.5, true=0.5), np.random.default_rng([seed, 1])
        paid = np.array([0.0, 1.0, 3.0])[rows.action] * draw.integers(0, 3, len(rows.action)) / 2
        expected = np.array([0.0, 0.5, 1.5]) + 0.4 * draw.normal(size=rows.predicted.shape[1:])
        return rows._replace(
            predicted=np.stack([rows.predicted[0], expected]), observed=np.stack([rows.observed[0], paid])
        )

    rows = with_amounts(4_000, 0)
    calibration, _ = calibrate(rows, with_amounts(4_000, 1), hats=2)
    outcomes = [jnp.asarray(own.T) for own in rows.predicted]
    cost = np.asarray(calibration(outcomes, jnp.asarray(rows.hat, jnp.float32))[1])
    assert not cost[0].any()
    assert cost[1].min() >= 0 and cost[1].max() <= 1 < cost[2].max() <= 3
    # Few rows show little of what an action may cost.
    rare = rows._replace(action=np.where(np.arange(len(rows.action)) < 20, 0, np.maximum(rows.action, 1)))
    assert calibrate(rare, rare, hats=2)[0].high[1].tolist() == [3.0, 1.0, 3.0]
