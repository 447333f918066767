"""The ladder: plans in an order of prices fixed in advance, with their rewards and costs on the check users.

A rung holds moments over the check users (means, squares, cubes, and products with the next rung), so any budget can be
certified later without the log. Between two rungs lie mixtures of their plans, drawn once per user, whose bounds follow
from the same moments. `evaluation/confidence.py` has the formula of the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.errors import PlanError, UsageError
from redenvelope.evaluation.confidence import Estimate, Spread
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.influence import NeighbourSums
from redenvelope.policies.pricing import Pricing


@dataclass(frozen=True)
class PriceShare:
    """A row of prices and the share of users who follow it."""

    prices: tuple[float, ...]
    """[budgets]"""
    share: float


@dataclass(frozen=True, eq=False)
class Mixtures:
    """Rungs given as mixtures of the same plans."""

    prices: FloatArray
    """Prices of the plans, [plans, budgets]."""
    shares: FloatArray
    """[rungs, plans]"""
    duals: FloatArray
    """Shadow prices of the rungs, [rungs, budgets]."""

    def price_shares(self, rung: int) -> tuple[PriceShare, ...]:
        """The plans mixed on a rung, with their shares."""
        return tuple(
            PriceShare(tuple(float(price) for price in self.prices[plan]), float(self.shares[rung, plan]))
            for plan in np.flatnonzero(self.shares[rung])
        )


@dataclass(frozen=True)
class Rung:
    """The plan at one row of prices, or a mixture of such plans.

    Moments are means over users, one per outcome: the reward, then the costs.
    """

    prices: tuple[float, ...]
    """[budgets]"""
    mean: tuple[float, ...]
    """Mean reward and costs per user, [outcomes]."""
    square: tuple[float, ...]
    """Mean squared deviation from the mean, [outcomes]."""
    cube: tuple[float, ...]
    """Mean cubed deviation, [outcomes]."""
    products: tuple[tuple[float, ...], ...]
    """Means of d·e, d²·e and d·e² for deviations d here and e on the next rung, [3, outcomes]; empty on the last."""
    reasons: tuple[Reason, ...]
    """Reasons against the estimates; if one is a refusal, the fixed-sequence test steps over the rung."""
    diagnostics: dict[str, Any]
    objections: tuple[Reason, ...] = ()
    """Other reasons against a plan that stops here; the test continues, because they may not apply to the next rung."""
    mixture: tuple[PriceShare, ...] = ()
    """With several budgets, the plans that users are drawn to, once per user; `prices` then holds the shadow prices."""

    @property
    def price_shares(self) -> tuple[PriceShare, ...]:
        """The prices that users follow, with their shares."""
        return self.mixture or (PriceShare(self.prices, 1.0),)

    @property
    def is_unreliable(self) -> bool:
        """Whether one of the reasons against the estimates is a refusal."""
        return any(reason.weight is Weight.REFUSAL for reason in self.reasons)


@dataclass(frozen=True)
class Place:
    """A rung, or a mixture above it: `share` of the users, drawn once per user, follow the next rung."""

    rung: int
    share: float = 0.0

    def mix(self, values: NDArray[Any], axis: int = -1) -> FloatArray:
        """Values of all rungs along an axis [rungs], interpolated at this place."""
        here = np.asarray(np.take(values, self.rung, axis=axis), dtype=np.float64)
        if not self.share:
            return here
        return np.asarray((1 - self.share) * here + self.share * np.take(values, self.rung + 1, axis=axis))


@dataclass(frozen=True)
class Ladder:
    """Rungs in order, from the cheapest plan to the one that ignores cost."""

    users: int
    """Number of independent units checked: users, or clusters where users are not independent."""
    estimator: str
    rungs: tuple[Rung, ...]
    """With one budget, prices fall from each rung to the next."""
    joint: tuple[tuple[float, float], ...] = ()
    """Pairs of confidences: at the second for each single bound, all rungs' bounds hold simultaneously at the first."""
    clustered: int = 0
    """Number of users in the clusters; 0 where users are independent."""
    most_per_user: float | None = None
    """The cap on a user's cost over the campaign, at which logged costs are truncated; None where there is none."""
    largest: float | None = None
    """The most that one user can add to an estimated cost (the cap times the largest weight), for bounds that hold in
    finite samples whatever the tail; None for the bounds of `Spread.upper`."""

    def __post_init__(self) -> None:
        shape = {(len(rung.mean), len(rung.square), len(rung.cube), len(rung.prices) + 1) for rung in self.rungs}
        if not self.rungs or len({size for sizes in shape for size in sizes}) != 1 or self.users < 1:
            raise PlanError("the ladder is damaged: its rungs must have one mean, square and cube for each outcome")
        wanted = (3, len(self.rungs[0].mean))
        if any(np.shape(rung.products) != wanted for rung in self.rungs[:-1]):
            raise PlanError(f"the ladder is damaged: products between rungs must be {wanted} numbers")

    @property
    def people(self) -> int:
        """Number of users who were checked."""
        return self.clustered or self.users

    @property
    def clusters(self) -> int | None:
        """Number of clusters; None where users are independent."""
        return self.users if self.clustered else None

    @cached_property
    def means(self) -> FloatArray:
        """Mean reward and costs, [outcomes, rungs]."""
        return np.array([rung.mean for rung in self.rungs]).T

    @cached_property
    def prices(self) -> FloatArray:
        """Prices, [rungs, budgets]."""
        return np.array([rung.prices for rung in self.rungs])

    @cached_property
    def unreliable(self) -> NDArray[np.bool_]:
        """Rungs where no plan may stop, [rungs]."""
        return np.array([rung.is_unreliable for rung in self.rungs])

    def bounds(self, confidence: float) -> tuple[FloatArray, FloatArray]:
        """One-sided lower and upper bounds of every rung, each [outcomes, rungs]."""
        squares, cubes = (np.array([getattr(rung, name) for rung in self.rungs]).T for name in ("square", "cube"))
        spread = self._spread(self.means, squares, cubes)
        return spread.lower(confidence), self._upper(spread, confidence)

    def between(self, rung: int, shares: FloatArray, confidence: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Means, lower and upper bounds, each [outcomes, shares], of mixtures with shares [shares] of the next rung."""
        spread = self._spread(*self._mixed(rung, shares))
        return spread.mean, spread.lower(confidence), self._upper(spread, confidence)

    def each_confidence(self, confidence: float) -> float:
        """The confidence of each single bound that makes all rungs' bounds hold simultaneously at `confidence`."""
        for together, each in self.joint:
            if together == confidence:
                return each
        known = ", ".join(f"{together:g}" for together, _ in self.joint) or "none"
        raise UsageError(f"bounds for all prices at once are known for a confidence of {known}, not of {confidence:g}")

    def for_any_tail(self, largest: float) -> Ladder:
        """The same ladder with bounds for any tail, which allow estimates that rest on few users."""
        rungs = (
            replace(rung, reasons=tuple(reason for reason in rung.reasons if reason.rule != "concentrated"))
            for rung in self.rungs
        )
        return replace(self, rungs=tuple(rungs), largest=largest, joint=())

    def pricing(self, place: Place) -> Pricing:
        """The prices, with shares of users, of a plan at a place."""
        rows: dict[tuple[float, ...], float] = {}
        for rung, weight in ((place.rung + 1, place.share), (place.rung, 1 - place.share)):
            for each in self.rungs[rung].price_shares if weight else ():
                rows[each.prices] = rows.get(each.prices, 0.0) + weight * each.share
        return Pricing(tuple(rows), tuple(rows.values()))

    def duals(self, place: Place) -> tuple[float, ...]:
        """Shadow prices of a plan at a place, [budgets]: those of its rung, all finite.

        At an infinite price only cost counts. More budget then leads to the next rung with a finite price, so that
        price is a lower bound of what it buys; if there is no such rung, more budget buys nothing.
        """
        above = self.prices[place.rung :]
        finite = np.isfinite(above)
        first = np.take_along_axis(above, finite.argmax(axis=0)[None], axis=0)[0]
        return tuple(float(price) for price in np.where(finite.any(axis=0), first, 0.0))

    def mixtures(self) -> Mixtures | None:
        """The rungs as mixtures of plans; None if every rung is a single plan."""
        if not any(rung.mixture for rung in self.rungs):
            return None
        rows = dict.fromkeys(each.prices for rung in self.rungs for each in rung.price_shares)
        places = {prices: place for place, prices in enumerate(rows)}
        shares = np.zeros((len(self.rungs), len(rows)))
        for number, rung in enumerate(self.rungs):
            for each in rung.price_shares:
                shares[number, places[each.prices]] += each.share
        return Mixtures(np.array(list(rows)), shares, self.prices)

    def figures(self, place: Place, confidence: float) -> tuple[Estimate, ...]:
        """Reward and costs of a plan at a place, with one-sided bounds, [outcomes]."""
        spread = self._spread(*self._mixed(place.rung, np.array([place.share])))
        bounds = (spread.lower(confidence), self._upper(spread, confidence))
        rows = np.stack([spread.mean, *bounds, spread.standard_error])[:, :, 0].T.tolist()
        return tuple(Estimate(mean, least, most, error, self.estimator) for mean, least, most, error in rows)

    def reasons(self, place: Place) -> tuple[Reason, ...]:
        """Reasons against a plan at a place, one per rule."""
        found: dict[str, Reason] = {}
        for rung in self._rungs_at(place):
            for reason in (*rung.objections, *rung.reasons):
                found.setdefault(reason.rule, reason)
        return tuple(found.values())

    def diagnostics(self, place: Place) -> dict[str, Any]:
        """Diagnostics of the rung that most users follow."""
        return self._rungs_at(place)[-1 if place.share > 0.5 else 0].diagnostics

    def _rungs_at(self, place: Place) -> Sequence[Rung]:
        return self.rungs[place.rung : place.rung + (2 if place.share else 1)]

    def _spread(self, means: FloatArray, squares: FloatArray, cubes: FloatArray) -> Spread:
        return Spread(self.users, means, squares * self.users, cubes * self.users)

    def _upper(self, spread: Spread, confidence: float) -> FloatArray:
        """One-sided upper bounds, [outcomes, ...]; bounds for any tail are for costs only, which the cap bounds."""
        upper = spread.upper(confidence)
        if self.largest is not None:
            upper[1:] = spread.bounded_upper(confidence, self.largest)[1:]
        return upper

    def _mixed(self, rung: int, shares: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Means, squares and cubes of mixtures with the next rung, each [outcomes, shares]."""
        here = self.rungs[rung]
        mean, square, cube = (np.array(values)[:, None] for values in (here.mean, here.square, here.cube))
        if not shares.any():
            nothing = np.zeros(len(shares))
            return mean + nothing, square + nothing, cube + nothing
        after, stay = self.rungs[rung + 1], 1 - shares
        once, left, right = (np.array(product)[:, None] for product in here.products)
        next_mean, next_square, next_cube = (
            np.array(values)[:, None] for values in (after.mean, after.square, after.cube)
        )
        return (
            stay * mean + shares * next_mean,
            np.maximum(stay**2 * square + 2 * stay * shares * once + shares**2 * next_square, 0.0),  # for rounding
            stay**3 * cube + 3 * stay**2 * shares * left + 3 * stay * shares**2 * right + shares**3 * next_cube,
        )


def new_ladder(
    prices: FloatArray,
    sums: NeighbourSums,
    reasons: Sequence[Sequence[Reason]],
    diagnostics: Sequence[dict[str, Any]],
    estimator: str,
    joint: tuple[tuple[float, float], ...] = (),
    mixtures: Mixtures | None = None,
    clustered: int = 0,
) -> Ladder:
    """A ladder at prices [rungs, budgets] from the figures there; the prices of mixtures are shadow prices."""

    def row(values: FloatArray) -> tuple[float, ...]:
        return tuple(float(value) for value in values)

    rungs = []
    for place, own in enumerate(prices):
        products = () if place + 1 == len(prices) else tuple(row(each) for each in sums.products[:, :, place])
        rungs.append(
            Rung(
                prices=row(own),
                mean=row(sums.means[:, place]),
                square=row(sums.squares[:, place]),
                cube=row(sums.cubes[:, place]),
                products=products,
                reasons=tuple(reasons[place]),
                diagnostics=dict(diagnostics[place]),
                mixture=() if mixtures is None else mixtures.price_shares(place),
            )
        )
    return Ladder(sums.users, estimator, tuple(rungs), joint, clustered)


# Plans that can be mixed in any shares, so that one of several budgets can be moved without the log.


@dataclass(frozen=True)
class MixableSums:
    """Means over the check users of products of deviations, for all pairs and triples of plans."""

    squares: tuple[tuple[float, ...], ...]
    """Pairs i ≤ j, in the order of `combinations_with_replacement`, [outcomes, pairs]."""
    cubes: tuple[tuple[float, ...], ...]
    """Triples i ≤ j ≤ k likewise, [outcomes, triples]."""

    @classmethod
    def of(cls, added: FloatArray) -> MixableSums:
        """From each user's terms in the estimates of plans, [outcomes, users, plans]."""
        away, (_, users, plans) = added - added.mean(axis=1, keepdims=True), added.shape
        squares = np.swapaxes(away, 1, 2) @ away / users
        cubes = np.stack([np.swapaxes(away * away[..., [plan]], 1, 2) @ away for plan in range(plans)], axis=1) / users
        pairs, triples = (tuple(np.array(_sorted(plans, size)).T) for size in (2, 3))
        return cls(*(tuple(map(tuple, part.tolist())) for part in (squares[:, *pairs], cubes[:, *triples])))

    def mixed(self, means: FloatArray, shares: FloatArray, users: int) -> NeighbourSums:
        """The moments of an ordered list of mixtures, shares [mixtures, plans], from plans' means [outcomes, plans]."""
        squares, cubes = (_whole(np.array(part), shares.shape[1]) for part in (self.squares, self.cubes))
        once = squares @ shares.T  # [outcomes, plans, mixtures]
        twice = np.einsum("oabc,mb,mc->oam", cubes, shares, shares)
        left, right = shares[:-1], shares[1:]
        products = [
            np.einsum("ma,oam->om", left, once[..., 1:]),
            np.einsum("ma,oam->om", right, twice[..., :-1]),
            np.einsum("ma,oam->om", left, twice[..., 1:]),
        ]
        own = [np.einsum("ma,oam->om", shares, part) for part in (once, twice)]
        return NeighbourSums(users, means @ shares.T, np.maximum(own[0], 0.0), own[1], np.stack(products))


def _sorted(plans: int, size: int) -> list[tuple[int, ...]]:
    return list(combinations_with_replacement(range(plans), size))


def _whole(part: FloatArray, plans: int) -> FloatArray:
    """The symmetric array [outcomes, plans, plans, …] whose sorted entries are given, [outcomes, entries]."""
    size = 2 if part.shape[1] == plans * (plans + 1) // 2 else 3
    known = np.zeros((plans,) * size, dtype=np.intp)
    known[tuple(np.array(_sorted(plans, size)).T)] = np.arange(part.shape[1])
    places = np.sort(np.indices(known.shape).reshape(size, -1), axis=0)
    return np.asarray(part[:, known[tuple(places)]].reshape(len(part), *known.shape))


def moved_ladder(
    ladder: Ladder, sums: NeighbourSums, mixtures: Mixtures, reasons: Sequence[Sequence[Reason]]
) -> Ladder:
    """A ladder of other mixtures of the same plans, with diagnostics and objections of the rungs nearest in cost."""
    rungs = new_ladder(mixtures.duals, sums, reasons, [{}] * len(reasons), ladder.estimator, (), mixtures).rungs
    scale = np.maximum(np.abs(ladder.means[1:]).max(axis=1), 1e-300)
    own, known = (np.array([rung.mean[1:] for rung in each]) / scale for each in (rungs, ladder.rungs))
    nearest = [ladder.rungs[int(np.abs(known - row).sum(axis=1).argmin())] for row in own]
    told = [
        replace(rung, diagnostics=near.diagnostics, objections=near.objections)
        for rung, near in zip(rungs, nearest, strict=True)
    ]
    return replace(ladder, rungs=tuple(told), joint=())
