"""Paths through several budgets: best mixtures of plans in a fixed order, from tight budgets to loose ones.

A ladder tests plans in a fixed order. With several budgets its plans are the best mixtures for all budgets multiplied
by a scale, from the smallest feasible scale to the one at which no budget binds: costs then grow with the scale, and
none exceeds its own budget before the others do. If prices were scaled instead, nothing would bound the costs of slack
budgets, whose price is 0. A frontier is the same with one budget moved and the others fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.dual.column_generation import best_mixture, budget_units
from redenvelope.dual.oracle import Priced, PriceFunction, RecordedPrice

# Scales of the budgets at which plans are searched for.
_SCALES = (0.6, 0.8, 0.9, 1.0, 1.15, 1.5)
# Penalty on exceeding one budget, in spreads of the reward: keeps mixtures within the budgets whenever possible.
_FINE = 1e4
# Prices this close, relatively, count as the same.
_SAME = 1e-3
# A budget, in units, that no plan reaches but solvers can still compute with.
_NO_LIMIT = 1e6
# Scales between which the ladder's rungs are closer together.
_NEAR = (0.8, 1.2)


@dataclass(frozen=True, eq=False)
class Path:
    """Mixtures of plans, from the smallest budgets to the largest."""

    limits: FloatArray
    """Budgets of each point, [points, budgets]."""
    shares: FloatArray
    """Share of the users who follow each plan, [points, plans]."""
    duals: FloatArray
    """Shadow prices at each point, [points, budgets]."""

    def __len__(self) -> int:
        return len(self.shares)

    def only(self, plans: NDArray[np.intp]) -> Path:
        """The path with only some of the plans, by their positions; the others must have no share in it."""
        return Path(self.limits, self.shares[:, plans], self.duals)


@dataclass(frozen=True, eq=False)
class Paths:
    """The ladder and all frontiers through some plans."""

    plans: Priced
    ladder: Path
    """All budgets multiplied by a scale."""
    frontiers: tuple[Path, ...]
    """One for each budget with the others fixed, [budgets]; without points if the others are infeasible."""

    def ladder_alone(self) -> Paths:
        """The ladder and the plans that it mixes."""
        used = np.flatnonzero((self.ladder.shares > 0).any(axis=0))
        return Paths(self.plans.only(used), self.ladder.only(used), ())


def gather_plans(price: PriceFunction, budgets: FloatArray, passes: int) -> Priced:
    """The plans that column generation prices for the budgets, and for looser and tighter ones.

    All searches advance together, with a few prices of each per pass, so that few passes suffice for all.
    """
    recorded, count = RecordedPrice(price, len(budgets)), len(budgets)
    alone = np.where(np.eye(count, dtype=bool), np.inf, 0.0)
    recorded(np.concatenate([np.zeros((1, count)), alone, np.full((1, count), np.inf)]))
    for number in range(passes):
        plans = recorded.plans
        units = budget_units(plans, budgets)
        wanted = [budgets * scale for scale in _within(plans, budgets, _SCALES)]
        if number % 2:  # every other time, each budget by itself
            wanted += [
                np.where(np.arange(count) == own, budgets * by, budgets) for own in range(count) for by in (0.6, 1.6)
            ]
        found = [best_mixture(plans, limits, units, _fine(plans)).duals for limits in wanted]
        # Also half way from known prices, because the duals of few plans jump.
        around = [row + 0.5 * (_nearest(plans, row) - row) for row in found]
        new = _unknown(np.array(found + around if number < passes - 1 else found), plans.prices)
        if not len(new):
            break
        recorded(new)
    return recorded.plans


def paths_through(plans: Priced, budgets: FloatArray, rungs: int, points: int) -> Paths:
    """The ladder with about `rungs` rungs and frontiers with about `points` points, by the plans' expected outcomes."""
    ladder = ladder_path(plans, budgets, rungs)
    frontiers = [frontier_path(plans, budgets, own, points) for own in range(len(budgets))]
    used = np.zeros(len(plans.prices), dtype=bool)
    for path in (ladder, *frontiers):
        used |= (path.shares > 0).any(axis=0)
    mixed = np.flatnonzero(used)
    return Paths(plans.only(mixed), ladder.only(mixed), tuple(path.only(mixed) for path in frontiers))


def ladder_path(plans: Priced, budgets: FloatArray, rungs: int) -> Path:
    """The ladder: all budgets multiplied by about `rungs` scales."""
    return _path(plans, [budgets * scale for scale in _scales(plans, budgets, rungs)], budgets)


def frontier_path(plans: Priced, budgets: FloatArray, own: int, points: int) -> Path:
    """A frontier: one budget moved to about `points` values, the others fixed; no points if these are infeasible."""
    return _path(plans, _moved(plans, budgets, own, points), budgets)


def _path(plans: Priced, limits: list[FloatArray], budgets: FloatArray) -> Path:
    units, fine = budget_units(plans, budgets), _fine(plans)
    mixed = [best_mixture(plans, limit, units, fine) for limit in limits]
    size = len(limits), len(plans.prices)
    duals = np.reshape([each.duals for each in mixed], (size[0], len(budgets)))
    return Path(
        np.reshape(limits, (size[0], len(budgets))),
        np.reshape([each.shares for each in mixed], size),
        # At the smallest feasible budget every price from some value on is a shadow price, so the dual is the penalty.
        np.where(duals >= 0.999 * fine / units, np.inf, duals),
    )


def _scales(plans: Priced, budgets: FloatArray, rungs: int) -> FloatArray:
    """Rising scales, [rungs], from the smallest feasible one to the one at which no budget binds."""
    least, most = _least_scale(plans, budgets), _most_scale(plans, budgets)
    near = np.clip(_NEAR, least, most)
    half = max(2, rungs // 2)
    parts = [
        np.linspace(near[0], near[1], half),
        np.linspace(least, near[0], max(2, (rungs - half) // 2), endpoint=False),
        np.linspace(near[1], most, max(2, rungs - half - (rungs - half) // 2)),
    ]
    scales = np.unique(np.concatenate([*parts, np.clip([1.0], least, most)]))
    # Neighbours that cannot be told apart become one rung.
    return np.asarray(scales[np.append(True, np.diff(scales) > 1e-6 * most)])


def _within(plans: Priced, budgets: FloatArray, scales: tuple[float, ...]) -> FloatArray:
    return np.unique(np.clip(scales, _least_scale(plans, budgets), _most_scale(plans, budgets)))


def _least_scale(plans: Priced, budgets: FloatArray) -> float:
    """The smallest scale at which some mixture is within all budgets."""
    from scipy.optimize import linprog

    units = budget_units(plans, budgets)
    rows = np.concatenate([plans.costs / units[:, None], -(budgets / units)[:, None]], axis=1)
    count = len(plans.prices)
    one = np.append(np.ones(count), 0.0)[None]
    found = linprog(np.append(np.zeros(count), 1.0), rows, np.zeros(len(budgets)), one, [1.0], method="highs")
    # A budget of 0 cannot be scaled, so there may be no such scale.
    return float(found.x[-1]) if found.x is not None else 1.0


def _most_scale(plans: Priced, budgets: FloatArray) -> float:
    """The scale at which the plan of greatest reward is within all budgets."""
    costs = plans.costs[:, int(np.argmax(plans.rewards))]
    known = budgets > 0
    return max(1.0, float((costs[known] / budgets[known]).max(initial=1.0)))


def _moved(plans: Priced, budgets: FloatArray, own: int, points: int) -> list[FloatArray]:
    """Budgets with one of them moved, from its smallest feasible value to the most that could be spent."""
    others = np.arange(len(budgets)) != own
    units, fine = budget_units(plans, budgets), _fine(plans)
    free = best_mixture(plans, np.where(others, budgets, _NO_LIMIT * units), units, fine)
    if _excess(plans, free.shares, budgets, others, units) > 1e-7:
        return []
    most = float(plans.costs[own] @ free.shares)
    # The least of this one that the others allow: maximise minus its cost instead of the reward.
    alone = Priced(plans.prices, np.concatenate([-plans.costs[[own]], plans.costs]))
    thrifty = best_mixture(alone, np.where(others, budgets, _NO_LIMIT * units), units, _fine(alone))
    least = float(plans.costs[own] @ thrifty.shares)
    values = np.unique(np.concatenate([np.linspace(least, most, points), np.clip([budgets[own]], least, most)]))
    return [np.where(others, budgets, value) for value in values]


def _excess(
    plans: Priced, shares: FloatArray, budgets: FloatArray, which: NDArray[np.bool_], units: FloatArray
) -> float:
    over = np.maximum(plans.costs @ shares - budgets, 0.0) / units
    return float(over[which].sum())


def _fine(plans: Priced) -> float:
    return _FINE * (float(np.ptp(plans.rewards)) or 1.0)


def _nearest(plans: Priced, row: FloatArray) -> FloatArray:
    """The row of finite prices nearest to `row`, [budgets]."""
    finite = plans.prices[plans.finite]
    return np.asarray(finite[np.abs(finite - row).sum(axis=1).argmin()])


def _unknown(rows: FloatArray, known: FloatArray) -> FloatArray:
    """Rows [rows, budgets] that differ from each other and from the known ones."""
    scale = np.abs(rows).max(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    finite = [row for row in known if np.isfinite(row).all()]
    new: list[FloatArray] = []
    for row in rows:
        if all(np.abs((row - other) / scale).max() > _SAME for other in (*finite, *new)):
            new.append(row)
    return np.array(new).reshape(-1, rows.shape[1])
