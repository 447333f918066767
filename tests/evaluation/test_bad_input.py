"""Every kind of bad input meets a refusal or a warning in words, whatever the estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from redenvelope import UsageError
from redenvelope.evaluation.data import OffPolicyData, gather
from redenvelope.evaluation.diagnostics import Weight
from redenvelope.evaluation.evaluate import ESTIMATORS, Evaluation, evaluate, evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised

ALL = ESTIMATORS | {"marginalised": Marginalised()}
EVERY = list(ALL)
WEIGHING = [name for name in EVERY if name != "direct"]


def make(users: int, steps: int, policy: list[float], logger: list[float], **changes: Any) -> OffPolicyData:
    """Rows drawn from `logger`, weighed for `policy`, with a baseline that knows nothing."""
    generator = np.random.default_rng(0)
    rows = users * steps
    action = generator.choice(len(logger), size=rows, p=logger)
    probabilities = np.tile(policy, (rows, 1))
    content = {
        "starts": np.arange(0, rows + 1, steps),
        "keys": np.arange(users),
        "action": action,
        "propensity": np.array(logger)[action],
        "outcomes": np.stack([generator.random(rows), action + generator.random(rows)]),
        "probabilities": probabilities,
        "to_go": np.zeros((2, *probabilities.shape)),
        # States tell nothing but a constant.
        "features": np.zeros((rows, 1)),
    }
    return gather(**(content | changes))


def estimate(name: str, data: OffPolicyData) -> Evaluation:
    return evaluate(data, ALL[name])


def is_refused(found: Evaluation, outcome: str = "cost") -> bool:
    return any(reason.weight is Weight.REFUSAL for reason in found.reasons(outcome))


def message(found: Evaluation, rule: str, outcome: str = "cost") -> str:
    texts = [reason.message for reason in found.reasons(outcome) if reason.rule == rule]
    assert texts, f"{found.estimator.name} does not say {rule}: {found.reasons(outcome)}"
    return texts[0]


@pytest.mark.parametrize("name", WEIGHING)
def test_a_deterministic_log_is_refused(name: str) -> None:
    found = estimate(name, make(300, 2, [0.5, 0.5], [1.0, 0.0]))
    assert is_refused(found)
    assert "probability 1" in message(found, "deterministic_log")


def test_percentages_are_refused_before_anything_is_estimated() -> None:
    with pytest.raises(UsageError, match="percentages: divide them by 100"):
        make(10, 2, [0.5, 0.5], [0.5, 0.5], propensity=np.full(20, 50.0))


@pytest.mark.parametrize("name", [name for name in WEIGHING if name != "marginalised"])
def test_thin_overlap_is_refused(name: str) -> None:
    """One action of two at eight steps: about 8 of 2,000 users are left."""
    found = estimate(name, make(2_000, 8, [1.0, 0.0], [0.5, 0.5]))
    assert is_refused(found)
    assert "users amount to" in message(found, "thin_overlap")


def test_thin_overlap_within_a_step_is_refused_with_marginalised_ratios_too() -> None:
    """One chance in a hundred: about 20 of 2,000 users are left, however the steps are joined."""
    found = estimate("marginalised", make(2_000, 2, [0.0, 1.0], [0.99, 0.01]))
    assert is_refused(found)
    assert "users amount to" in message(found, "thin_overlap")


@pytest.mark.parametrize("name", WEIGHING)
def test_mass_on_an_unlogged_action_is_refused(name: str) -> None:
    found = estimate(name, make(500, 2, [0.3, 0.3, 0.4], [0.5, 0.5, 0.0]))
    assert is_refused(found)
    assert "40.00% of its decisions" in message(found, "unlogged_action")


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("more_robust", "marginalised")])
def test_one_user_has_no_error_and_is_refused(name: str) -> None:
    found = estimate(name, make(1, 2, [0.5, 0.5], [0.5, 0.5]))
    assert is_refused(found)
    assert "at least 2 users" in message(found, "one_user")
    bounds = found.estimate("cost")
    assert (bounds.lower, bounds.upper) == (-np.inf, np.inf)


@pytest.mark.parametrize("name", ["more_robust", "marginalised"])
def test_one_user_is_too_few_to_learn_from_others(name: str) -> None:
    with pytest.raises(UsageError, match="at least 5 users, not 1"):
        estimate(name, make(1, 2, [0.5, 0.5], [0.5, 0.5]))


@pytest.mark.parametrize("name", EVERY)
def test_no_variance_is_told(name: str) -> None:
    """Nobody ever earned anything: an interval without width, and a warning."""
    nothing = np.stack([np.zeros(1_000), np.random.default_rng(0).random(1_000)])
    found = estimate(name, make(500, 2, [0.4, 0.6], [0.5, 0.5], outcomes=nothing))
    assert not is_refused(found, "reward")
    assert "every user adds the same reward" in message(found, "no_variance", "reward")
    reward = found.estimate("reward")
    assert reward.lower == reward.upper == reward.estimate == 0


@pytest.mark.parametrize("name", EVERY)
def test_a_good_log_meets_no_refusal(name: str) -> None:
    found = estimate(name, make(2_000, 2, [0.4, 0.6], [0.5, 0.5], to_go=known()))
    assert not is_refused(found)
    assert all(reason.rule == "baseline_believed" for reason in found.reasons("cost"))


def known() -> np.ndarray:
    """Values that differ between rows, so that even the direct method has an error, [outcomes, rows, actions]."""
    values = np.random.default_rng(1).random((4_000, 2))
    return np.stack([values, values])


def test_estimating_together_refuses_the_same() -> None:
    data = make(300, 2, [0.5, 0.5], [1.0, 0.0])
    for name, found in evaluate_partitions([data], list(ALL.values())).items():
        reasons = [reason.rule for reason in found.reasons("cost") if reason.weight is Weight.REFUSAL]
        assert ("deterministic_log" in reasons) == (name in WEIGHING)
