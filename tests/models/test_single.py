"""Networks in plain arrays say what the compiled ones say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from redenvelope import ModelError
from redenvelope.models.neural_model import NeuralModel
from redenvelope.models.responses import TRIAL
from redenvelope.models.single.model import single_model
from tests.quick_programs import quick_programs
from tests.random_networks import BARE, LAYOUTS, MIXED, random_model, random_states

# Outcomes and states are of the order of one, and both sides round each of some hundred additions to 6e-8.
CLOSE = 1e-5


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    with quick_programs():
        yield


@eqx.filter_jit
def compiled(model: NeuralModel, states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Outcomes [outcomes, n, actions] and successors [n, actions, width]."""
    return jnp.stack(list(model.outcomes(states))), model.successors(states)


def check(model: NeuralModel) -> None:
    single, states = single_model(model), random_states(model.layout, 40)
    assert (single.actions, single.budgets) == (model.actions, 1)
    outcomes, successors = (np.asarray(array) for array in compiled(model, jnp.asarray(states)))
    assert np.ptp(outcomes[0], axis=0).min() > 1e-2  # networks that say the same of all users would prove nothing
    for users in (1, 7, 40):
        found, following = single.outcomes(states[:users]), single.successors(states[:users])
        assert found.dtype == following.dtype == np.float32
        assert np.abs(found - outcomes[:, :users]).max() < CLOSE
        assert np.abs(following - successors[:users]).max() < CLOSE


@pytest.mark.parametrize(("layout", "members"), [("wide", 1), ("mixed", 3), ("bare", 2)])
def test_every_layout(layout: str, members: int) -> None:
    check(random_model(LAYOUTS[layout], members=members))


@pytest.mark.parametrize(
    ("structures", "targets"),
    [
        (("dose", "cumulative"), ("binary", "consumed")),
        (("cumulative", "low_rank"), ("number reward", "number cost")),
        (("low_rank", "independent"), ("binary", "number cost")),
        (("independent", "dose"), ("number reward", "consumed")),
        (("dose", "dose"), ("number reward", "rewarded")),
    ],
)
def test_every_structure_and_target(structures: tuple[str, str], targets: tuple[str, str]) -> None:
    check(random_model(MIXED, actions=4, members=2, structures=structures, targets=targets, hidden=((8,), (8,))))


@pytest.mark.parametrize("hidden", [((), ()), ((16,), (8, 8, 8))], ids=["none", "one and three"])
def test_any_number_of_hidden_layers(hidden: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(random_model(MIXED, actions=3, members=2, hidden=hidden))


@pytest.mark.parametrize("actions", [1, 2])
def test_few_actions(actions: int) -> None:
    targets = ("binary", "consumed")
    check(random_model(BARE, actions, structures=("cumulative", "dose"), targets=targets, hidden=((8,), (8,))))


def test_states_far_outside_the_data_overflow_nothing() -> None:
    model = random_model(BARE, hidden=((8,), (8,)))
    states = random_states(BARE, 10)
    states[:, BARE.numbers] *= 1_000.0
    assert np.allclose(single_model(model).outcomes(states), compiled(model, jnp.asarray(states))[0], atol=CLOSE)


def test_an_unknown_response_is_refused() -> None:
    with pytest.raises(ModelError, match="TrialResponse has no form for single users"):
        single_model(random_model(BARE, structures=(TRIAL, "dose")))


def test_what_decides_imports_no_compiler() -> None:
    code = "import sys, redenvelope.models.single.networks; print('jax' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
