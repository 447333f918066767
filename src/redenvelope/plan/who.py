"""Who gets what, told by groups and by examples: what the report says in words."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Alternative", "Condition", "Example", "Group", "StepGroups"]


@dataclass(frozen=True)
class Condition:
    """One thing that the users of a group have in common."""

    feature: str
    words: str
    """What follows the feature's name: "is cedar or oak", "is 2 or more", "is missing"."""


@dataclass(frozen=True)
class Group:
    """Users of one step who get much the same."""

    conditions: tuple[Condition, ...]
    """All of them hold; none for everybody."""
    rows: int
    probabilities: tuple[float, ...]
    """Mean probability of each action under the plan, [actions]."""
    cost: float
    """Expected cost of a decision."""


@dataclass(frozen=True)
class StepGroups:
    """The users of one step in a few groups, the dearest first."""

    step: int
    rows: int
    explained: float
    """Share of the differences in what users get that the groups explain."""
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Alternative:
    """One action for one user."""

    action: str
    probability: float
    """With which the plan gives it."""
    reward: float
    """Expected from this step on, as far as the plan looks ahead."""
    cost: float
    """Expected likewise."""
    worth: float
    """The reward less what the cost is worth at the plan's price; minus the cost where the price is infinite."""


@dataclass(frozen=True)
class Example:
    """A user as logged, without a name: what is known of them, and what every action would be worth."""

    step: int
    known: tuple[tuple[str, str], ...]
    """Features that decide much, and their values."""
    alternatives: tuple[Alternative, ...]
    """Every action, by cost as in the catalogue."""
