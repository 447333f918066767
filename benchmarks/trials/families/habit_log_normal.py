"""A hidden habit, and amounts with a moderately heavy tail."""

from __future__ import annotations

from dataclasses import dataclass

from trials.families.hidden_habit import HiddenHabit
from trials.families.log_normal import LogNormal


@dataclass(frozen=True)
class HabitLogNormal(HiddenHabit, LogNormal):
    """Redemptions become likelier with every envelope, and what each costs is spread by a log-normal."""
