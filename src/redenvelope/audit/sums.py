"""The two rounds of an audit over the parts of a log: sums of each part, which add up to those of the whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.assignment import evidence_sample
from redenvelope.audit.carry_over import CarrySums, carry_squares, carry_sums
from redenvelope.audit.effects import effect_squares, effect_sums
from redenvelope.audit.groups import GroupSums, UserMoments
from redenvelope.audit.leak_evidence import leak_sample
from redenvelope.audit.overlap import MOST_STEPS, calibration_sums, overlap_sums
from redenvelope.audit.quantiles import QuantileSums, quantile_sums
from redenvelope.log.findings import Finding
from redenvelope.log.log import Log
from redenvelope.log.split import SHARES, split_fold

__all__ = ["FirstSums", "Header", "SecondSums", "first_sums", "second_sums"]


@dataclass(frozen=True)
class Header:
    """What is the same in every part of a log."""

    labels: tuple[str, ...]
    """Of the actions."""
    features: int
    static_features: int
    propensity_source: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, eq=False)
class FirstSums:
    """What needs no other figure. Sums of parts add up."""

    header: Header
    rows: int
    first_step: int
    last_step: int
    longest: int
    """Most steps of a user."""
    gaps: int
    """Rows that skip a step of their user."""
    people: int
    """Different users; fewer than sequences where some have several episodes."""
    fold_users: NDArray[np.int64]
    """[folds]"""
    fold_rows: NDArray[np.int64]
    """[folds]"""
    logged: UserMoments
    """Outcomes of each user, summed over the steps."""
    calibration: UserMoments
    action_rows: NDArray[np.int64]
    """[actions]"""
    effects: GroupSums
    carry: CarrySums
    propensities: QuantileSums

    @property
    def users(self) -> int:
        """Number of users."""
        return self.logged.users

    @property
    def greedy_action(self) -> int:
        """The action with the highest mean reward."""
        return int(np.nanargmax(self.effects.means[0]))

    @property
    def steps(self) -> int:
        """Number of steps whose overlap is looked at."""
        return min(self.longest, MOST_STEPS)

    def __add__(self, other: FirstSums) -> FirstSums:
        """The sums of both parts."""
        return FirstSums(
            self.header,
            self.rows + other.rows,
            min(self.first_step, other.first_step),
            max(self.last_step, other.last_step),
            max(self.longest, other.longest),
            self.gaps + other.gaps,
            self.people + other.people,
            self.fold_users + other.fold_users,
            self.fold_rows + other.fold_rows,
            self.logged + other.logged,
            self.calibration + other.calibration,
            self.action_rows + other.action_rows,
            self.effects + other.effects,
            self.carry + other.carry,
            self.propensities + other.propensities,
        )


@dataclass(frozen=True, eq=False)
class SecondSums:
    """What needs the figures of the first round. Sums of parts add up."""

    effects: NDArray[np.float64]
    """Squares of which errors are made, [outcomes, actions]."""
    carry: NDArray[np.float64]
    """The same of carried means, [outcomes, actions]."""
    overlap: NDArray[np.float64]
    """[steps, 8]"""
    sample: tuple[Log, ...]
    """Users on whom the assignment is looked at."""
    leak_sample: tuple[Log, ...]
    """Users on whom columns are looked at that may not have been known."""

    def __add__(self, other: SecondSums) -> SecondSums:
        """The sums of both parts."""
        return SecondSums(
            self.effects + other.effects,
            self.carry + other.carry,
            self.overlap + other.overlap,
            self.sample + other.sample,
            self.leak_sample + other.leak_sample,
        )


def first_sums(log: Log) -> FirstSums:
    """The first round over a part of at least one user."""
    fold, folds = split_fold(log.keys), len(SHARES)
    return FirstSums(
        header=Header(
            log.catalogue.labels,
            len(log.features.names),
            len(log.features.static),
            log.propensity_source,
            log.findings,
        ),
        rows=len(log),
        first_step=log.first_step,
        last_step=log.first_step + log.campaign_steps - 1,
        longest=int(log.lengths.max()),
        gaps=log.gaps,
        people=log.people,
        fold_users=np.bincount(fold[log.begins], minlength=folds),
        fold_rows=np.array([int(log.lengths[fold == number].sum()) for number in range(folds)]),
        logged=UserMoments.of(np.stack([log.sums_by_user(values) for values in log.outcomes], axis=1)),
        calibration=calibration_sums(log),
        action_rows=np.bincount(log.action, minlength=len(log.catalogue)),
        effects=effect_sums(log),
        carry=carry_sums(log),
        propensities=quantile_sums(log.propensity),
    )


def second_sums(log: Log, first: FirstSums) -> SecondSums:
    """The second round over a part, given the first round's sums of all parts."""
    sample, leaks = evidence_sample(log, first.users), leak_sample(log, first.rows)
    return SecondSums(
        effects=effect_squares(log, np.nan_to_num(first.effects.means)),
        carry=carry_squares(log, first.carry),
        overlap=overlap_sums(log, first.greedy_action, first.steps),
        sample=() if sample is None else (sample,),
        leak_sample=() if leaks is None else (leaks,),
    )
