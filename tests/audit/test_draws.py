"""What could be drawn and what a draw depended on: calendars, lists and rules of eligibility, and the past."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from redenvelope import Log, Rule, audit_log, log_from_frame
from redenvelope.audit.overlap import never_given
from redenvelope.audit.randomization import past_dependence
from redenvelope.fitting.certify import _about_propensities
from redenvelope.fitting.learn import as_logged_under
from redenvelope.log.columns import ColumnMap

LABELS = np.array(["none", "push", "coupon"])
COSTS = np.array([0.0, 1.0, 3.0])


def frame(odds: np.ndarray, seed: int = 0, **columns: object) -> pl.DataFrame:
    """Draws with odds [users, steps, actions]; costs are those of the actions, rewards are noise."""
    rng = np.random.default_rng(seed)
    users, steps, _ = odds.shape
    flat = odds.reshape(users * steps, -1) / odds.sum(axis=2).reshape(-1, 1)
    action = (rng.random(len(flat))[:, None] > flat.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    return pl.DataFrame(
        {
            "user": np.repeat(np.arange(users), steps),
            "step": np.tile(np.arange(steps), users),
            "action": LABELS[action],
            "propensity": flat[np.arange(len(flat)), action],
            "reward": rng.random(len(flat)),
            "cost": COSTS[action],
            "x": rng.random(len(flat)),
            **columns,
        }
    )


def calendar(users: int = 3_000) -> np.ndarray:
    """Coupons in the second and the fifth of six steps, pushes in the others: neither rises or falls with the step."""
    by_step = np.array([[6, 3, 1], [2, 1, 7], [6, 3, 1], [6, 3, 1], [2, 1, 7], [6, 3, 1]], dtype=float)
    return np.broadcast_to(by_step, (users, 6, 3))


def test_the_step_is_a_category_where_propensities_are_estimated() -> None:
    table = frame(calendar())
    log = log_from_frame(table.drop("propensity"), estimate_propensity=True)
    truth = table["propensity"].to_numpy()
    # 18 shares of 3,000 draws each: √(0.24 / 3,000) = 0.009. With the step as a number the error is 0.2.
    assert np.sqrt(((log.propensity - truth) ** 2).mean()) < 0.015
    # Features beyond the step say nothing, and cost next to nothing.
    evidence = audit_log(log_from_frame(table)).assignment
    assert abs(evidence.gain) < 0.005 and evidence.looks_random


def listed(seed: int = 0, name: str = "allowed_offers") -> pl.DataFrame:
    """Half of the rows may not get a coupon; the logger draws evenly among what is left."""
    rng = np.random.default_rng(100 + seed)  # not the numbers that actions are drawn with
    allowed = rng.random((4_000, 2)) < 0.5
    odds = np.ones((4_000, 2, 3))
    odds[:, :, 2] = allowed
    lists = [list(LABELS) if may else ["none", "push"] for may in allowed.ravel()]
    return frame(odds, seed, **{name: pl.Series(lists, dtype=pl.List(pl.String))})


@pytest.mark.parametrize("as_text", [False, True])
def test_lists_of_eligible_actions_may_have_any_name(as_text: bool) -> None:
    table = listed()
    if as_text:
        table = table.with_columns(pl.col("allowed_offers").list.join("|"))
    named = log_from_frame(table, ColumnMap.parse("eligible=allowed_offers"))
    usual = log_from_frame(listed(name="eligible"))
    assert named.eligible is not None and usual.eligible is not None
    np.testing.assert_array_equal(named.eligible, usual.eligible)
    assert named.features.names == usual.features.names == ("x",)


def test_a_list_that_the_table_lacks_is_said() -> None:
    with pytest.raises(Exception, match="allowed"):
        log_from_frame(listed().rename({"allowed_offers": "allowed_offer"}), ColumnMap.parse("eligible=allowed_offers"))


def test_eligibility_counts_in_calibration_and_in_what_one_fixed_action_costs() -> None:
    found = audit_log(log_from_frame(listed(), ColumnMap.parse("eligible=allowed_offers")))
    assert not any(entry.is_off for entry in found.calibration)
    # Coupons to all who may get one, two steps: half of 3 each, and nothing for the others; a push is for everybody.
    assert found.cheapest_cost == pytest.approx(0.0)
    assert found.dearest_cost == pytest.approx(2 * 0.5 * 3, abs=0.05)
    # Drawn among two or three: the uniform policy among what is eligible is the logger itself, and keeps everybody.
    assert [step.uniform for step in found.overlap] == pytest.approx([4_000, 4_000])
    ignored = audit_log(log_from_frame(listed().drop("allowed_offers")))
    assert any(entry.is_off for entry in ignored.calibration)


def tenured(broken: float = 0.0) -> Log:
    """Coupons only after 30 days, but for a share of the rows of others."""
    rng = np.random.default_rng(1)
    tenure = rng.integers(0, 100, 4_000)
    odds = np.ones((4_000, 1, 3))
    odds[:, 0, 2] = np.where(tenure >= 30, 1.0, broken)
    return log_from_frame(frame(odds, tenure=tenure, segment=np.where(tenure < 30, "new", "old")))


RULES = (Rule(("coupon",), only_where="tenure >= 30"),)


def test_rules_in_force_count_in_calibration() -> None:
    log = tenured()
    assert any(entry.is_off for entry in audit_log(log).calibration)
    under = as_logged_under(log, RULES)
    assert not any(entry.is_off for entry in audit_log(under).calibration)
    assert audit_log(under).dearest_cost == pytest.approx(0.7 * 3, abs=0.1)
    # A rule that the logger did not keep is new: what it forbids could be drawn.
    broken = as_logged_under(tenured(broken=0.5), RULES)
    assert broken.eligible is None or broken.eligible.all()
    assert as_logged_under(log, ()) is log


def test_groups_that_never_got_an_action_are_named_with_the_rule() -> None:
    found = {(one.label, one.group): one for one in never_given(tenured())}
    assert set(found) == {("coupon", "segment == 'new'"), ("coupon", "tenure < 30")}
    number = found["coupon", "tenure < 30"]
    assert number.rule == 'actions = ["coupon"], only_where = "tenure >= 30"'
    assert number.rows == pytest.approx(1_200, abs=100)
    (finding, *_) = [each for each in audit_log(tenured()).findings if each.rule == "action_never_given"]
    assert "only_where" in finding.remedy
    # Whoever says so is not asked again; and nobody is asked where everybody could get everything.
    assert never_given(as_logged_under(tenured(), RULES)) == ()
    assert never_given(log_from_frame(frame(calendar()))) == ()
    steps = calendar().copy()
    steps[:, 3, 2] = 0.0
    assert [one.group for one in never_given(log_from_frame(frame(steps)))] == ["step == 3"]


def confounded(strength: float, told: bool, seed: int = 0, users: int = 4_000) -> Log:
    """A coupon is likelier after a good step; the propensity knows of that, or not."""
    rng = np.random.default_rng(seed)
    steps, rows = 3, []
    reward = np.zeros(users)
    for step in range(steps):
        chance = np.clip(0.4 + strength * (reward > 0.5) * (step > 0), 0.05, 0.95)
        action = rng.random(users) < chance
        shown = chance if told else np.full(users, chance.mean())
        propensity = np.where(action, shown, 1 - shown)
        reward = rng.random(users)
        columns = {"user": np.arange(users), "step": step, "action": action.astype(int), "propensity": propensity}
        rows.append(pl.DataFrame(columns | {"reward": reward, "cost": action * 1.0, "x": rng.random(users)}))
    return log_from_frame(pl.concat(rows))


def test_draws_that_depend_on_the_past_are_found() -> None:
    found = {one.column: one for one in past_dependence(confounded(0.2, told=False))}
    assert found["reward"].is_beyond_chance
    # Odds of .4 and .6 around .5: off by a fifth.
    assert found["reward"].size == pytest.approx(0.2, abs=0.04)
    assert not found["cost"].is_beyond_chance and not found["action"].is_beyond_chance
    rules = [each.rule for each in audit_log(confounded(0.2, told=False)).findings]
    assert rules.count("draws_depend_on_past") == 1


def test_a_logger_that_adapts_and_says_so_is_no_confounder() -> None:
    """Nor are a calendar, or plain chance: of 60 tests, none is beyond it."""
    logs = [confounded(0.2, told=True, seed=seed) for seed in range(9)]
    logs += [confounded(0.0, told=False, seed=seed) for seed in range(10)] + [log_from_frame(frame(calendar()))]
    assert not any(one.is_beyond_chance for log in logs for one in past_dependence(log))
    assert past_dependence(tenured()) == (), "nobody has two steps"


def test_a_remedy_never_names_what_was_done_already() -> None:
    log = log_from_frame(listed().drop("allowed_offers"))
    told = [each.remedy for each in audit_log(log).findings if each.rule == "propensity_miscalibrated"]
    assert told and all("--estimate-propensity" in remedy for remedy in told)
    estimated = audit_log(replace(log, propensity_source="estimated"))
    told = [each.remedy for each in estimated.findings if each.rule == "propensity_miscalibrated"]
    assert told and not any("--estimate-propensity" in remedy for remedy in told)
    refusals = [each.message for each in _about_propensities(estimated)]
    assert refusals and not any("--estimate-propensity" in message for message in refusals)
