"""Decisions for a table of users: what each gets, with what probability, and what that is expected to cost and earn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from redenvelope.chance import draw, fraction, user_keys
from redenvelope.errors import ModelError, UsageError
from redenvelope.log.eligible import ELIGIBLE
from redenvelope.log.findings import EXAMPLES, Finding, Findings
from redenvelope.log.ids import read_steps, serving_ids
from redenvelope.log.relative import dates_of
from redenvelope.policies.policy import normalised
from redenvelope.policies.standing import allowed
from redenvelope.policies.standing_rows import StandingRows, standing_of_frame

if TYPE_CHECKING:
    from redenvelope.plan.plan import Plan

__all__ = ["ACTION_STREAM", "decide_frame", "expected_column", "require_numbers"]

ACTION_STREAM = "action"
"""Name of the stream that actions are drawn with."""


def decide_frame(
    plan: Plan, users: pl.DataFrame, seed: int, history: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, tuple[Finding, ...]]:
    """One decision a row (`user`, `step` and the features), and what was odd about the table.

    `history` are the users' earlier steps, where the plan decides by them.
    """
    _check(plan, users)
    users = users.with_columns(serving_ids(users["user"]))
    _refuse_twice(users)
    policy = plan.policy
    states, findings = policy.encoder.encode_frame(users, history)
    step = read_steps(users["step"]).to_numpy()
    keys, rows = user_keys(users["user"]), np.arange(len(users))
    followed = policy.pricing.drawn(keys, seed)
    found = standing_of_frame(policy.constraint, policy.encoder, plan.catalogue, users, history)
    decided = policy.valuer.decided(states, policy.steps_left(step), policy.pricing.table, found.standing)
    probabilities = normalised(decided.probabilities[rows, followed])
    action = draw(probabilities, fraction(keys, ACTION_STREAM, seed, step))
    labels = pl.Series("action", plan.catalogue.labels).gather(action)
    decisions = pl.DataFrame(
        {
            "user": users["user"],
            "step": users["step"],
            "action": _whole(labels.cast(pl.Float64)) if plan.catalogue.numeric else labels,
            "propensity": probabilities[rows, action],
            "expected_reward": decided.outcomes[0, rows, action].astype(np.float64),
            "expected_cost": decided.outcomes[1, rows, action].astype(np.float64),
            **{
                expected_column(name): decided.outcomes[place, rows, action].astype(np.float64)
                for place, name in enumerate(policy.several_budgets, start=1)
            },
        }
    )
    require_numbers(decisions["propensity"], decisions["expected_reward"], decisions["expected_cost"])
    if found.standing is None:
        return decisions, findings
    return decisions.with_columns(_listed(plan, found, states, step)), findings + _nothing_left(plan, found)


def expected_column(budget: str) -> str:
    """The column of what is expected to count against one of several budgets."""
    return f"expected_cost_{budget}"


def _listed(plan: Plan, found: StandingRows, states: NDArray[np.float32], step: NDArray[np.int64]) -> pl.Series:
    """What each user might have got: with it, decisions say by what rules they were made."""
    assert found.standing is not None
    policy = plan.policy
    mask = allowed(found.standing, policy.constraint, states, policy.steps_left(step))
    different, codes = np.unique(mask, axis=0, return_inverse=True)
    labels = np.array(plan.catalogue.labels, dtype=object)
    lists = pl.Series(ELIGIBLE, [labels[row].tolist() for row in different], dtype=pl.List(pl.String))
    return lists.gather(codes.reshape(-1))


def _nothing_left(plan: Plan, found: StandingRows) -> tuple[Finding, ...]:
    rows = np.flatnonzero(found.nothing)
    findings = Findings()
    if len(rows):
        findings.add(
            "serving_nothing_eligible",
            count=len(rows),
            rows=[int(row) + 1 for row in rows[:EXAMPLES]],
            label=plan.catalogue.labels[0],
        )
    return findings.sorted()


def require_numbers(*answers: ArrayLike) -> None:
    """Refuse decisions that are no numbers, [rows] each: what was learned is damaged, or beyond all bounds."""
    for answer in answers:
        wrong = np.flatnonzero(~np.isfinite(np.atleast_1d(np.asarray(answer, dtype=np.float64))))
        if len(wrong):
            raise ModelError(
                f"row {wrong[0] + 1:,}: what the plan learned gives no number for this user ({len(wrong)} row(s) like "
                "it); fit the plan again, or ask who made it"
            )


def _check(plan: Plan, users: pl.DataFrame) -> None:
    for name in ("user", "step"):
        if name not in users.columns:
            raise UsageError(f"the table of users has no column {name!r}; rename yours, or add it")
    encoder = plan.policy.encoder
    features = [number.name for number in encoder.numbers] + [category.name for category in encoder.categories]
    known = {*features, *(name for feature in features for name in dates_of(feature))}
    if features and not known & set(users.columns):
        raise ModelError(
            f"the table has none of the {len(features)} features the plan was made with ({features[0]}, …); "
            "join them to the users"
        )


def _refuse_twice(users: pl.DataFrame) -> None:
    rows = pl.DataFrame({"user": users["user"].cast(pl.String), "step": read_steps(users["step"])})
    twice = rows.select(pl.struct("user", "step").is_duplicated() & pl.col("step").is_not_null()).to_series()
    if twice.any():
        row = int(twice.arg_true()[0]) + 1
        raise ModelError(
            f"row {row}: {int(twice.sum())} row(s) share a user and step with another row; keep one row for each, "
            "or the user would be decided for twice"
        )


def _whole(labels: pl.Series) -> pl.Series:
    """Numeric labels as integers where they all are."""
    return labels.cast(pl.Int64) if (labels == labels.floor()).all() else labels
