"""Effects of actions on reward and cost, at their own and at later steps (carry-over), weighted by inverse
propensity."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.statistics import ROUNDING, GroupSums, group_sums, squares_by_user
from redenvelope.log.log import Log
from redenvelope.merging import SAME, FieldwiseSums
from redenvelope.wording import counted

MOST_REVERSALS = 100
"""Most pairs reported."""

_TWO_SIDED_95 = 1.959963984540054


@dataclass(frozen=True)
class Mean:
    """An estimated mean with its 95 % interval."""

    estimate: float
    lower: float
    upper: float
    standard_error: float

    @classmethod
    def of(cls, estimate: float, standard_error: float) -> Mean:
        """A mean with a normal interval."""
        margin = _TWO_SIDED_95 * standard_error
        return cls(estimate, estimate - margin, estimate + margin, standard_error)


@dataclass(frozen=True)
class ActionEffect:
    """Mean outcomes of an action under random assignment, estimated with inverse-propensity weights."""

    label: str
    rows: int
    reward: Mean
    cost: Mean


@dataclass(frozen=True)
class Reversal:
    """A more expensive action that earns less than a cheaper one, beyond chance."""

    cheap: ActionEffect
    dear: ActionEffect


def effect_sums(log: Log) -> GroupSums:
    """Outcomes by action, weighted by 1/propensity."""
    return group_sums(log.action, 1.0 / log.propensity, log.outcomes, len(log.catalogue))


def effect_squares(log: Log, means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squares for the standard errors of the means, [outcomes, actions]."""
    residuals = log.outcomes - means[:, log.action]
    return squares_by_user(log, log.action, 1.0 / log.propensity, residuals, len(log.catalogue))


def action_effects(
    labels: tuple[str, ...], rows: NDArray[np.int64], sums: GroupSums, squares: NDArray[np.float64]
) -> tuple[ActionEffect, ...]:
    """Reward and cost of each action, given the number of rows in which it was logged, [actions]."""
    (reward, cost), (reward_error, cost_error) = sums.means.tolist(), sums.errors(squares).tolist()
    return tuple(
        ActionEffect(
            label,
            int(rows[action]),
            Mean.of(reward[action], reward_error[action]),
            Mean.of(cost[action], cost_error[action]),
        )
        for action, label in enumerate(labels)
    )


def reversals(effects: tuple[ActionEffect, ...]) -> tuple[Reversal, ...]:
    """Pairs whose more expensive action earns less, by three standard errors in cost and in reward, clearest first.

    Limited in number, because a thousand actions make half a million pairs.
    """
    reward = np.array([effect.reward.estimate for effect in effects])
    dearer = _beyond_chance([effect.cost for effect in effects])
    better = _beyond_chance([effect.reward for effect in effects])
    cheap, dear = np.nonzero(dearer & better.T)
    clearest = np.argsort(reward[dear] - reward[cheap], kind="stable")[:MOST_REVERSALS]
    return tuple(Reversal(effects[cheap[pair]], effects[dear[pair]]) for pair in clearest)


def rises(effects: tuple[ActionEffect, ...]) -> bool:
    """Whether an action earns more than a cheaper one, beyond chance."""
    dearer, better = (_beyond_chance([getattr(each, name) for each in effects]) for name in ("cost", "reward"))
    return bool((dearer & better).any())


def counted_reversals(pairs: tuple[Reversal, ...]) -> str:
    """The number of such pairs, in words."""
    return counted(len(pairs), "such pair") if len(pairs) < MOST_REVERSALS else "many such pairs"


def _beyond_chance(means: list[Mean]) -> NDArray[np.bool_]:
    """Whether the second mean is above the first beyond chance, [first, second]."""
    estimate = np.array([mean.estimate for mean in means])
    error = np.array([mean.standard_error for mean in means])
    # Three standard errors rather than two: a catalogue of ten actions makes 45 comparisons.
    difference = estimate[None, :] - estimate[:, None]
    rounding = ROUNDING * np.maximum(np.abs(estimate)[None, :], np.abs(estimate)[:, None])
    return np.asarray(difference > 3 * np.hypot(error[None, :], error[:, None]) + rounding)


# Carry-over: the effect of an action on the outcomes of later steps.


_SURE = 1e-3
_MOST_LAGS, _MOST_PAIRS = 6, 2_000_000  # with many actions, pairs of them limit the number of lags
_WEAK, _STRONG = 0.10, 0.30


@dataclass(frozen=True)
class CarryOver:
    """The effect of an earlier action on an outcome, compared with that of the present action."""

    outcome: Literal["reward", "cost"]
    direct: float
    """Standard deviation over actions of the mean outcome at the same step."""
    carried: float
    """Standard deviation over earlier actions of the mean outcome `lag` steps later, with noise subtracted."""
    p_value: float
    """Probability of differences this large without carry-over."""
    lag: int = 1

    @property
    def share(self) -> float:
        """The carried effect as a share of the direct one."""
        return self.carried / self.direct if self.direct > 0 else 0.0

    @property
    def is_late(self) -> bool:
        """Whether an action affects the outcome of a later step more than its own step's, as if it was booked there."""
        return self.p_value <= _SURE and self.carried > self.direct

    @property
    def late_share(self) -> float:
        """Share of the effect that is booked at the later step instead of the action's own."""
        return self.carried / (self.carried + self.direct) if self.carried > 0 else 0.0

    @property
    def strength(self) -> Literal["none", "weak", "moderate", "strong"]:
        """The share in a word: weak below 10 %, strong from 30 % on; none if it may be chance."""
        if self.p_value > _SURE:
            return "none"
        return "weak" if self.share < _WEAK else "moderate" if self.share < _STRONG else "strong"


@dataclass(frozen=True, eq=False)
class CarrySums(FieldwiseSums):
    """Outcomes by an earlier and the present action, for every lag.

    Both actions are inverse-propensity weighted, so that neither the choice of who got the earlier action nor the
    present action can appear as carry-over.
    """

    pairs: GroupSums
    """Sums by lag, earlier and present action, flattened from [lags, earlier, present]."""
    actions: int = field(metadata=SAME)

    @property
    def direct(self) -> GroupSums:
        """Sums by lag and present action, flattened."""
        totals, weighted = self._tables
        return GroupSums(totals.sum(axis=1).ravel(), weighted.sum(axis=2).reshape(len(weighted), -1))

    @property
    def carried(self) -> GroupSums:
        """Residuals from the present action's mean, by lag and earlier action, flattened."""
        totals, weighted = self._tables
        means = np.nan_to_num(self.direct.means).reshape(len(weighted), -1, 1, self.actions)
        left = weighted - means * totals
        return GroupSums(totals.sum(axis=2).ravel(), left.sum(axis=3).reshape(len(weighted), -1))

    @property
    def _tables(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        cube = (-1, self.actions, self.actions)
        totals = self.pairs.totals.reshape(cube)
        return totals, self.pairs.weighted.reshape(-1, *totals.shape)


def carry_sums(log: Log) -> CarrySums:
    """The sums over rows that have an earlier row, at every lag."""
    actions, lags = len(log.catalogue), _lags(log)
    parts = []
    for lag in lags:
        earlier, weights = _earlier(log, lag)
        parts.append(group_sums(earlier * actions + log.action, weights, log.outcomes, actions**2))
    totals = np.concatenate([part.totals for part in parts])
    return CarrySums(GroupSums(totals, np.concatenate([part.weighted for part in parts], axis=1)), actions)


def carry_squares(log: Log, sums: CarrySums) -> NDArray[np.float64]:
    """Squares for the standard errors of the carried means, given all users' sums, [outcomes, lags · actions]."""
    actions, direct, carried = len(log.catalogue), np.nan_to_num(sums.direct.means), np.nan_to_num(sums.carried.means)
    parts = []
    for place, lag in enumerate(_lags(log)):
        earlier, weights = _earlier(log, lag)
        first = place * actions
        residuals = log.outcomes - direct[:, first + log.action] - carried[:, first + earlier]
        parts.append(squares_by_user(log, earlier, weights, residuals, actions))
    return np.concatenate(parts, axis=1)


def carry_overs(sums: CarrySums, squares: NDArray[np.float64]) -> tuple[CarryOver, ...]:
    """Compare later outcomes between earlier actions, at lag 1 and at longer lags if significant; empty if too few
    users have two steps."""
    shape = (len(squares), -1, sums.actions)
    tables = (sums.direct.means, sums.carried.means, sums.carried.errors(squares))
    direct, carried, errors = (table.reshape(shape) for table in tables)
    names: tuple[Literal["reward", "cost"], ...] = ("reward", "cost")
    found = []
    for lag in range(1, direct.shape[1] + 1):
        for place, name in enumerate(names):
            effect = _carry_over(name, *(table[place, lag - 1] for table in (direct, carried, errors)))
            if effect is not None and (lag == 1 or effect.p_value <= _SURE):
                found.append(replace(effect, lag=lag))
    return tuple(found)


def latest(effects: tuple[CarryOver, ...]) -> CarryOver | None:
    """The late effect with the largest lag; None if no effect is late."""
    return max((effect for effect in effects if effect.is_late), key=lambda effect: effect.lag, default=None)


def _lags(log: Log) -> range:
    """The lags, from 1; the same for all parts of a log."""
    return range(1, 1 + min(max(_MOST_PAIRS // len(log.catalogue) ** 2, 1), _MOST_LAGS))


def _earlier(log: Log, lag: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The action `lag` steps before each row and the weight of the pair, [rows]; rows without one have weight 0."""
    inverse, position = 1.0 / log.propensity, np.arange(len(log)) - np.repeat(log.starts[:-1], log.lengths)
    weights = np.where(position >= lag, inverse * np.roll(inverse, lag), 0.0)
    return np.where(position >= lag, np.roll(log.action, lag), 0).astype(np.int32), weights


def _carry_over(
    outcome: Literal["reward", "cost"],
    direct: NDArray[np.float64],
    carried: NDArray[np.float64],
    errors: NDArray[np.float64],
) -> CarryOver | None:
    from scipy.special import chdtrc

    seen = np.isfinite(carried)
    rounding = ROUNDING * float(np.nanmax(np.abs(direct), initial=0.0))
    if seen.sum() > 1 and np.maximum(errors, np.abs(carried))[seen].max() <= rounding:
        # The present action determines the outcome, so the rest is rounding, and testing it would be meaningless.
        return CarryOver(outcome, float(np.nanstd(direct)), carried=0.0, p_value=1.0)
    known = seen & (errors > rounding)
    if known.sum() < 2:
        return None
    carried, errors = carried[known], errors[known]
    precision = (errors.min() / errors) ** 2  # up to a factor, so that amounts may have any unit
    centre = (precision * carried).sum() / precision.sum()
    statistic = (((carried - centre) / errors) ** 2).sum()
    spread = max(carried.var() - (errors**2).mean(), 0.0)
    return CarryOver(
        outcome,
        direct=float(np.nanstd(direct)),
        carried=float(np.sqrt(spread)),
        p_value=float(chdtrc(len(carried) - 1, statistic)),
    )
