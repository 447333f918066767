"""Plans with rules on networks that were never trained: what they prefer is no matter, only what they may give."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from redenvelope import Encoder, Log, Plan, Pricing, Rule, log_from_frame
from redenvelope.models.neural_model import known_moves
from redenvelope.plan.policy import DeployedPolicy, LearnedSource, ModelSource, PolicySpecification
from tests.random_networks import random_model, random_values

LABELS = ("none", "push", "5 off", "10 off")
STEPS = 4


def rows_at(step: int, users: int, seed: int) -> pl.DataFrame:
    """Users with what is known of them at a step; some of it is missing."""
    fixed, rng = np.random.default_rng(seed), np.random.default_rng((seed, step))
    segment = fixed.choice(np.array(["new", "old", "lost"], dtype=object), users)
    tenure = fixed.integers(0, 90, users).astype(float)
    visits = rng.integers(0, 10, users).astype(float)
    visits[rng.random(users) < 0.1] = np.nan
    return pl.DataFrame(
        {
            "user": np.arange(users),
            "step": np.full(users, step),
            "segment": segment,
            "tenure": tenure,
            "visits": visits,
            "member": rng.random(users) < 0.5,
        }
    ).with_columns(pl.col("visits").fill_nan(None))


@cache
def small_log(users: int = 300) -> Log:
    frame = pl.concat([rows_at(step, users, 0) for step in range(STEPS)])
    rng, rows = np.random.default_rng(1), len(frame)
    action = rng.integers(0, 4, rows)
    return log_from_frame(
        frame.with_columns(
            action=pl.Series(np.array(LABELS, dtype=object)[action]),
            propensity=pl.lit(0.25),
            reward=pl.Series(rng.random(rows)),
            cost=pl.Series(action + rng.random(rows) * 0.1),
        )
    )


@cache
def _source(kind: str) -> tuple[Encoder, Any]:
    encoder = Encoder.fit(small_log())
    encoder = encoder.with_history(small_log())
    if kind == "learned":
        values = random_values(encoder.layout, 0.2, actions=len(LABELS), steps=STEPS)
        return encoder, LearnedSource(values)
    model = random_model(encoder.layout, len(LABELS), hidden=((8,), (8,)))
    return encoder, ModelSource(replace(model, history=known_moves(encoder.history.moves, encoder.layout)))


def plan_with(rules: tuple[Rule, ...], explore: float = 0.3, kind: str = "model") -> Plan:
    """A plan that is nothing but its policy."""
    encoder, source = _source(kind)
    method = "learned" if kind == "learned" else "planned"
    specification = PolicySpecification(method, STEPS if kind == "learned" else 3, 0.2, STEPS, explore)
    catalogue = small_log().catalogue
    policy = DeployedPolicy(specification, source, encoder, catalogue, Pricing.at(0.3), rules)
    unasked, unrecorded = SimpleNamespace(budgets=()), SimpleNamespace(source=None, budgets=())
    return Plan(policy, unasked, None, None, unrecorded)  # type: ignore[arg-type]


CONDITIONS = {
    "tenure >= 30": lambda row: row["tenure"] >= 30,
    "segment == 'new' and not (visits > 3)": lambda row: (
        row["segment"] == "new" and row["visits"] is not None and not row["visits"] > 3
    ),
    "member or visits is null": lambda row: row["member"] or row["visits"] is None,
    "segment in ('new', 'old') and visits < 7": lambda row: (
        row["segment"] in ("new", "old") and row["visits"] is not None and row["visits"] < 7
    ),
    "step > 0 and tenure != 40": lambda row: row["step"] > 0 and row["tenure"] != 40,
}


def random_rules(seed: int) -> tuple[Rule, ...]:
    """One to four rules; sending nothing is always allowed."""
    rng = np.random.default_rng(seed)
    rules = []
    for _ in range(rng.integers(1, 5)):
        actions = tuple(rng.choice(LABELS[1:], rng.integers(1, 4), replace=False).tolist())
        kind = rng.integers(0, 4)
        if kind == 0:
            rules.append(Rule(actions, only_where=str(rng.choice(list(CONDITIONS)))))
        elif kind == 1:
            rules.append(Rule(actions, at_most=int(rng.integers(0, 3))))
        elif kind == 2:
            rules.append(Rule(actions, at_most=int(rng.integers(1, 3)), within=int(rng.integers(2, 5))))
        else:
            rules.append(Rule(actions, cooldown=int(rng.integers(1, 3))))
    return tuple(rules)


def breaks(rules: tuple[Rule, ...], row: dict[str, Any], past: list[str], action: str) -> bool:
    """By the words of the rules."""
    if row.get("eligible") is not None and action not in row["eligible"]:
        return True
    for rule in rules:
        if action not in rule.actions:
            continue
        if rule.only_where is not None:
            if not CONDITIONS[rule.only_where](row):
                return True
            continue
        window = rule.cooldown + 1 if rule.cooldown is not None else rule.within
        recent = past if window is None else past[max(0, len(past) - window + 1) :]
        if sum(given in rule.actions for given in recent) >= (1 if rule.cooldown is not None else rule.at_most):
            return True
    return False
