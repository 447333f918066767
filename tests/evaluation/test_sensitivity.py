"""What hidden causes of assignment could do to a cost: against a linear program, and against a known confounder."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy.optimize import linprog

from redenvelope import log_from_frame
from redenvelope.evaluation.data import off_policy_data
from redenvelope.evaluation.evaluate import evaluate
from redenvelope.evaluation.sensitivity import LARGEST_ODDS, WeighedErrors, hidden_odds, weighed_errors
from redenvelope.log.log import Log


@pytest.mark.parametrize("odds", [1.0, 1.2, 2.0, 5.0])
def test_the_shift_is_that_of_the_worst_weights_with_the_same_mean(odds: float) -> None:
    rng = np.random.default_rng(0)
    rows = 200
    chance, errors = rng.uniform(0.1, 0.9, rows), np.sort(rng.standard_normal(rows))
    weights = 1 / chance / rows
    # Weights change by factors within these bounds, and their sum does not.
    lower, upper = chance + (1 - chance) / odds, chance + (1 - chance) * odds
    worst = linprog(
        -weights * errors, A_eq=[weights], b_eq=[weights.sum()], bounds=list(zip(lower, upper, strict=True))
    )
    expected = -worst.fun - float(weights @ errors)
    assert WeighedErrors(errors, weights * (1 - chance)).shift(odds) == pytest.approx(expected, abs=1e-9)


def confounded(gamma: float, users: int = 20_000) -> Log:
    """Users of one kind cost 2 under the offer, the others 1; no column shows which. Dear ones got it with odds that
    are lower by gamma than the logged ones, cheap ones with odds that are higher."""
    rng = np.random.default_rng(3)
    dear = rng.random(users) < 0.5
    odds = np.where(dear, 1 / gamma, gamma)
    action = rng.random(users) < odds / (1 + odds)
    return log_from_frame(
        pl.DataFrame(
            {
                "user": np.arange(users),
                "step": 0,
                "action": action.astype(int),
                "propensity": 0.5,  # half of the users get it, as logged
                "reward": rng.random(users),
                "cost": np.where(action, 1.0 + dear, 0.0) + rng.uniform(0, 0.1, users),
                "x": rng.random(users),
            }
        )
    )


@pytest.mark.parametrize("gamma", [1.2, 1.5, 2.0])
def test_a_confounder_of_a_known_strength_stays_within_its_bound(gamma: float) -> None:
    log = confounded(gamma)
    everybody = np.tile([0.0, 1.0], (len(log), 1))[:, None]
    found = evaluate(off_policy_data(log, everybody), "trajectory")
    # The offer to everybody costs 1.55. Of those who got it, 1 / (1 + gamma) are dear: the estimate is lower by this.
    bias = 0.5 - 1 / (1 + gamma)
    assert found.value[1, 0] == pytest.approx(1.55 - bias, abs=4 * found.standard_error[1, 0])
    parts = weighed_errors(found, log, np.ones(1))
    shift, none = (sum(part.shift(odds) for part in parts[1]) for odds in (gamma, 1.0))
    # The worst that odds within gamma can do is what this confounder does: the bound is sharp, up to the noise of 0.1
    # in the costs and of the shares of 10,000 users.
    assert none == 0
    assert shift == pytest.approx(bias, abs=0.01)
    # The room that the bias takes is used up at these odds.
    assert hidden_odds(found, log, np.ones(1), [bias]) == pytest.approx(gamma, rel=0.05)


def test_a_budget_without_room_needs_no_confounder_and_a_wide_one_bears_any() -> None:
    log = confounded(1.0, users=2_000)
    found = evaluate(off_policy_data(log, np.tile([0.0, 1.0], (len(log), 1))[:, None]), "trajectory")
    assert hidden_odds(found, log, np.ones(1), [0.0]) == 1.0
    assert hidden_odds(found, log, np.ones(1), [100.0]) == LARGEST_ODDS
