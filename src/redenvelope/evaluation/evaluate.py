"""The one path of every estimate: partitions of users → sums → merged in order → value, error, bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.engine.engine import Engine
from redenvelope.errors import UsageError
from redenvelope.evaluation.diagnostics import Diagnostics, diagnose, merge_diagnostics
from redenvelope.evaluation.estimate import Evaluation
from redenvelope.evaluation.estimator import Estimator, Prepared
from redenvelope.evaluation.estimators import estimator_named
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.partitions import Partitions, as_partitions
from redenvelope.evaluation.people import design_effect, person_keys
from redenvelope.evaluation.terms import Moments, Terms, merge_moments

__all__ = ["evaluate", "evaluate_partitions"]


def evaluate_partitions(
    partitions: Sequence[Evidence] | Callable[[], Iterable[Evidence]],
    estimators: Sequence[Estimator | str] = ("doubly_robust",),
    discount: float = 1.0,
    engine: Engine | None = None,
) -> dict[str, Evaluation]:
    """What each estimator says, by name, about the policies of the evidence: all outcomes and prices at once.

    Partitions hold whole users; any number of them gives the same. They are a list, or are made anew for every pass:
    one for most estimators, before which some need others, and one more for a bootstrap or for what each user adds.
    """
    if not 0 < discount <= 1:
        raise UsageError(f"discount must be above 0 and at most 1, not {discount}")
    chosen = [estimator_named(item) if isinstance(item, str) else item for item in estimators]
    if len({item.name for item in chosen}) < len(chosen):
        raise UsageError("estimators are told apart by their names: give each another one")
    users = as_partitions(partitions, engine)
    prepared = [item.prepare(users, discount) for item in chosen]
    distinct = tuple(dict.fromkeys(prepared))
    found = users.reduce(lambda batch: _sums(batch, distinct, discount), _merged)
    keys = np.concatenate(found.keys)
    repeated = len(person_keys(keys)) < len(keys)
    results = {}
    for item, ready in zip(chosen, prepared, strict=True):
        moments, diagnostics = found.moments[ready], found.diagnostics[ready.weigh]
        moments, again = replace(moments, shares=item.shares(moments)), _again(ready, discount)
        if repeated:
            moments = moments.widened(design_effect(_influence(users, again, moments), keys))
        moments = moments.widened(item.caution)
        results[item.name] = Evaluation(item, found.outcome_names, moments, diagnostics, users, again)
    return results


def _influence(users: Partitions, terms: Callable[[Evidence], Terms], moments: Moments) -> NDArray[np.float64]:
    """How far each sequence moves the estimates, [outcomes, users, prices]."""
    return np.concatenate(list(users.each(lambda batch: terms(batch).influence(moments))), axis=1)


def evaluate(evidence: Evidence, estimator: Estimator | str = "doubly_robust", discount: float = 1.0) -> Evaluation:
    """What one estimator says about evidence that is a single partition."""
    (found,) = evaluate_partitions([evidence], [estimator], discount).values()
    return found


@dataclass(frozen=True, eq=False)
class _Sums:
    """What is kept of a batch of users."""

    outcome_names: tuple[str, ...]
    keys: tuple[NDArray[np.uint64], ...]
    """Of the users, batch by batch."""
    moments: dict[Prepared, Moments]
    diagnostics: dict[Callable[[Evidence], Evidence], Diagnostics]


def _sums(batch: Evidence, prepared: tuple[Prepared, ...], discount: float) -> _Sums:
    """All that all estimators need of a batch, while it is in the cache."""
    weighed = {weigh: weigh(batch) for weigh in dict.fromkeys(item.weigh for item in prepared)}
    return _Sums(
        batch.outcome_names,
        (batch.keys,),
        {item: item.terms(weighed[item.weigh], discount).moments for item in prepared},
        {weigh: diagnose(evidence) for weigh, evidence in weighed.items()},
    )


def _merged(first: _Sums, second: _Sums) -> _Sums:
    """The sums of two batches of users as those of all."""
    return _Sums(
        first.outcome_names,
        first.keys + second.keys,
        {item: merge_moments(moments, second.moments[item]) for item, moments in first.moments.items()},
        {weigh: merge_diagnostics(kept, second.diagnostics[weigh]) for weigh, kept in first.diagnostics.items()},
    )


def _again(prepared: Prepared, discount: float) -> Callable[[Evidence], Terms]:
    """What each user adds, made anew."""
    return lambda batch: prepared.terms(prepared.weigh(batch), discount)
