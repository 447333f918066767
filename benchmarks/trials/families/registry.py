"""The families of campaigns by name: one line each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from trials.families.campaign import SimulatedCampaign
from trials.families.delayed_cost import DelayedCost
from trials.families.envelopes import Envelopes
from trials.families.finite import Finite
from trials.families.groups import Groups
from trials.families.habit_log_normal import HabitLogNormal
from trials.families.hidden_confounder import HiddenConfounder
from trials.families.hidden_habit import HiddenHabit
from trials.families.laws import Laws
from trials.families.leaving import Leaving
from trials.families.log_normal import LogNormal
from trials.families.opposite_habits import OppositeHabits
from trials.families.seasons import Seasons
from trials.families.sending import Sending
from trials.families.stores import Stores
from trials.families.whales import Whales
from trials.families.wrong_propensity import WrongPropensity


class Family(NamedTuple):
    """Campaigns of one kind."""

    laws: Callable[[int], Laws]
    """The campaign of a seed."""
    users: int
    """In a log with which a fit takes seconds and certificates are mostly given."""
    share: float = 0.6
    """Where the budget lies between the cheapest and the uniform policy."""
    cluster: str | None = None
    """The column of clusters that `fit` is told."""

    def campaign(self, seed: int) -> SimulatedCampaign:
        """The campaign of a seed."""
        return SimulatedCampaign(self.laws(seed))


FAMILIES: dict[str, Family] = {
    "finite": Family(Finite, 6_000),
    "envelopes": Family(Envelopes, 24_000),
    "control": Family(Sending, 8_000),
    "hidden_habit": Family(HiddenHabit, 8_000, share=1.0),
    "groups": Family(Groups, 8_000),
    "whales": Family(Whales, 8_000),
    "log_normal": Family(LogNormal, 8_000),
    "delayed_cost": Family(DelayedCost, 8_000),
    "leaving": Family(Leaving, 8_000),
    "wrong_propensity": Family(WrongPropensity, 8_000),
    "seasons": Family(Seasons, 8_000),
    "opposite_habits": Family(OppositeHabits, 8_000, share=1.0),
    "opposite_habits_targeted": Family(partial(OppositeHabits, loyal_respond=True), 8_000, share=1.0),
    "habit_log_normal": Family(HabitLogNormal, 8_000, share=1.0),
    "delayed_cost_2": Family(partial(DelayedCost, lag=2), 8_000),
    "delayed_cost_3": Family(partial(DelayedCost, lag=3), 8_000),
    "hidden_confounder": Family(HiddenConfounder, 8_000),
    **{
        f"whales_{share:g}_{times}": Family(partial(Whales, share=share, times=times), 8_000)
        for share in (0.0005, 0.001, 0.002)
        for times in (20, 50, 90)
    },
    "stores_50": Family(partial(Stores, size_of_store=50), 8_000, cluster="store"),
    "stores_200": Family(partial(Stores, size_of_store=200), 40_000, cluster="store"),
}
