"""Diagnostics: effective users in closed form, and each reason against an estimate."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from redenvelope.evaluation.data import OffPolicyData, gather
from redenvelope.evaluation.diagnostics import Diagnostics, Weight, diagnose
from redenvelope.evaluation.evaluate import evaluate
from redenvelope.evaluation.marginalised import Marginalised

from .cells import MeansByCell
from .conftest import World


def make(users: int, steps: int, policy: list[float], logger: list[float], **changes) -> OffPolicyData:
    """A log of equal users: every row drawn from `logger`, weighed for `policy`."""
    generator = np.random.default_rng(0)
    rows = users * steps
    action = generator.choice(len(logger), size=rows, p=logger)
    content = {
        "starts": np.arange(0, rows + 1, steps),
        "keys": np.arange(users),
        "action": action,
        "propensity": np.array(logger)[action],
        "outcomes": np.stack([generator.random(rows), action]),
        "probabilities": np.tile(policy, (rows, 1)),
    }
    return gather(**(content | changes))


def rules(data: OffPolicyData) -> dict[str, Weight]:
    return {reason.rule: reason.weight for reason in diagnose(data).reasons()}


def test_effective_users_in_closed_form() -> None:
    """Always one of two equally likely actions: half of the users are left after each step."""
    found = diagnose(make(4_000, 3, [1.0, 0.0], [0.5, 0.5]))
    matching = [np.count_nonzero(found.sums[step] > 0) for step in range(3)]
    assert matching == [1, 1, 1]
    np.testing.assert_allclose(found.effective_users[:, 0], [2000, 1000, 500], rtol=0.1)
    np.testing.assert_allclose(found.largest[:, 0], [2, 4, 8])
    np.testing.assert_allclose(found.mean_weight[:, 0], 1.0, atol=0.2)
    assert float(found.largest_share[0]) == pytest.approx(1 / 500, rel=0.1)


def test_leavers_keep_their_weight(leaving_world: World) -> None:
    drawn = leaving_world.draw(5_000, seed=1)
    found = diagnose(drawn.data(None))
    errors = np.sqrt(found.squares) / found.users
    assert (np.abs(found.mean_weight - 1) < 4 * errors).all()


def test_batches_merge_to_the_same(leaving_world: World) -> None:
    data = leaving_world.draw(30, seed=2).data(None)
    whole = diagnose(data)
    merged = reduce(Diagnostics.merge, [diagnose(batch) for batch in data.batches(7)])
    for name in ("effective_users", "mean_weight", "largest_share", "unlogged", "clipped"):
        np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), rtol=1e-12)
    assert (merged.users, merged.rows) == (whole.users, whole.rows)


def test_marginalised_weights_amount_to_more_users(leaving_world: World) -> None:
    data = leaving_world.draw(2_000, seed=3).data(0.0)
    found = evaluate(data, Marginalised(MeansByCell())).diagnostics
    assert (found.effective_users[-1] > diagnose(data).effective_users[-1]).all()
    assert (found.users, found.rows) == (2_000, data.rows)


def test_nothing_against_a_good_log() -> None:
    assert rules(make(2_000, 2, [0.4, 0.6], [0.5, 0.5])) == {}


def test_deterministic_log() -> None:
    assert rules(make(500, 1, [0.5, 0.5], [1.0, 0.0]))["deterministic_log"] is Weight.REFUSAL


def test_deterministic_log_of_the_policy_itself() -> None:
    assert rules(make(500, 1, [1.0, 0.0], [1.0, 0.0])) == {}


@pytest.mark.parametrize(("share", "weight"), [(0.3, Weight.REFUSAL), (0.005, Weight.WARNING)])
def test_mass_on_an_unlogged_action(share: float, weight: Weight) -> None:
    found = rules(make(2_000, 1, [0.5 - share / 2, 0.5 - share / 2, share], [0.5, 0.5, 0.0]))
    assert found["unlogged_action"] is weight


def test_action_never_given_in_some_states() -> None:
    """Both actions are logged, but the first half of the users never gets the second: mean weight 0.75."""
    users = 4_000
    logger = np.where(np.arange(users)[:, None] < users // 2, [1.0, 0.0], [0.5, 0.5])
    action = (np.random.default_rng(0).random(users) < logger[:, 1]).astype(int)
    data = make(users, 1, [0.5, 0.5], [0.5, 0.5], action=action, propensity=logger[np.arange(users), action])
    found = diagnose(data).reasons()
    assert [reason.rule for reason in found] == ["weights_off"]
    assert "eligible" in str(found[0])


def test_wrong_propensities() -> None:
    data = make(4_000, 2, [0.5, 0.5], [0.5, 0.5], propensity=np.full(8_000, 0.8))
    assert rules(data)["weights_off"] is Weight.REFUSAL


@pytest.mark.parametrize(("users", "steps", "weight"), [(2_000, 8, Weight.REFUSAL), (4_000, 6, Weight.WARNING)])
def test_thin_overlap(users: int, steps: int, weight: Weight) -> None:
    """One action of two, at every step: users / 2^steps are left, about 8 and 62."""
    found = rules(make(users, steps, [1.0, 0.0], [0.5, 0.5]))
    assert found["thin_overlap"] is weight


def test_one_heavy_user() -> None:
    propensity = np.full(1_000, 0.5)
    propensity[3] = 0.002
    assert rules(make(1_000, 1, [0.5, 0.5], [0.5, 0.5], propensity=propensity))["heavy_weight"] is Weight.WARNING


def test_clipping_and_estimated_propensities_are_told() -> None:
    data = make(1_000, 1, [0.4, 0.6], [0.5, 0.5], estimated=True)
    assert rules(data)["estimated_propensities"] is Weight.WARNING
    assert rules(data.clip(1.0))["clipped"] is Weight.WARNING


def test_one_user_and_no_variance() -> None:
    one = evaluate(make(1, 1, [0.5, 0.5], [0.5, 0.5]), "per_decision").reasons("reward")
    assert any(reason.rule == "one_user" and reason.weight is Weight.REFUSAL for reason in one)
    constant = make(500, 1, [0.5, 0.5], [0.5, 0.5], outcomes=np.stack([np.zeros(500), np.ones(500)]))
    (reason,) = evaluate(constant, "per_decision").reasons("reward")
    assert (reason.rule, reason.weight) == ("no_variance", Weight.WARNING)


def test_no_overlap_at_all() -> None:
    data = make(500, 1, [0.0, 0.0, 1.0], [0.5, 0.5, 0.0])
    found = evaluate(data, "self_normalised_per_decision")
    assert np.isnan(found.estimate("cost").estimate)
    refused = {reason.rule for reason in found.reasons("cost") if reason.weight is Weight.REFUSAL}
    assert {"no_overlap", "unlogged_action", "thin_overlap"} <= refused
