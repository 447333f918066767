"""Evaluating a log in batches of users: nothing needs all of them in memory at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError
from redenvelope.evaluation.diagnostics import diagnose
from redenvelope.evaluation.estimate import Estimator, Evaluation, estimator_named, evaluate
from redenvelope.evaluation.evidence import Evidence, gather
from redenvelope.evaluation.resampling import GROUPS, group_sums, user_groups
from redenvelope.log.log import Log
from redenvelope.policies.policy import Policy

__all__ = ["Decide", "decide_by", "evaluate_log", "evidence_of"]

Decide = Callable[[Log], tuple[NDArray[np.floating], Mapping[str, NDArray[np.floating]] | None]]
"""A log -> probabilities [rows, duals, actions] (or [rows, actions]), and values to go of every action, by target
and of the same shape, or None."""

_USERS_PER_BATCH = 8192


def evidence_of(log: Log, decide: Decide, whole: Log | None = None) -> Evidence:
    """The evidence of a log, reward and cost; `whole` is the log of which this is a batch."""
    whole = whole or log
    if whole.has_gaps:
        raise UsageError(
            "steps of some users are missing from the log: what the missing rows cost and earned, and how likely they "
            "were, is unknown, so no sequence can be weighed; bring every step, or number the steps without gaps"
        )
    probabilities, action_values = decide(log)
    actions = probabilities.shape[-1]
    return gather(
        starts=log.starts,
        action=log.action,
        propensity=log.propensity,
        outcomes={"reward": log.reward, "cost": log.cost},
        probabilities=probabilities,
        action_values=action_values,
        logged_actions=np.bincount(whole.action, minlength=actions) > 0,
        steps=int(whole.lengths.max()),
        estimated=log.propensity_source == "estimated",
    )


def evaluate_log(
    log: Log,
    decide: Decide,
    estimators: Sequence[Estimator | str] = ("doubly_robust",),
    *,
    discount: float = 1.0,
    users: int = _USERS_PER_BATCH,
    seed: int = 0,
) -> dict[str, Evaluation]:
    """Evaluations of a log by name of estimator, `users` at a time; sums by group are kept for the bootstrap."""
    chosen = [estimator_named(item) if isinstance(item, str) else item for item in estimators]
    whole = [item.name for item in chosen if not item.mergeable]
    if whole and users < len(log.users):
        raise UsageError(f"{', '.join(whole)} needs all users at once: use `evaluate` on their evidence")
    groups = user_groups(len(log.users), seed)
    count = min(len(log.users), GROUPS)
    merged: dict[str, Evaluation] = {}
    first = 0
    for batch in log.batches(users):
        evidence = evidence_of(batch, decide, log)
        here = groups[first : first + evidence.users]
        diagnostics = diagnose(evidence)
        for item in chosen:
            part = evaluate(evidence, item, discount, diagnostics)
            part = replace(part, kept=group_sums(part.terms, here, count))
            merged[item.name] = merged[item.name].merge(part) if item.name in merged else part
        first += evidence.users
    return merged


def decide_by(
    policy: Policy,
    encode: Callable[[Log], NDArray[np.float32]],
    last_step: int,
    action_values: Callable[[Log], Mapping[str, NDArray[np.floating]]] | None = None,
) -> Decide:
    """How a policy decides on logged rows: `encode` makes their states [rows, width]; `last_step` is the campaign's."""

    def decide(log: Log) -> tuple[NDArray[np.floating], Mapping[str, NDArray[np.floating]] | None]:
        steps_left = last_step - log.step + 1
        probabilities = policy.probabilities(encode(log), steps_left)
        return probabilities, None if action_values is None else action_values(log)

    return decide
