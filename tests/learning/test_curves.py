"""Few curves for many prices: what they hold, what they lose, and that networks say the same in other curves."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest

from redenvelope.learning.backward import FoldedRows, aim_at, future_loss
from redenvelope.log.encoding.layout import StateLayout
from redenvelope.models.networks import ValueNetwork, new_value_networks

HEADS, COMPONENTS, ACTIONS, ROWS, CURVES = 7, 2, 4, 400, 6
LAYOUT = StateLayout((3,), 2, 1, 0, (), step_change=0.5)
EVERYONE = np.ones(ROWS, dtype=bool)


def targets(rank: int, seed: int = 0) -> np.ndarray:
    """[rows, heads, components], of a rank, with means and scales that differ."""
    generator = np.random.default_rng(seed)
    heights = generator.normal(size=(ROWS, rank))
    curves = generator.normal(size=(rank, HEADS * COMPONENTS)) * np.linspace(0.5, 3.0, HEADS * COMPONENTS)
    return (heights @ curves + 5.0).reshape(ROWS, HEADS, COMPONENTS).astype(np.float32)


def random_networks(heads: int = HEADS) -> ValueNetwork:
    """Two folds, with every weight drawn."""
    networks = new_value_networks(LAYOUT, ACTIONS, heads, COMPONENTS, (5,), 2, CURVES, 2, 0)
    generator = np.random.default_rng(1)
    fixed = (networks.basis, networks.centre, networks.scale, networks.slot)
    drawn = jax.tree.map(lambda array: generator.normal(size=array.shape).astype(np.float32), networks)
    places = lambda network: (network.basis, network.centre, network.scale, network.slot)  # noqa: E731
    return eqx.tree_at(places, drawn, fixed)


def states() -> np.ndarray:
    generator = np.random.default_rng(2)
    rows = generator.normal(size=(ROWS, LAYOUT.width)).astype(np.float32)
    rows[:, 0] = generator.integers(0, 3, ROWS)
    rows[:, LAYOUT.step] = 0.5
    return rows


def said(networks: ValueNetwork, fold: int = 0) -> np.ndarray:
    """What a fold's network says, in the scale of its targets, [rows, heads, components, actions]."""
    network = jax.tree.map(lambda array: array[fold], networks)
    values = np.asarray(network(states()))
    return (values - network.centre[..., None]) / network.scale[..., None]


def test_curves_hold_targets_of_a_low_rank_whole() -> None:
    target = targets(rank=3)
    aim = aim_at(random_networks(), target, EVERYONE)
    network = jax.tree.map(lambda array: np.asarray(array[0]), aim.networks)
    again = network.centre + network.scale * np.einsum("nk,khc->nhc", aim.target, network.basis)
    assert np.allclose(again, target, atol=1e-3)
    assert aim.lost == pytest.approx(0.0, abs=1e-6)


def test_what_is_lost_is_what_the_singular_values_say() -> None:
    target = targets(rank=14)
    aim = aim_at(random_networks(), target, EVERYONE)
    flat = target.reshape(ROWS, -1).astype(np.float64)
    singular = np.linalg.svd((flat - flat.mean(axis=0)) / flat.std(axis=0), compute_uv=False)
    curves = aim.target.shape[1]
    assert curves < HEADS * COMPONENTS
    assert aim.lost == pytest.approx(np.square(singular[curves:]).sum() / np.square(singular).sum(), rel=1e-3)


def test_held_out_rows_do_not_shape_the_curves() -> None:
    target, taught = targets(rank=3), EVERYONE.copy()
    taught[300:] = False
    strange = target.copy()
    strange[300:] *= 100.0
    found, other = (aim_at(random_networks(), rows, taught).networks for rows in (target, strange))
    assert (np.asarray(found.basis) == np.asarray(other.basis)).all()
    assert (np.asarray(found.scale) == np.asarray(other.scale)).all()


def test_networks_say_the_same_in_other_curves_that_can_say_it() -> None:
    target = targets(rank=6)
    aimed = aim_at(random_networks(), target, EVERYONE).networks
    # The same space, spanned by other curves, as a neighbouring step or price would have them.
    mixing = np.random.default_rng(4).normal(size=(6, 6))
    others = np.einsum("kl,flhc->fkhc", mixing, aimed.basis).astype(np.float32)
    start = eqx.tree_at(lambda network: network.basis, aimed, others)
    again = aim_at(start, target, EVERYONE).networks
    assert np.allclose(again.basis, aimed.basis, atol=1e-4)
    for fold in (0, 1):
        assert np.ptp(said(start, fold)) > 1
        assert np.allclose(said(start, fold), said(again, fold), atol=1e-3 * np.ptp(said(start, fold)))


def test_few_prices_need_no_curves() -> None:
    networks = random_networks(heads=2)
    target = targets(rank=9)[:, :2]
    aim = aim_at(networks, target, EVERYONE)
    assert aim.lost == 0.0
    assert np.allclose(aim.target, ((target - target.mean(axis=0)) / target.std(axis=0)).reshape(ROWS, -1), atol=1e-4)
    assert np.allclose(said(networks), said(aim.networks), atol=1e-4)


def test_loss_is_half_the_squared_error_of_the_logged_actions_value() -> None:
    target = targets(rank=3)
    aim = aim_at(random_networks(), target, EVERYONE)
    action = np.random.default_rng(3).integers(0, ACTIONS, ROWS).astype(np.int32)
    two = lambda column: np.stack([column, column], axis=1)  # noqa: E731
    rows = FoldedRows(two(states()), two(action), two(action), two(action), two(aim.target))
    network = jax.tree.map(lambda array: np.asarray(array[1]), aim.networks)
    taken = np.asarray(network(states()))[np.arange(ROWS), :, :, action]
    exact = 0.5 * np.square((taken - target) / network.scale).mean(axis=(1, 2))
    # Single precision, and a row's loss may be far smaller than the terms that it is made of.
    np.testing.assert_allclose(future_loss({"future": network}, None, rows)["future"], exact, rtol=2e-3, atol=1e-4)
