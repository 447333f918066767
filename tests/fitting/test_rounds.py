"""Decisions are the next log: a pilot, then rounds of audit, fit, allocate and what comes of it, each from the last
log alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from redenvelope import Campaign, EnvelopeCampaign, Plan, Rule, audit_log, fit, log_from_frame
from redenvelope.log.findings import Severity
from redenvelope.simulate.dynamics import state_rows
from redenvelope.simulate.envelopes import envelope_frame

PILOT, USERS, BUDGET, ROUNDS = 6_000, 16_000, 5.0, 3
EXPLORE = 0.2
"""More than the usual share: what is learned from a plan's own log is learned from what was left to chance."""


def next_log(world: EnvelopeCampaign, plan: Plan, seed: int) -> pl.DataFrame:
    """What comes of a plan's decisions for users that nobody has seen, from the first step to the last."""
    users, generator = world._draw(USERS, 17, seed)
    everyone, rows = np.arange(USERS), []
    names = everyone + 1_000_000 * seed
    state = state_rows(users.habits, users.fatigues, np.zeros_like(users.habits))
    past: pl.DataFrame | None = None
    for step in range(world.steps):
        frame = envelope_frame(users, everyone, names, np.full(USERS, step), state)
        decisions, findings = plan.allocate(frame, seed, past)
        assert {finding.rule for finding in findings} <= {"serving_outside"}  # a few rare values
        action = np.array([world.actions.index(str(label)) for label in decisions["action"]])
        active, used, state = world.dynamics.happen(users, state, action, generator)
        came = decisions.drop("expected_reward", "expected_cost").with_columns(
            reward=pl.Series(active.astype(float)), cost=pl.Series(used * world.dynamics.amounts[action])
        )
        rows.append(came.hstack(frame.drop("user", "step")))
        earlier = came.select("user", "step", "action", "reward", "cost")
        past = earlier if past is None else pl.concat([past, earlier])
    return pl.concat(rows).sort("user", "step")


@pytest.mark.slow
def test_three_rounds_in_a_row_are_certified_and_do_not_fall() -> None:
    world = EnvelopeCampaign(population=100)
    rules = (Rule(("8",), only_where="tenure_days >= 30"), Rule(("5", "8"), at_most=2), Rule(("3",), cooldown=1))
    table, rewards = world.log(PILOT, seed=3), []
    for round_ in range(ROUNDS):
        log = log_from_frame(table)
        audited = audit_log(log)
        assert not [finding for finding in audited.findings if finding.severity is Severity.ERROR]
        assert not [finding for finding in audited.findings if finding.rule.startswith("propensity")]
        plan = fit(log, budget=BUDGET, campaign=Campaign(rules=rules, explore=EXPLORE))
        assert plan.certificate.is_certified, plan.certificate.sentence()
        table = next_log(world, plan, seed=round_ + 1)
        by_user = table.group_by("user").agg(pl.col("reward", "cost").sum())
        rewards.append((by_user["reward"].mean(), by_user["reward"].std() / np.sqrt(USERS)))
        # The budget bounds the mean; a realised campaign is off by its own chance.
        assert by_user["cost"].mean() <= BUDGET + 3 * by_user["cost"].std() / np.sqrt(USERS)
        print(round_, plan.certificate.cost, rewards[-1], by_user["cost"].mean(), plan.record.exploration)
    for (before, error), (after, other) in pairwise(rewards):
        assert after >= before - 3 * np.hypot(error, other)
