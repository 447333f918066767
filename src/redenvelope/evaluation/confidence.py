"""Intervals by user: users are independent, the steps of a user are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from redenvelope.arrays import FloatArray
from redenvelope.errors import UsageError
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.influence import Moments, Terms, safe_ratio
from redenvelope.evaluation.partitions import Partitions
from redenvelope.evaluation.skewness import skewness_of_mean, studentised_quantile
from redenvelope.randomness import fold, fraction

Side = Literal["both", "lower", "upper"]
"""Both bounds, or only one: the other is infinite, and all the doubt goes to the one."""


class Sample(Protocol):
    """What an interval may look at."""

    @property
    def moments(self) -> Moments:
        """Counts, means and products."""
        ...

    @property
    def groups(self) -> GroupSums:
        """Sums by group of users."""
        ...


@dataclass(frozen=True, eq=False)
class Bounds:
    """Within these, at the confidence that was asked for."""

    lower: FloatArray
    """[outcomes, prices]."""
    upper: FloatArray
    """[outcomes, prices]."""


class Interval(Protocol):
    """A way to make bounds."""

    def bounds(self, sample: Sample, confidence: float, side: Side) -> Bounds:
        """Bounds that hold with this confidence; one user bounds nothing."""
        ...


@dataclass(frozen=True)
class Normal:
    """As wide as if means over users were normal: right for many users and no few that dominate."""

    def bounds(self, sample: Sample, confidence: float, side: Side) -> Bounds:
        """Value plus and minus a quantile of standard errors."""
        moments = sample.moments
        reach = float(ndtri(1 - _tail(confidence, side))) * moments.standard_error
        return _sided(moments.value - reach, moments.value + reach, side)


@dataclass(frozen=True)
class Skewed:
    """As wide as the skewness of terms asks for on either side (Hall): what money needs. See `skewness`."""

    def bounds(self, sample: Sample, confidence: float, side: Side) -> Bounds:
        """Value less quantiles of studentised errors, in closed form."""
        tail, moments = _tail(confidence, side), sample.moments
        if moments.users < 2:
            return _unbounded(moments)
        lean = _skewness_of_mean(sample)
        low, high = (studentised_quantile(chance, lean) for chance in (tail, 1 - tail))
        return _sided(moments.value - high * moments.standard_error, moments.value - low * moments.standard_error, side)


def _skewness_of_mean(sample: Sample) -> FloatArray:
    """[outcomes, prices]. Ratios of means are known only when all users are: there, groups of users tell."""
    moments = sample.moments
    if not moments.parts:
        squares = np.diagonal(moments.products, axis1=1, axis2=2).T
        return skewness_of_mean(squares, moments.cubes)
    change = group_influence(sample.groups, moments)
    return skewness_of_mean((change**2).sum(axis=0), (change**3).sum(axis=0))


@dataclass(frozen=True)
class Bootstrap:
    """Quantiles of estimates from resampled users."""

    replicates: int = 1000
    seed: int = 0

    def bounds(self, sample: Sample, confidence: float, side: Side) -> Bounds:
        """Percentiles."""
        tail = _tail(confidence, side)
        if sample.moments.users < 2:
            return _unbounded(sample.moments)
        values = bootstrap_values(sample.groups, sample.moments, self.replicates, self.seed)
        lower, upper = np.quantile(values, [tail, 1 - tail], axis=0)
        return _sided(lower, upper, side)


@dataclass(frozen=True)
class StudentisedBootstrap:
    """Quantiles of resampled errors, each in its own standard errors: covers better where terms are skewed."""

    replicates: int = 1000
    seed: int = 0

    def bounds(self, sample: Sample, confidence: float, side: Side) -> Bounds:
        """Value less quantiles of studentised errors."""
        tail = _tail(confidence, side)
        moments = sample.moments
        if moments.users < 2:
            return _unbounded(moments)
        draws = studentised_draws(sample.groups, moments, self.replicates, self.seed)
        low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
        return _sided(moments.value - high * moments.standard_error, moments.value - low * moments.standard_error, side)


@dataclass(frozen=True, eq=False)
class EmpiricalBernstein:
    """Holds at any number of users, if the range of a user's term is known beforehand (Maurer and Pontil)."""

    least: float | FloatArray
    """The least that a user's term can be: a number, or [outcomes, 1]."""
    greatest: float | FloatArray
    """The greatest that a user's term can be: a number, or [outcomes, 1]."""

    def bounds(self, sample: Sample, confidence: float, side: Side) -> Bounds:
        """Value plus and minus what variance and range allow. Only for estimates that are plain means."""
        tail = _tail(confidence, side)
        moments = sample.moments
        if moments.parts:
            raise UsageError(
                "empirical Bernstein needs an estimate that is a plain mean over users, not a self-normalised one"
            )
        width = np.asarray(self.greatest - self.least, dtype=np.float64)
        rounding = 1e-9 * np.abs(width)
        if (moments.least < self.least - rounding).any() or (moments.greatest > self.greatest + rounding).any():
            raise UsageError(
                f"terms of users reach from {moments.least.min():g} to {moments.greatest.max():g}, beyond the range "
                "that was said to be known; give the true range of weight times outcome"
            )
        if moments.users < 2:
            return _unbounded(moments)
        doubt = np.log(2 / tail)
        reach = moments.standard_error * np.sqrt(2 * doubt) + 7 * width * doubt / (3 * (moments.users - 1))
        return _sided(moments.value - reach, moments.value + reach, side)


def _tail(confidence: float, side: Side) -> float:
    """The probability left beyond each bound that is asked for."""
    if side not in ("both", "lower", "upper"):
        raise UsageError(f"side must be 'both', 'lower' or 'upper', not {side!r}")
    require_confidence(confidence)
    return (1 - confidence) / 2 if side == "both" else 1 - confidence


def require_confidence(confidence: float) -> None:
    """Refuse what is no share."""
    if not 0.5 <= confidence < 1:
        hint = "; it is a share, not a percentage" if 50 <= confidence < 100 else ""
        raise UsageError(f"confidence must be at least 0.5 and below 1, not {confidence}{hint}")


def _sided(lower: FloatArray, upper: FloatArray, side: Side) -> Bounds:
    if side == "lower":
        upper = np.full_like(upper, np.inf)
    if side == "upper":
        lower = np.full_like(lower, -np.inf)
    return Bounds(lower, upper)


def _unbounded(moments: Moments) -> Bounds:
    infinite = np.full_like(moments.value, np.inf)
    return Bounds(-infinite, infinite)


# The bootstrap, over sums of groups of users: they merge over partitions, and a replicate costs no pass over users.
#
# Users fall into groups by their keys. Groups are not equally large; but what a group differs by from so many times
# the mean has the variance and the skewness of as many users, so that drawing groups with replacement has those of
# drawing users, in expectation. With no more users than groups it *is* drawing users.


GROUPS = 2048
"""Number of groups: their spread tells the standard error to within 2 %."""
_STREAM, _SEED = "bootstrap group", 0
# Replicates drawn at once: their counts stay in a second-level cache.
_REPLICATES = 32


@dataclass(frozen=True, eq=False)
class GroupSums:
    """Sums of terms by group of users."""

    sizes: FloatArray
    """Users in each group, [groups]."""
    sums: FloatArray
    """[groups, columns, prices]; columns are plain terms, numerators, weights."""


def sums_by_group(partitions: Partitions, terms: Callable[[OffPolicyData], Terms], users: int) -> GroupSums:
    """Sums of the terms of all users by group, in one pass; if there are few, each user is a group."""
    if users > GROUPS:
        return partitions.reduce_parts(lambda part: _hashed(part, terms), _merged)
    parts = list(partitions.each(lambda batch: (batch.keys, terms(batch).stacked())))
    # In an order that is the users' own, so that how they were dealt to partitions changes nothing.
    order = np.argsort(fraction(np.concatenate([keys for keys, _ in parts]), _STREAM, _SEED), kind="stable")
    columns = np.concatenate([columns for _, columns in parts], axis=1)
    return GroupSums(np.ones(users), np.moveaxis(columns, 1, 0)[order])


def group_sums(terms: Terms, groups: NDArray[np.int64], count: int) -> GroupSums:
    """Sums by group [users] of so many groups."""
    columns = len(terms.plain) * (1 + terms.parts) + terms.parts
    result = GroupSums(np.zeros(count), np.zeros((count, columns, terms.plain.shape[2])))
    _add(result, terms, groups)
    return result


def _hashed(part: OffPolicyData, terms: Callable[[OffPolicyData], Terms]) -> GroupSums:
    """Sums of one partition, batch after batch in the same room: it is large next to a batch."""
    batches = part.in_batches
    first = next(batches)
    sums = group_sums(terms(first), fold(first.keys, GROUPS, _STREAM, _SEED), GROUPS)
    for batch in batches:
        _add(sums, terms(batch), fold(batch.keys, GROUPS, _STREAM, _SEED))
    return sums


def _add(sums: GroupSums, terms: Terms, groups: NDArray[np.int64]) -> None:
    """Add the terms of users, whose groups are [users], to sums that are being built."""
    order = np.argsort(groups, kind="stable")
    found, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    sums.sizes[found] += sizes
    for place, column in enumerate(terms.stacked()):
        sums.sums[found, place] += np.add.reduceat(column[order], starts, axis=0)


def _merged(first: GroupSums, second: GroupSums) -> GroupSums:
    """The sums of two partitions as those of both."""
    return GroupSums(first.sizes + second.sizes, first.sums + second.sums)


def bootstrap_values(groups: GroupSums, moments: Moments, replicates: int, seed: int) -> FloatArray:
    """Estimates from resampled users, ratios taken anew in each: [replicates, outcomes, prices]."""
    filled = groups.sizes > 0
    count = int(filled.sum())
    _check(count, replicates)
    columns = np.column_stack([groups.sizes[filled], groups.sums[filled].reshape(count, -1)])
    totals = np.concatenate([draws @ columns for draws in _draws(count, replicates, seed)])
    means = totals[:, 1:] / totals[:, :1]
    means = means.reshape(replicates, *groups.sums.shape[1:])
    outcomes, parts = moments.outcomes, moments.parts
    numerators = means[:, outcomes : outcomes * (1 + parts)].reshape(replicates, outcomes, parts, means.shape[2])
    ratios = safe_ratio(numerators, means[:, None, outcomes * (1 + parts) :])
    return np.asarray(means[:, :outcomes] + (moments.shares * ratios).sum(axis=2))


def studentised_draws(groups: GroupSums, moments: Moments, replicates: int, seed: int) -> FloatArray:
    """How many of its own standard errors each replicate is off the estimate, [replicates, outcomes, prices].

    Knows the skewness of the terms, which an interval of normal width does not.
    """
    filled = groups.sizes > 0
    count = int(filled.sum())
    _check(count, replicates)
    change = group_influence(groups, moments)[filled].reshape(count, -1)
    columns = np.concatenate([change, change**2], axis=1)
    totals = np.concatenate([draws @ columns for draws in _draws(count, replicates, seed)])
    means, squares = np.split(totals / count, 2, axis=1)
    spread = np.sqrt(np.maximum(squares - means**2, 0.0) / (count - 1))
    drawn = np.divide(means, spread, out=np.zeros_like(means), where=spread > 0)
    return drawn.reshape(replicates, moments.outcomes, -1)


def group_influence(groups: GroupSums, moments: Moments) -> FloatArray:
    """How far each group moves the estimates, [groups, outcomes, prices]; sums to 0."""
    outcomes, parts, prices = moments.shares.shape
    centred = groups.sums - groups.sizes[:, None, None] * moments.means
    result = centred[:, :outcomes].copy()
    slopes = safe_ratio(moments.shares, moments.mean_weights)
    numerators = centred[:, outcomes : outcomes * (1 + parts)].reshape(len(centred), outcomes, parts, prices)
    weights = centred[:, None, outcomes * (1 + parts) :]
    result += (slopes * (numerators - moments.ratios * weights)).sum(axis=2)
    return result


def _draws(count: int, replicates: int, seed: int) -> Iterator[FloatArray]:
    """How often each group is drawn in each replicate: blocks of [replicates, count]."""
    generator = np.random.default_rng(seed)

    for first in range(0, replicates, _REPLICATES):
        size = min(_REPLICATES, replicates - first)
        drawn = generator.integers(count, size=(size, count), dtype=np.int32)
        drawn += np.arange(size, dtype=np.int32)[:, None] * count
        counts = np.bincount(drawn.ravel(), minlength=size * count)
        yield counts.reshape(size, count).astype(np.float64)


def _check(count: int, replicates: int) -> None:
    if count < 2:
        raise UsageError("a bootstrap needs at least 2 users")
    if replicates < 2:
        raise UsageError(f"a bootstrap needs at least 2 replicates, not {replicates}")


# Bounds that hold at all prices at once: how sure each must be for all of them to be sure.
#
# Estimates at neighbouring prices err together, so dividing the chance of an error among them would waste most of it.
# The largest of their errors is imitated instead: users are given random signs, many times over (a multiplier
# bootstrap; for means over many users as in Chernozhukov, Chetverikov and Kato, 2013). The signs come from the users'
# ids, so any number of partitions gives the same.


_BITS = 48  # signs that one number of a user's gives
_NUMBERS = 21
# 1,008 draws: the 95 % quantile of the largest error is then known to about 0.06 standard errors.
_BLOCK_USERS = 4_096


def each_confidence(
    added: FloatArray, keys: NDArray[np.uint64], confidences: Sequence[float], seed: int
) -> tuple[tuple[float, float], ...]:
    """For each of some confidences, that of a one-sided bound so that those of all outcomes and prices hold with it.

    `added` is what users add to the estimates, [outcomes, users, prices]; `keys` are the users, [users].
    """
    means = added.mean(axis=1)
    columns = means.size
    sums, squares = np.zeros((_BITS * _NUMBERS, columns)), np.zeros(columns)
    for first in range(0, len(keys), _BLOCK_USERS):
        some = slice(first, first + _BLOCK_USERS)
        deviations = np.moveaxis(added[:, some] - means[:, None], 1, 0).reshape(-1, columns)
        # Of random signs, single precision is more than enough; the sums of blocks are added in double.
        sums += _signs(keys[some], seed).T @ deviations.astype(np.float32)
        squares += (deviations**2).sum(axis=0)
    known = squares > 0
    if not known.any():
        return tuple((float(level), float(level)) for level in confidences)
    largest = (sums[:, known] / np.sqrt(squares[known])).max(axis=1)
    return tuple((float(level), max(float(level), float(ndtr(np.quantile(largest, level))))) for level in confidences)


def _signs(keys: NDArray[np.uint64], seed: int) -> NDArray[np.float32]:
    """Minus and plus one, by the toss of a coin, [users, draws]."""
    bits = np.arange(_BITS, dtype=np.uint64)
    signs = []
    for number in range(_NUMBERS):
        word = (fraction(keys, "signs", seed, number) * 2.0**53).astype(np.uint64)
        signs.append(((word[:, None] >> bits) & np.uint64(1)).astype(np.float32))
    return np.concatenate(signs, axis=1) * np.float32(2) - np.float32(1)


# Concentration: whether so few users carry so much that no bound of their mean can be believed.
#
# A standard error is itself an estimate, from as many users as carry the squares. With a handful of them it is a
# guess, and no transformation or resampling knows of the user who happened not to be drawn. To be asked of the costs
# of *all* users of a log, train users included: a fold that holds none of the few looks tame.


# Calibrated on 40 campaigns a family in benchmarks/trials. Whales (one user of a thousand costs 400 times as much) in
# 8,000 and 40,000 users: 1 to 17 carriers of 70 to 1,400 times the mean each, 39 and 40 of 40 refused. Log-normal
# amounts with a spread of 0.8 to 1.3, which Hall's bound covers: at most 66 times the mean, none refused.
_FEW = 25
"""Users who carry the squares: a variance from fewer is a guess."""
_TIMES = 100.0
"""Each of them as much as so many users on average."""
_MUCH = 0.02
"""Share of the total that they must carry together: less cannot move it further than bounds are wide."""


@dataclass(frozen=True, eq=False)
class Concentration:
    """Sums over users that merge, and the largest amounts."""

    users: int
    total: float
    squares: float
    fourths: float
    largest: FloatArray
    """The largest amounts, falling, at most 25."""

    @classmethod
    def of(cls, amounts: ArrayLike) -> Concentration:
        """Of what each user costs, or adds to an estimate, [users]."""
        values = np.asarray(amounts, dtype=np.float64)
        squares = values**2
        largest = np.sort(values)[::-1][:_FEW].copy()
        return cls(len(values), float(values.sum()), float(squares.sum()), float((squares**2).sum()), largest)

    def merge(self, other: Concentration) -> Concentration:
        """Two batches of users as one."""
        largest = np.sort(np.concatenate([self.largest, other.largest]))[::-1][:_FEW].copy()
        return Concentration(
            self.users + other.users,
            self.total + other.total,
            self.squares + other.squares,
            self.fourths + other.fourths,
            largest,
        )

    @property
    def carriers(self) -> int:
        """How many users the squares amount to (Kish's effective number, of squares)."""
        return 0 if self.fourths <= 0 else max(1, round(self.squares**2 / self.fourths))

    @property
    def share(self) -> float:
        """Share of the total that so many of the largest carry; of at most 25."""
        return 0.0 if self.total <= 0 else float(self.largest[: self.carriers].sum() / self.total)

    @property
    def times(self) -> float:
        """What each of them carries, in means over all users."""
        return self.share * self.users / max(self.carriers, 1)

    def reason(self, what: str = "cost") -> Reason | None:
        """Why no bound may be relied on, if so few carry so much."""
        if not 0 < self.carriers < _FEW or self.share < _MUCH or self.times < _TIMES:
            return None
        return Reason(
            "concentrated",
            Weight.REFUSAL,
            f"{self.carriers:,} users of {self.users:,} carry {self.share:.0%} of the {what}: how many there are is "
            "chance, and no bound of the mean can be believed; cap what one user may cost, treat such users apart, or "
            f"bring a log that holds at least {_FEW} of them",
        )
