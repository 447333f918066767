"""Several estimators on the same evidence: batch after batch, so that each batch is read from memory once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from redenvelope.errors import UsageError
from redenvelope.evaluation.diagnostics import diagnose
from redenvelope.evaluation.estimate import Estimator, Evaluation, estimator_named, evaluate, terms_in_batches
from redenvelope.evaluation.evidence import Evidence
from redenvelope.evaluation.terms import Moments, Terms, merge_moments

__all__ = ["evaluate_together"]


def evaluate_together(
    evidence: Evidence, estimators: Sequence[Estimator | str], discount: float = 1.0
) -> dict[str, Evaluation]:
    """What each estimator says, by name: the same as `evaluate` one by one, in less time."""
    if not 0 < discount <= 1:
        raise UsageError(f"discount must be above 0 and at most 1, not {discount}")
    chosen = [estimator_named(item) if isinstance(item, str) else item for item in estimators]
    diagnostics = diagnose(evidence)
    moments = _moments(evidence, [item for item in chosen if item.mergeable], discount)
    results = {}
    for item in chosen:
        if not item.mergeable:
            results[item.name] = evaluate(evidence, item, discount, diagnostics)
            continue
        found = moments[item.terms]
        if item.blend is not None:
            found = replace(found, shares=item.blend(found))
        again = partial(terms_in_batches, item, evidence, discount)
        results[item.name] = Evaluation(item, evidence.targets, found, diagnostics, again)
    return results


def _moments(
    evidence: Evidence, estimators: Sequence[Estimator], discount: float
) -> dict[Callable[[Evidence, float], Terms], Moments]:
    """Moments by what makes the terms: estimators that differ only in how they blend share them."""
    moments: dict[Callable[[Evidence, float], Terms], Moments] = {}
    for batch in evidence.in_batches:
        here = {make: make(batch, discount).moments for make in dict.fromkeys(item.terms for item in estimators)}
        for make, found in here.items():
            moments[make] = merge_moments(moments[make], found) if make in moments else found
    return moments
