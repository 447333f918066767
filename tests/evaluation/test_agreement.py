"""The check on the check: a habit that the state does not show is caught, a state that tells all raises no alarm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.evaluation.data import OffPolicyData, gather
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.evaluate import (
    Agreement,
    agreement,
    checking_estimators,
    choose_estimator,
    evaluate_partitions,
    paired_agreement,
)
from redenvelope.evaluation.marginalised import Marginalised

from .conftest import World

STEPS, SENT = 4, 0.8
NAMES = ("first", "second")


def drawn(users: int, growth: float, seed: int) -> OffPolicyData:
    """Envelopes at a coin's flip, weighed for a plan that sends 80 %. Sending warms, which the state shows; each
    envelope received makes the next dearer by `growth`, which it does not. Nothing is known beforehand: no baseline."""
    generator = np.random.default_rng([seed, 5])
    warm, received = np.zeros((users, STEPS)), np.zeros((users, STEPS))
    action = generator.integers(2, size=(users, STEPS))
    for step in range(1, STEPS):
        received[:, step] = received[:, step - 1] + action[:, step - 1]
        warm[:, step] = generator.random(users) < 0.3 + 0.4 * action[:, step - 1]
    cost = action * (1 + warm + growth * received + 0.3 * generator.standard_normal((users, STEPS)))
    rows = users * STEPS
    return gather(
        starts=np.arange(users + 1) * STEPS,
        keys=np.arange(users),
        action=action.ravel(),
        propensity=np.full(rows, 0.5),
        outcomes=np.stack([warm.ravel(), cost.ravel()]),
        probabilities=np.tile([1 - SENT, SENT], (rows, 1)),
        to_go=np.zeros((2, rows, 2)),
        features=warm.reshape(-1, 1),
    )


def exact_cost(growth: float) -> float:
    warm = [0.0] + [0.3 + 0.4 * SENT] * (STEPS - 1)
    return sum(SENT * (1 + warm[step] + growth * SENT * step) for step in range(STEPS))


def agreements(data: OffPolicyData) -> list[Agreement]:
    own = Marginalised()
    others = checking_estimators(own, data.steps)
    found = evaluate_partitions(list(data.batches(1_000)), [own, *others])
    return [each for other in others for outcome in agreement(found[own.name], found[other.name]) for each in outcome]


@pytest.mark.parametrize("seed", range(3))
def test_a_hidden_habit_is_caught_and_the_sequential_estimate_is_right(seed: int) -> None:
    data = drawn(4_000, growth=0.5, seed=seed)
    found = evaluate_partitions([data], [Marginalised(), "doubly_robust"])
    off, right = (
        (found[name].value[1, 0] - exact_cost(0.5)) / found[name].standard_error[1, 0]
        for name in ("marginalised", "doubly_robust")
    )
    assert off < -4 and abs(right) < 3
    said = choose_estimator(agreements(data), found["doubly_robust"].reasons("cost"))
    assert said.rely_on == "sequential"
    assert [(reason.rule, reason.weight) for reason in said.reasons] == [("hidden_past", Weight.WARNING)]
    thin = Reason("thin_overlap", Weight.REFUSAL, "overlap is thin")
    refused = choose_estimator(said.agreements, [thin])
    assert refused.rely_on == "neither" and refused.reasons[0].weight is Weight.REFUSAL
    assert "overlap is thin" in refused.reasons[0].message


@pytest.mark.parametrize("seed", range(5))
def test_a_state_that_tells_all_raises_no_alarm(seed: int) -> None:
    said = choose_estimator(agreements(drawn(4_000, growth=0.0, seed=seed)), ())
    assert said.rely_on == "first" and said.reasons == ()


def test_false_alarms_are_as_rare_as_chance_says() -> None:
    """300 small campaigns whose state tells all, six comparisons each: at most 1.6 % by chance, and 9 is 3 %."""
    alarms = sum(choose_estimator(agreements(drawn(400, 0.0, seed)), ()).rely_on != "first" for seed in range(100, 400))
    assert alarms <= 9


def test_paired_by_hand() -> None:
    generator = np.random.default_rng(0)
    shared, small = generator.normal(5.0, 3.0, size=400), generator.normal(0.0, 0.1, size=400)
    found = paired_agreement(shared + small, shared, "cost", NAMES)
    assert found.difference == pytest.approx(small.mean())
    assert found.standard_error == pytest.approx(small.std(ddof=1) / 20)
    assert found.z == pytest.approx(small.mean() / (small.std(ddof=1) / 20), abs=0.05)
    same = paired_agreement(shared, shared, "cost", NAMES)
    assert same.z == 0 and same.is_noise
    # Every user adds more by the same: no chance about it; but a thousandth of the cost matters to nobody.
    assert not paired_agreement(shared + 1.0, shared, "cost", NAMES).is_noise
    assert paired_agreement(shared + 0.001, shared, "cost", NAMES).is_noise
    with pytest.raises(UsageError, match="paired by user"):
        paired_agreement(shared, shared[:5], "cost", NAMES)


def test_a_window_of_all_steps_is_sequential(leaving_world: World) -> None:
    data = leaving_world.draw(600, seed=1).data(0.5)
    whole = Marginalised(window=leaving_world.problem.steps - 1)
    found = evaluate_partitions(list(data.batches(200)), [whole, "doubly_robust"])
    np.testing.assert_allclose(found["marginalised"].value, found["doubly_robust"].value, rtol=1e-9)
    names = [item.name for item in checking_estimators(Marginalised(), 2)]
    assert names == ["doubly_robust"]
    assert len(checking_estimators(Marginalised(), 5)) == 4


def test_a_past_that_is_told_shows_a_hidden_habit_with_the_least_noise() -> None:
    data = drawn(4_000, growth=0.5, seed=11)
    received = np.zeros((4_000, STEPS))
    action = (data.ratio[:, 0] > 1).reshape(4_000, STEPS)  # the plan sends more often than a coin does
    received[:, 1:] = action[:, :-1].cumsum(axis=1)
    told = replace(data, past=received.reshape(-1, 1))
    own = Marginalised()
    others = checking_estimators(own, STEPS, knows_past=True)
    found = evaluate_partitions([told], [own, *others])
    cost = {other.name: agreement(found[own.name], found[other.name])[1][0] for other in others}
    first = cost.pop("marginalised, past known")
    assert not first.is_noise
    assert first.standard_error < cost["doubly_robust"].standard_error
    known = found["marginalised, past known"]
    # What the past tells makes the estimate right: four standard errors.
    assert abs(known.value[1, 0] - exact_cost(0.5)) < 4 * known.standard_error[1, 0]
    with pytest.raises(UsageError, match="pass `past` with the off-policy data"):
        evaluate_partitions([data], [others[0]])


def test_a_large_difference_is_no_noise_however_badly_it_is_known() -> None:
    """A third of the estimate, four standard errors: the error is 9 % of the estimate, and the difference real."""
    generator = np.random.default_rng(0)
    heavy = generator.normal(0, 1, 2_000) + np.where(np.arange(2_000) < 20, 60.0, 0.0)
    found = paired_agreement(np.full(2_000, 1.0) + heavy, np.full(2_000, 1.0), "cost", NAMES)
    assert found.standard_error > 0.05 * abs(found.value)
    assert not found.is_noise


@pytest.mark.parametrize(("outcome", "gap"), [("cost", 1.0), ("reward", -1.0)])
def test_an_estimate_that_errs_on_the_safe_side_certifies_with_a_warning(outcome: str, gap: float) -> None:
    """A cost too high or a reward too low, where the estimate by all earlier steps is of no use."""
    spread = np.random.default_rng(0).normal(5.0, 0.1, size=400)
    thin = Reason("thin_overlap", Weight.REFUSAL, "overlap is thin")
    safe, unsafe = (paired_agreement(spread + sign * gap, spread, outcome, NAMES) for sign in (1, -1))
    found = choose_estimator([safe], [thin])
    assert found.rely_on == "first" and [reason.weight for reason in found.reasons] == [Weight.WARNING]
    assert choose_estimator([safe, unsafe], [thin]).rely_on == "neither"
    assert choose_estimator([safe], []).rely_on == "sequential"
