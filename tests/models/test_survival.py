"""Who stays is learned where users leave, and nowhere else."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from experiments.tabular import fit_tabular

from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.models.fidelity import measure_fidelity
from redenvelope.models.fit import fit_neural
from redenvelope.models.neural_model import NeuralModel
from redenvelope.models.training import NeuralSettings, TrainingSettings

STAYING = np.array([0.45, 0.9, 0.95])
STEPS = 4


def leaving_frame(users: int, seed: int, staying: np.ndarray = STAYING) -> pl.DataFrame:
    """Users of two kinds, of whom those of kind 1 stay less; they respond alike at every step."""
    generator = np.random.default_rng(seed)
    kind = generator.integers(0, 2, users)
    here = np.arange(users)
    parts = []
    for step in range(STEPS):
        action = generator.integers(0, 3, len(here))
        reward = (generator.random(len(here)) < 0.3 + 0.1 * action).astype(float)
        mood = generator.normal(size=len(here))
        parts.append(
            pl.DataFrame(
                {
                    "user": here,
                    "step": np.full(len(here), step),
                    "action": action.astype(str),
                    "propensity": np.full(len(here), 1 / 3),
                    "reward": reward,
                    "cost": reward * action,
                    "kind": kind[here].astype(float),
                    "mood": mood,
                }
            )
        )
        chance = staying[action] * np.where(kind[here] == 1, 0.8, 1.0) if staying.min() < 1 else np.ones(len(here))
        here = here[generator.random(len(here)) < chance]
    return pl.concat(parts)


def examples_of(frame: pl.DataFrame) -> Examples:
    log = log_from_frame(frame)
    return Examples.from_log(log, Encoder.fit(log))


QUICK = NeuralSettings(members=1, training=TrainingSettings(steps=600))


@pytest.fixture(scope="module")
def model() -> NeuralModel:
    return fit_neural(examples_of(leaving_frame(6_000, 0)), QUICK).model


def test_the_chance_to_stay_is_learned(model: NeuralModel) -> None:
    examples = examples_of(leaving_frame(2_000, 1))
    assert examples.leaves and model.leaves
    found = np.asarray(model.survival(examples.states))
    kind = examples.states[:, 0] > 0
    for group, factor in ((~kind, 1.0), (kind, 0.8)):
        np.testing.assert_allclose(found[group].mean(axis=0), factor * STAYING, atol=0.04)


def test_what_is_unknown_teaches_nothing() -> None:
    examples = examples_of(leaving_frame(500, 2))
    assert (examples.stays[~examples.may_continue] == -1).all()
    left = examples.is_last & examples.may_continue
    assert left.any() and (examples.stays[left] == 0).all() and (examples.stays[examples.continues] == 1).all()


def test_a_few_lost_rows_are_no_habit() -> None:
    frame = leaving_frame(2_000, 3, np.ones(3))
    assert not examples_of(frame).leaves
    lost = (pl.col("user") < 10) & (pl.col("step") == STEPS - 1)
    few = examples_of(frame.filter(~lost))
    assert not few.leaves and few.gather(np.arange(5)).outcomes.shape[1] == 2


def test_a_model_is_stored_with_who_stays(model: NeuralModel) -> None:
    again = NeuralModel.from_state(*model.state())
    states = examples_of(leaving_frame(50, 4)).states
    np.testing.assert_array_equal(np.asarray(again.survival(states)), np.asarray(model.survival(states)))


def test_fidelity_counts_users_who_left(model: NeuralModel) -> None:
    """Whole cohorts: trusted with who stays, found out without."""
    examples = examples_of(leaving_frame(4_000, 5))
    measured = measure_fidelity(model, examples)
    assert measured.trusted, measured.reasons
    blind = fit_neural(examples_of(leaving_frame(6_000, 0, np.ones(3))), QUICK).model
    found = measure_fidelity(blind, examples)
    assert not found.trusted
    assert any("rolled out for" in reason for reason in found.reasons)
    assert any("after action 0" in reason for reason in found.reasons)


def test_observed_sums_are_those_of_whole_cohorts() -> None:
    examples = examples_of(leaving_frame(300, 6).drop("mood"))
    deepest = measure_fidelity(fit_tabular(examples), examples).roll_outs[-1]
    total = examples.reward.sum() / 300
    assert deepest.depth == STEPS - 1 and deepest.rows == 300
    assert deepest.outcomes[0].observed == pytest.approx(total)
    # The tabular model counts who left too: on its own rows it is right but for its prior.
    assert deepest.outcomes[0].predicted == pytest.approx(total, rel=0.05)
