"""What counts against budgets: exact in a log's rows, the same read back from states, and at every node of a tree."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from redenvelope import Budget, ColumnMap, Encoder, Log, ModelError, UsageError, log_from_frame
from redenvelope.campaign.conditions import parse_condition
from redenvelope.campaign.costs import charged_log
from redenvelope.log.encoding.table import state_places
from redenvelope.models.charges import Charge, ChargedModel, Charges, decoding_for, new_charges
from redenvelope.models.environment import apply_steps
from redenvelope.models.neural_model import NeuralModel
from redenvelope.planning.planner import TreePlanner
from redenvelope.serialization import from_plain, to_plain
from tests.random_networks import random_model

ACTIONS = ("nothing", "push", "coupon")
BUDGETS = (
    Budget("coupons", per_user=2.0),
    Budget("pushes", count=("push",), per_user=1.0),
    Budget("first steps", steps=(3, 4), per_user=1.0),
    Budget("shipping", column="shipping", per_user=1.0),
    Budget("new ones", where="segment == 'new' and visits >= 30", per_user=1.0),
    Budget("late and few", where="step > 3 and not (visits > 31 or trusted) and city is not null", per_user=1.0),
    Budget("pushes to some", count=("push", "coupon"), where="visits in (30, 33) or score < -0.5", per_user=1.0),
)


def frame(users: int = 300, steps: int = 3, seed: int = 0) -> pl.DataFrame:
    generator, rows = np.random.default_rng(seed), users * steps
    action = generator.integers(0, 3, rows)
    segments = np.array(["new", "old", "vip"])[generator.integers(0, 3, users)]
    city = pl.Series(np.array(["Lyon", "Rome", ""])[generator.integers(0, 3, rows)]).replace({"": None})
    score = pl.Series(generator.normal(size=rows))
    return pl.DataFrame(
        {
            "user": np.repeat(np.arange(users), steps),
            "step": np.tile(np.arange(3, 3 + steps), users),
            "action": np.array(ACTIONS)[action],
            "propensity": np.full(rows, 1 / 3),
            "reward": generator.random(rows).round(2),
            "cost": (action * generator.random(rows)).round(2),
            "shipping": (action > 0) * generator.random(rows).round(3),
            "segment": np.repeat(segments, steps),
            "visits": generator.integers(28, 36, rows),
            "trusted": np.repeat(generator.random(users) < 0.5, steps),
            "city": city,
            "score": score.scatter(np.arange(0, rows, 7), [None] * len(range(0, rows, 7))),
        }
    )


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    return frame()


@pytest.fixture(scope="module")
def log(table: pl.DataFrame) -> Log:
    return charged_log(log_from_frame(table, ColumnMap(costs=("shipping",))), BUDGETS)


def test_costs_are_those_that_polars_finds(table: pl.DataFrame, log: Log) -> None:
    column = pl.col
    truth = table.select(
        column("cost"),
        (column("action") == "push").cast(float).alias("pushes"),
        (column("cost") * column("step").is_in([3, 4])).alias("first"),
        column("shipping"),
        (column("cost") * ((column("segment") == "new") & (column("visits") >= 30))).alias("new"),
        (
            column("cost")
            * ((column("step") > 3) & ~((column("visits") > 31) | column("trusted")) & column("city").is_not_null())
        ).alias("late"),
        (
            column("action").is_in(["push", "coupon"])
            & (column("visits").is_in([30, 33]) | (column("score") < -0.5)).fill_null(False)
        ).cast(float).alias("some"),
    )  # fmt: skip
    assert log.outcome_names == ("reward", *(f"cost of {budget.name}" for budget in BUDGETS))
    for name, cost, expected in zip(log.outcome_names[1:], log.outcomes[1:], truth, strict=True):
        np.testing.assert_allclose(cost, expected.to_numpy(), atol=1e-7, err_msg=name)
    assert log.measured_names == ("reward", "cost", "shipping")
    assert "shipping" not in log.features.names
    half = log.select(np.arange(len(log.users)) % 2 == 0)
    np.testing.assert_array_equal(half.outcomes, log.outcomes[:, log.user_of_row % 2 == 0])


def test_a_column_that_tells_too_much_is_no_leak_where_a_budget_sums_it(table: pl.DataFrame) -> None:
    copied = table.with_columns(shipping=pl.col("cost") * 2)
    with pytest.raises(Exception, match="so it was only known afterwards"):
        log_from_frame(copied)
    read = log_from_frame(copied, ColumnMap(costs=("shipping",)))
    assert charged_log(read, BUDGETS).measured_names == ("reward", "cost", "shipping")


def test_costs_that_are_missing_or_negative_are_refused(table: pl.DataFrame) -> None:
    odd = table.with_columns(shipping=pl.when(pl.col("user") == 5).then(None).otherwise(pl.col("shipping") - 0.5))
    with pytest.raises(UsageError) as refused:
        charged_log(log_from_frame(odd, ColumnMap(costs=("shipping",))), BUDGETS)
    assert "is missing or not a number in 3 of 900 rows" in str(refused.value)
    assert "is below 0 in" in str(refused.value)


@pytest.mark.parametrize("library", [np, jnp])
def test_charges_read_back_from_states_are_those_of_the_log(log: Log, library: object) -> None:
    encoder = Encoder.fit(log)
    charges = new_charges(BUDGETS, log.measured_names, log.catalogue, encoder)
    assert from_plain(Charges, to_plain(charges), "charges") == charges
    # What is measured of every action, as if it were what was measured of the logged one.
    measured = [np.tile(outcome, (len(ACTIONS), 1)) for outcome in log.measured]
    found = charges.outcomes(measured, encoder.encode(log), library)
    rows = np.arange(len(log))
    for name, own, expected in zip(log.outcome_names, found, log.outcomes, strict=True):
        np.testing.assert_allclose(np.asarray(own)[log.action, rows], expected, atol=1e-6, err_msg=name)


def by_hand(model: NeuralModel, charges: Charges, state: np.ndarray, prices: np.ndarray, left: int) -> np.ndarray:
    """Value and outcomes to go of every action, [1 + outcomes, actions], by walking through the model."""
    measured, _, successors = apply_steps(model, state[None])
    measured = measured[:, 0]
    now = np.stack(charges.outcomes(measured[..., None], state[None]))[..., 0]
    total = np.concatenate([(now[0] - prices @ now[1:])[None], now]).astype(np.float64)
    if left > 1:
        for action, following in enumerate(successors[0]):
            later = by_hand(model, charges, following, prices, left - 1)
            total[:, action] += later[:, later[0].argmax()]
    return total


def test_trees_charge_every_node_by_its_step_and_state(log: Log) -> None:
    encoder = Encoder.fit(log)
    budgets = tuple(budget for budget in BUDGETS if budget.column is None)
    model = random_model(encoder.layout, actions=3, hidden=((8,), (8,)), seed=3)
    charges = new_charges(budgets, ("reward", "cost"), log.catalogue, encoder)
    planner = TreePlanner(ChargedModel(model, charges), 3, 0.0, 3)
    prices = np.array([0.2, 0.05, 0.3, 0.1, 0.4, 0.15])
    states = encoder.encode(log)[log.starts[:4]]
    values, decided = planner.values(states, 3, prices[None]), planner.decided(states, 3, prices[None])
    for row, state in enumerate(states):
        truth = by_hand(model, charges, state, prices, 3)
        np.testing.assert_allclose(values.q[row, 0], truth[0], atol=2e-5)
        np.testing.assert_allclose(values.to_go[:, row, 0], truth[1:], atol=2e-5)
        alone = planner.decided(state[None], 3, prices[None], waiting=True)
        np.testing.assert_allclose(alone.outcomes[:, 0], decided.outcomes[:, row], atol=1e-5)
    np.testing.assert_allclose(decided.probabilities, values.probabilities, atol=1e-6)


def test_charges_of_what_there_is_not_are_refused(log: Log) -> None:
    decoding = new_charges((), ("reward", "cost"), log.catalogue, Encoder.fit(log)).decoding
    for odd in (Charge("x", measured=2), Charge("x", measured=None, counted=(3,))):
        with pytest.raises(ModelError, match="that does not exist"):
            Charges((odd,), 2, 3, decoding)


def test_a_flag_that_is_unlikely_is_not_one(table: pl.DataFrame) -> None:
    """States of nodes are expected ones: 0.4 of a flag is nobody's."""
    log = log_from_frame(table.drop("shipping").with_columns(trusted=pl.col("visits") % 2 == 0))
    encoder = Encoder.fit(log)
    place = [number.name for number in encoder.numbers].index("trusted")
    column = state_places(encoder.numbers, encoder.categories, encoder.layout).numbers[place]
    number, states = encoder.numbers[place], np.repeat(encoder.encode(log)[:1], 4, axis=0)
    states[:, column] = (np.array([0.0, 0.4, 0.6, 1.0]) - number.mean) / number.scale
    condition = parse_condition("trusted")
    assert decoding_for(encoder, (condition,)).holds(condition, states).tolist() == [False, False, True, True]
