"""Evaluating a log: its evidence in partitions, so that tables of all actions are there for a few users at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.engine.engine import Engine
from redenvelope.errors import UsageError
from redenvelope.evaluation.estimate import Evaluation
from redenvelope.evaluation.estimator import Estimator
from redenvelope.evaluation.evaluate import evaluate_partitions
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.gather import gather
from redenvelope.log.log import Log
from redenvelope.policies.policy import Policy

__all__ = ["Decide", "Extent", "Featurise", "decide_by", "evaluate_log", "evidence_of", "partitions_of"]

Decide = Callable[[Log], tuple[NDArray[np.floating], NDArray[np.floating] | None]]
"""A log -> probabilities [rows, prices, actions], and outcomes to go of every action, the policy followed afterwards,
[outcomes, rows, prices, actions], or None."""
Featurise = Callable[[Log], NDArray[np.floating]]
"""A log -> what ratios of states are regressed on, [rows, features]."""

# Trees and tables of all actions are large; what is kept of them is not.
_USERS_PER_BATCH = 2_048


@dataclass(frozen=True, eq=False)
class Extent:
    """What a partition cannot know of the whole log."""

    steps: int
    """Steps of the longest user."""
    logged: NDArray[np.bool_]
    """Which actions the log holds, [actions]."""

    @classmethod
    def of(cls, log: Log) -> Extent:
        """The extent of a log that is whole."""
        return cls(int(log.lengths.max()), np.bincount(log.action, minlength=len(log.catalogue)) > 0)


def evidence_of(log: Log, decide: Decide, features: Featurise | None = None, extent: Extent | None = None) -> Evidence:
    """The evidence of a log; `extent` is that of the whole log of which this is a partition."""
    _refuse_gaps(log)
    extent = extent or Extent.of(log)
    probabilities, to_go = decide(log)
    logged = np.zeros(probabilities.shape[-1], dtype=bool)
    logged[: len(extent.logged)] = extent.logged
    return gather(
        starts=log.starts,
        keys=log.keys,
        action=log.action,
        propensity=log.propensity,
        outcomes=log.outcomes,
        outcome_names=log.outcome_names,
        probabilities=probabilities,
        to_go=to_go,
        features=None if features is None else features(log),
        logged_actions=logged,
        steps=extent.steps,
        estimated=log.propensity_source == "estimated",
    )


def partitions_of(
    log: Log, decide: Decide, features: Featurise | None = None, users: int = _USERS_PER_BATCH
) -> list[Evidence]:
    """The evidence of a log, `users` at a time."""
    _refuse_gaps(log)
    extent = Extent.of(log)
    return [evidence_of(batch, decide, features, extent) for batch in log.batches(users)]


def evaluate_log(
    log: Log,
    decide: Decide,
    estimators: Sequence[Estimator | str] = ("doubly_robust",),
    *,
    features: Featurise | None = None,
    discount: float = 1.0,
    users: int = _USERS_PER_BATCH,
    engine: Engine | None = None,
) -> dict[str, Evaluation]:
    """Evaluations of a log by name of estimator, decided on once and `users` at a time."""
    return evaluate_partitions(partitions_of(log, decide, features, users), estimators, discount, engine)


def decide_by(policy: Policy, encode: Callable[[Log], NDArray[np.float32]], last_step: int) -> Decide:
    """How a policy decides on logged rows: `encode` makes their states [rows, width]; `last_step` is the campaign's."""

    def decide(log: Log) -> tuple[NDArray[np.floating], None]:
        return policy.probabilities(encode(log), last_step - log.step + 1, log.eligible)[:, None], None

    return decide


def _refuse_gaps(log: Log) -> None:
    if log.has_gaps:
        raise UsageError(
            "steps of some users are missing from the log: what the missing rows cost and earned, and how likely they "
            "were, is unknown, so no sequence can be weighed; bring every step, or number the steps without gaps"
        )
