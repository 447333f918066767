"""What all users of a log say, where a fit is given only some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from redenvelope.audit.audit import Audit
from redenvelope.evaluation.concentration import Concentration
from redenvelope.log.log import Log

__all__ = ["Whole", "concentrations", "merge_concentrations"]


@dataclass(frozen=True, eq=False)
class Whole:
    """Figures of all users."""

    audit: Audit
    costs: tuple[Concentration, ...]
    """How the costs of each budget are spread over users, [budgets]."""
    sample: str
    """Who of them a fit is given, in words."""


def concentrations(log: Log) -> tuple[Concentration, ...]:
    """How the costs of each budget are spread over the users of a log, [budgets]."""
    return tuple(Concentration.of(log.sums_by_user(cost)) for cost in log.outcomes[1:])


def merge_concentrations(parts: Sequence[tuple[Concentration, ...]]) -> tuple[Concentration, ...]:
    """Those of all parts, in their order."""
    return tuple(reduce(Concentration.merge, costs) for costs in zip(*parts, strict=True))
