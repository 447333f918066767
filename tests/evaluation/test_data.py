"""OffPolicyData: gathered in blocks, sliced; and what is not accepted, in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope import UsageError
from redenvelope.evaluation.data import gather

from .conftest import World


def arrays(rows: int = 6, actions: int = 3, **changes):
    generator = np.random.default_rng(0)
    content = {
        "starts": np.array([0, 2, rows]),
        "keys": np.arange(2),
        "action": np.arange(rows) % actions,
        "propensity": np.full(rows, 1 / actions),
        "outcomes": generator.random((1, rows)),
        "outcome_names": ("reward",),
        "probabilities": generator.dirichlet(np.ones(actions), size=rows),
    }
    return content | changes


@pytest.mark.parametrize("users", [30, 20_000])
def test_ratios_and_baselines_by_the_definition(leaving_world: World, users: int) -> None:
    """In one block of rows, and in several: a block has 2^17 numbers, of which a row has six."""
    drawn = leaving_world.draw(users, seed=1)
    place = np.arange(len(drawn.table))
    assert users == 30 or drawn.probabilities.size > 2 * 2**17
    data = drawn.data(0.5)
    expected = drawn.probabilities[place, :, drawn.action] / drawn.table[:, 4, None]
    np.testing.assert_allclose(data.ratio, expected, rtol=1e-14)
    values, action_values = data.baseline()
    for outcome, exact in enumerate(drawn.baseline(0.5)):
        np.testing.assert_allclose(values[outcome], (drawn.probabilities * exact).sum(axis=2), rtol=1e-12)
        np.testing.assert_array_equal(action_values[outcome], exact[place, :, drawn.action])


def test_positions_are_slices_when_all_have_equally_many_steps(world: World, leaving_world: World) -> None:
    assert all(isinstance(rows, slice) for _, rows in world.draw(5, seed=0).data(None).positions)
    drawn = leaving_world.draw(40, seed=0)
    data = drawn.data(None)
    assert len(data.positions) == leaving_world.problem.steps
    for position, (users, rows) in enumerate(data.positions):
        np.testing.assert_array_equal(drawn.step[rows], position)
        np.testing.assert_array_equal(drawn.table[rows, 0], users)


def test_batches_are_the_rows_of_their_users(leaving_world: World) -> None:
    data = leaving_world.draw(20, seed=2).data(0.5)
    batches = list(data.batches(6))
    assert [batch.users for batch in batches] == [6, 6, 6, 2]
    for name, axis in (
        ("ratio", 0),
        ("outcomes", 1),
        ("values", 1),
        ("action_values", 1),
        ("features", 0),
        ("keys", 0),
    ):
        joined = np.concatenate([getattr(batch, name) for batch in batches], axis=axis)
        np.testing.assert_array_equal(joined, getattr(data, name))
    np.testing.assert_array_equal(np.concatenate([batch.lengths for batch in batches]), data.lengths)
    weighed = np.concatenate([batch.weights for batch in batches], axis=1)
    np.testing.assert_array_equal(weighed, data.weights)
    own = replace(data, own_weights=data.weights + 1)
    weighed = np.concatenate([batch.weights for batch in own.batches(6)], axis=1)
    np.testing.assert_array_equal(weighed, data.weights + 1)


def test_single_precision_probabilities_are_normalised() -> None:
    shares = np.random.default_rng(1).dirichlet(np.ones(3), size=6)
    exact = gather(**arrays(probabilities=shares))
    rough = gather(**arrays(probabilities=(shares * 1.00003).astype(np.float32)))
    np.testing.assert_allclose(rough.ratio, exact.ratio, rtol=1e-6)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_tables_need_not_lie_close_in_memory(kind: type) -> None:
    """Every third row of larger tables, actions first, and one baseline for all prices: the same as copies of them."""
    generator = np.random.default_rng(2)
    shares = generator.dirichlet(np.ones(3), size=(18, 2)).astype(kind)[::3]
    values = generator.random((3, 2, 6)).T
    once = generator.random((18, 3))[::3]
    loose = gather(**arrays(probabilities=shares, to_go=values[None]))
    close = gather(**arrays(probabilities=shares.copy(), to_go=np.ascontiguousarray(values)[None]))
    for name in ("ratio", "values", "action_values"):
        np.testing.assert_array_equal(getattr(loose, name), getattr(close, name))
    shared = gather(**arrays(probabilities=shares, to_go=once[None]))
    expected = np.einsum("npa,na->np", shares.astype(float), once)
    np.testing.assert_allclose(shared.baseline()[0][0], expected, rtol=1e-6 if kind is np.float32 else 1e-14)


def test_mass_on_actions_never_logged() -> None:
    content = arrays(action=np.array([0, 1, 0, 1, 0, 1]))
    found = gather(**content)
    assert float(found.unlogged[0]) == pytest.approx(content["probabilities"][:, 2].mean())
    assert float(gather(**content, logged_actions=np.ones(3, dtype=bool)).unlogged[0]) == 0


def test_clipping_is_counted() -> None:
    data = gather(**arrays())
    limit = float(np.median(data.ratio))
    clipped = data.clip(limit)
    assert float(clipped.clipped[0]) == pytest.approx(0.5)
    assert float(clipped.ratio.max()) == limit
    assert float(data.clipped[0]) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"propensity": np.full(6, 33.0)}, "percentages"),
        ({"propensity": np.full(6, 1e6)}, "above 1"),
        ({"propensity": np.zeros(6)}, "probability above 0"),
        ({"propensity": np.full(6, np.nan)}, "probability above 0"),
        ({"propensity": np.full(5, 0.5)}, "propensity must be"),
        ({"probabilities": np.full((6, 3), 0.5)}, "row 0"),
        ({"probabilities": np.tile([1.5, -0.5, 0.0], (6, 1))}, "negative"),
        ({"probabilities": np.full((6, 3), np.nan)}, "do not sum to 1"),
        ({"probabilities": np.ones(6)}, "probabilities must be"),
        ({"action": np.full(6, 3)}, "indices from 0 to 2"),
        ({"starts": np.array([0, 2, 2, 6])}, "at least one row"),
        ({"starts": np.array([0, 2, 5])}, "at least one row"),
        ({"keys": np.arange(6)}, "keys must be"),
        ({"outcomes": np.full((1, 6), np.inf)}, "reward has"),
        ({"outcomes": np.zeros((2, 6))}, "outcomes must be"),
        ({"outcomes": np.zeros(6)}, "outcomes must be"),
        ({"to_go": np.zeros((2, 6, 3))}, "with 1 outcome"),
        ({"to_go": np.zeros((6, 3))}, "with 1 outcome"),
        ({"to_go": np.zeros((1, 6, 2))}, "shape of probabilities"),
        ({"to_go": np.full((1, 6, 3), np.nan)}, "not finite"),
        ({"features": np.zeros((5, 2))}, "features must be"),
        ({"features": np.zeros(6)}, "features must be"),
        ({"features": np.full((6, 2), np.nan)}, "a feature has"),
    ],
)
def test_refused_in_words(changes: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gather(**arrays(**changes))


def test_wrong_uses(leaving_world: World) -> None:
    data = leaving_world.draw(5, seed=0).data(None)
    with pytest.raises(UsageError, match="limit"):
        data.clip(0)
