from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope.errors import ModelError
from redenvelope.models import training
from redenvelope.models.dataset import Rows
from redenvelope.models.training import MemberFolds, TrainingSettings, train

SETTINGS = TrainingSettings(learning_rate=0.05, weight_decay=0.0, batch_rows=64, epochs_least=8, epochs_most=8)


def line_loss(networks: Any, constants: Any, rows: Rows) -> dict[str, Any]:
    predicted = rows.states @ networks["line"]["weights"]
    return {"line": jnp.square(predicted - rows.outcomes[:, 0])}


def draw_line(rows: int, seed: int = 0) -> Rows:
    generator = np.random.default_rng(seed)
    states = generator.normal(size=(rows, 3)).astype(np.float32)
    reward = (states @ [1.0, -2.0, 0.5] + 0.1 * generator.normal(size=rows)).astype(np.float32)
    zeros = np.zeros(rows, np.float32)
    outcomes = np.stack([reward, zeros], axis=1)
    return Rows(states, zeros.astype(np.int32), outcomes, np.zeros((rows, 0), np.float32), zeros)


def rewarded(rows: Rows, reward: np.ndarray) -> Rows:
    return rows._replace(outcomes=np.stack([reward, np.zeros(len(reward))], axis=1).astype(np.float32))


def start(members: int = 2) -> dict[str, Any]:
    return {"line": {"weights": jnp.zeros((members, 3))}}


def test_members_find_the_line() -> None:
    rows = draw_line(2_000)
    result = train(start(), None, line_loss, lambda epoch: [rows], 2_000, draw_line(500, 1), SETTINGS, [(0, 0), (0, 1)])
    # Noise of 0.1 over 2,000 rows leaves 0.002 a weight; the last steps add as much again.
    np.testing.assert_allclose(result.networks["line"]["weights"], [[1, -2, 0.5]] * 2, atol=0.01)
    assert result.epochs == 8
    assert np.shape(result.held_out["line"]) == (8, 2)
    np.testing.assert_allclose(np.min(result.held_out["line"], axis=0), result.best["line"], rtol=1e-6)


def test_two_chunks_in_order_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_order(rows: int, batch_rows: int, seeds: Any, own: Any) -> np.ndarray:
        return np.stack([np.arange(rows, dtype=np.int32).reshape(-1, batch_rows)] * len(seeds), axis=1)

    monkeypatch.setattr(training, "_batches", in_order)
    rows = draw_line(512)
    parts = [Rows(*(column[part] for column in rows)) for part in (slice(0, 256), slice(256, 512))]
    one, two = (
        train(start(1), None, line_loss, lambda epoch, chunks=chunks: chunks, 512, draw_line(100, 1), SETTINGS, [(0,)])
        for chunks in ([rows], parts)
    )
    np.testing.assert_allclose(one.networks["line"]["weights"], two.networks["line"]["weights"], atol=1e-6)


def test_every_row_is_used_at_most_once_an_epoch() -> None:
    batches = training._batches(1_000, 128, [(0, 1), (0, 2)])
    assert batches.shape == (7, 2, 128)
    assert all(len(np.unique(batches[:, member])) == 7 * 128 for member in (0, 1))
    assert (batches[:, 0] != batches[:, 1]).any()


def test_a_member_learns_from_other_folds_and_is_held_to_its_own() -> None:
    """Rows of the first fold follow one line, those of the second its opposite."""
    rows, fold = draw_line(2_000), np.arange(2_000) % 2
    both = rewarded(rows, np.where(fold == 0, rows.outcomes[:, 0], -rows.outcomes[:, 0]))
    settings = replace(SETTINGS, epochs_least=16, epochs_most=16)  # of half of the rows

    def learned(held_out: Rows, own: np.ndarray) -> np.ndarray:
        arguments = (lambda epoch: [both], 2_000, held_out, settings, [(0, 0), (0, 1)])
        found = train(start(), None, line_loss, *arguments, folds=MemberFolds(fold, own))
        return np.asarray(found.networks["line"]["weights"])

    # What either learns from the other's fold contradicts its own, so that the start is the best.
    np.testing.assert_array_equal(learned(both, fold), np.zeros((2, 3)))
    # Held to the first line alone, only the second member has learned it.
    np.testing.assert_allclose(learned(rows, fold), [[0, 0, 0], [1, -2, 0.5]], atol=0.02)


@pytest.mark.parametrize("rows", [300, 512])
def test_rows_that_only_fill_a_shape_are_never_used(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (None, line_loss, lambda epoch: [draw_line(rows)], rows, draw_line(100, 1), SETTINGS, [(0, 0), (0, 1)])
    with monkeypatch.context() as patched:
        patched.setattr(training, "bucket", lambda length: length)
        as_they_are = train(start(), *arguments)

    def filled_with_poison(tree: Any, length: int) -> Any:
        def fill(column: Any) -> np.ndarray:
            poison = np.full((length, *np.shape(column)[1:]), np.nan if np.asarray(column).dtype.kind == "f" else 10**6)
            poison[: len(column)] = column
            return poison.astype(np.asarray(column).dtype)

        return jax.tree.map(fill, tree)

    monkeypatch.setattr(training, "filled", filled_with_poison)
    monkeypatch.setattr(training, "bucket", lambda length: 700)
    poisoned = train(start(), *arguments)
    np.testing.assert_allclose(poisoned.networks["line"]["weights"], as_they_are.networks["line"]["weights"], atol=1e-6)
    np.testing.assert_allclose(poisoned.held_out["line"], as_they_are.held_out["line"], rtol=1e-5)


def test_the_held_out_loss_is_the_mean_over_all_its_rows() -> None:
    held_out = draw_line(333, 1)
    loss = training._evaluate(line_loss, start(), None, training._Filled.of(held_out))["line"]
    np.testing.assert_allclose(loss, [np.mean(np.square(held_out.outcomes[:, 0], dtype=np.float64))] * 2, rtol=1e-6)


def test_another_number_of_rows_compiles_nothing() -> None:
    programs = (training._train_chunk, training._block_losses)

    def run(rows: int, held_out: int) -> list[int]:
        source = draw_line(rows)
        train(
            start(), None, line_loss, lambda epoch: [source], rows, draw_line(held_out, 1), SETTINGS, [(0, 0), (0, 1)]
        )
        return [program._cache_size() for program in programs]

    assert run(1_100, 140) == run(1_700, 190) == run(2_048, 256)


def test_stops_early_and_keeps_the_best() -> None:
    rows = draw_line(256)
    wrong = rewarded(draw_line(256, 1), -draw_line(256, 1).outcomes[:, 0])
    settings = TrainingSettings(learning_rate=0.05, batch_rows=64, epochs_least=30, epochs_most=30, patience=3)
    result = train(start(1), None, line_loss, lambda epoch: [rows], 256, wrong, settings, [(0,)])
    # Held-out rows of the opposite sign: every step makes it worse, so that the start is the best.
    assert result.epochs == 3
    np.testing.assert_array_equal(result.networks["line"]["weights"], np.zeros((1, 3)))


def test_weight_decay_pulls_weights_to_zero() -> None:
    held_out = rewarded(draw_line(256), np.zeros(256))
    silent = held_out._replace(states=np.zeros((256, 3), np.float32))  # teaches nothing: only the decay moves
    settings = TrainingSettings(learning_rate=0.01, weight_decay=2.0, batch_rows=64, epochs_least=5, epochs_most=5)
    networks = {"line": {"weights": jnp.ones((1, 3)), "level": jnp.ones((1, 3))}}
    result = train(networks, None, line_loss, lambda epoch: [silent], 256, held_out, settings, [(0,)])
    # The rate averages half its peak over 20 steps: exp(−20 · ½ · 0.01 · 2).
    np.testing.assert_allclose(result.networks["line"]["weights"], np.full((1, 3), np.exp(-0.2)), rtol=0.03)
    np.testing.assert_array_equal(result.networks["line"]["level"], np.ones((1, 3)))


def test_epochs_follow_the_number_of_rows() -> None:
    settings = TrainingSettings(batch_rows=100, steps=1_000, epochs_least=5, epochs_most=20)
    assert [settings.epochs(rows) for rows in (1_000, 10_000, 1_000_000)] == [20, 10, 5]


def test_small_logs_take_as_many_steps_of_smaller_batches() -> None:
    settings = TrainingSettings(batch_rows=100, steps=1_000, epochs_least=5, epochs_most=20)
    assert settings.suited(5_000) == settings
    for rows, batch_rows in ((4_000, 50), (60, 30)):
        small = settings.suited(rows)
        assert (small.batch_rows, small.epochs(rows)) == (batch_rows, 10)
        taken, before = (own.epochs(rows) * (rows // min(own.batch_rows, rows)) for own in (small, settings))
        assert taken == before


def test_numbers_beyond_all_bounds_are_refused_in_words() -> None:
    rows = rewarded(draw_line(256), np.full(256, np.inf))
    with pytest.raises(ModelError, match="did not settle"):
        train(start(1), None, line_loss, lambda epoch: [rows], 256, rows, SETTINGS, [(0,)])
