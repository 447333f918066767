"""A few users as logged, one of each group: what the plan would give them, and what every action would be worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from redenvelope.fitting.bins import MISSING, plain_numbers
from redenvelope.fitting.check import DecidedRows, Shown
from redenvelope.fitting.groups import GroupedStep
from redenvelope.log.log import FeatureTable
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.who import Alternative, Example

__all__ = ["examples"]

_EXAMPLES, _KNOWN = 4, 5


def examples(
    shown: Shown, decided: DecidedRows, policy: DeployedPolicy, step: GroupedStep, strongest: Sequence[str]
) -> tuple[Example, ...]:
    """Users of the groups of a step, the most typical of each; groups that get different things come first.

    `strongest` are features that decide much.
    """
    groups = _different(step)
    rows = np.array([_typical(decided, step.rows[place]) for place in groups], dtype=np.int64)
    pricing = policy.pricing
    price = int(np.argmax(pricing.shares))  # of two prices that are mixed, what most users follow
    states, left = shown.encoded.states[rows], shown.encoded.steps_left[rows]
    standing = None if shown.encoded.standing is None else shown.encoded.standing[rows]
    values = policy.valuer.values(states, left, pricing.table[[price]], standing)
    q, chances, to_go = (np.asarray(part, dtype=np.float64) for part in (values.q, values.probabilities, values.to_go))
    found = []
    for at, (place, row) in enumerate(zip(groups, rows, strict=True)):
        named = [condition.feature for condition in step.told.groups[place].conditions]
        figures = np.stack([chances[at, 0], *to_go[:2, at, 0], q[at, 0]], axis=1).tolist()
        alternatives = tuple(
            Alternative(label, *worth) for label, worth in zip(policy.catalogue.labels, figures, strict=True)
        )
        wanted = list(dict.fromkeys([*named, *strongest]))[:_KNOWN]
        found.append(Example(step.told.step, known_values(decided.log.features, int(row), wanted), alternatives))
    return tuple(found)


def known_values(features: FeatureTable, row: int, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Some features of a row as text."""
    return tuple((name, _value(features, row, name)) for name in names)


def _value(features: FeatureTable, row: int, name: str) -> str:
    if name in features.category_names:
        place = features.category_names.index(name)
        code = int(features.codes[row, place])
        return MISSING if code < 0 else features.labels[place][code]
    column = features.numeric[:, features.numeric_names.index(name)]
    if np.isnan(column[row]):
        return MISSING
    present = column[~np.isnan(column)]
    if set(np.unique(present[:10_000]).tolist()) <= {0.0, 1.0}:
        return "yes" if column[row] else "no"
    return plain_numbers([float(column[row])], 4)[0]


def _different(step: GroupedStep) -> list[int]:
    """Some groups: first those of which each mostly gets something else, larger ones before smaller."""
    order = sorted(range(len(step.rows)), key=lambda place: -len(step.rows[place]))
    first: dict[int, int] = {}
    for place in order:
        first.setdefault(int(np.argmax(step.told.groups[place].probabilities)), place)
    chosen = [*first.values(), *(place for place in order if place not in first.values())][:_EXAMPLES]
    return sorted(chosen)


def _typical(decided: DecidedRows, rows: NDArray[np.int64]) -> int:
    """The row whose decision is nearest to the mean of its group's."""
    given = decided.probabilities[rows]
    return int(rows[((given - given.mean(axis=0)) ** 2).sum(axis=1).argmin()])
