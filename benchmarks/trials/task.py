"""What is asked of one campaign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Task(NamedTuple):
    """A family's campaign by its seed, a log of so many users, and a budget."""

    kind: str
    family: str
    seed: int
    users: int
    share: float
    """Where the budget lies between what the cheapest policy costs and what the uniform one does."""
    explore: float | None = None
    """Share of decisions by chance; None for what is usual."""
    cross_fit: int = 1
    """Groups of users, each of which checks a member of the plan made of the others."""
    fresh_checks: int = 0
    """How many logs of other users check the plan, too."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Task:
        """The task that a row tells the outcome of."""
        return cls(*(row.get(name, cls._field_defaults.get(name)) for name in cls._fields))  # type: ignore[arg-type]
