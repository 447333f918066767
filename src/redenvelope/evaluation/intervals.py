"""Intervals by user: users are independent, the steps of a user are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from redenvelope.errors import UsageError
from redenvelope.evaluation.resampling import GroupSums, bootstrap_values, group_influence, studentised_draws
from redenvelope.evaluation.skewness import skewness_of_mean, studentised_quantile
from redenvelope.evaluation.terms import Moments

__all__ = [
    "Bootstrap",
    "Bounds",
    "EmpiricalBernstein",
    "Interval",
    "Normal",
    "Sample",
    "Side",
    "Skewed",
    "StudentisedBootstrap",
]

FloatArray = NDArray[np.float64]
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
