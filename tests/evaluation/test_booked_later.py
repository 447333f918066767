"""Costs booked a step later, by a state that is gone by then: one product of ratios makes the estimate right."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.evaluation.data import gather
from redenvelope.evaluation.evaluate import checking_estimators, evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised

STEPS, USERS = 4, 6_000


def test_the_step_before_is_weighed_exactly() -> None:
    """A coin sends; the plan sends to the keen alone, for whom an envelope costs 3 and not 1, a step later. Who is keen
    is drawn anew at every step, so that no state tells anything of the step before."""
    generator = np.random.default_rng(3)
    keen = generator.random((USERS, STEPS)) < 0.5
    action = generator.integers(2, size=(USERS, STEPS))
    cost = np.zeros((USERS, STEPS))
    cost[:, 1:] = (action * np.where(keen, 3.0, 1.0))[:, :-1]
    rows = USERS * STEPS
    data = gather(
        starts=np.arange(USERS + 1) * STEPS,
        keys=np.arange(USERS),
        action=action.ravel(),
        propensity=np.full(rows, 0.5),
        outcomes=np.stack([np.zeros(rows), cost.ravel()]),
        probabilities=np.stack([1.0 - keen.ravel(), keen.ravel()], axis=1).astype(float),
        to_go=np.zeros((2, rows, 2)),
        features=keen.reshape(-1, 1).astype(float),
    )
    truth = (STEPS - 1) * 0.5 * 3.0
    estimators = [Marginalised(), Marginalised().looking_back(1), "doubly_robust"]
    found = evaluate_partitions([data], estimators)
    by_state, by_step, by_all = found.values()
    assert by_state.value[1, 0] < truth - 10 * by_state.standard_error[1, 0]
    assert abs(by_step.value[1, 0] - truth) < 3 * by_step.standard_error[1, 0]
    # Fewer ratios in a product, less noise.
    assert by_step.moments.standard_error[1, 0] < 0.7 * by_all.moments.standard_error[1, 0]


@pytest.mark.parametrize("window", [0, 1, 2])
def test_an_estimator_is_known_by_its_name(window: int) -> None:
    estimator = Marginalised(seed=5).looking_back(window)
    assert Marginalised.named(estimator.name, 5) == estimator
    longer = [each.window for each in checking_estimators(estimator, 9) if isinstance(each, Marginalised)]
    assert longer == [each for each in (1, 2, 3) if each > window]
