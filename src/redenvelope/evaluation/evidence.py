"""Evidence: all that an off-policy estimate needs to know of a log and of the policies it is to weigh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import UsageError

__all__ = ["Evidence", "Rows"]

FloatArray = NDArray[np.float64]
Table = NDArray[np.floating]
Rows = slice | NDArray[np.int64]
Cut = slice | NDArray[np.bool_]

# Rows times prices in one batch of an estimator, and the fewest users worth a batch.
_BATCH_NUMBERS, _LEAST_BATCH = 2**17, 256
# Twice this many numbers is more than all arrays of a batch together.
_KEPT_NUMBERS = 4 * _BATCH_NUMBERS


@dataclass(frozen=True, eq=False)
class Evidence:
    """Logged rows seen through policies: one column a price (or a policy, where several are compared).

    Rows `starts[i]:starts[i + 1]` are those of user i, step after step.
    """

    outcome_names: tuple[str, ...]
    """What is estimated: the reward, then one cost for each budget."""
    starts: NDArray[np.int64]
    """First row of each user, and the number of rows at the end, [users + 1]."""
    keys: NDArray[np.uint64]
    """The users as 64-bit numbers, [users]: folds and groups are made of them."""
    ratio: Table
    """Probability of the logged action under the policy over that under the logger, [rows, prices]."""
    outcomes: FloatArray
    """[outcomes, rows]."""
    values: Table | None
    """Baseline of the state: what the policy is predicted to get from there on, [outcomes, rows, prices]."""
    action_values: Table | None
    """Baseline of the logged action, the policy followed afterwards, [outcomes, rows, prices]."""
    steps: int
    """Steps of the longest user, those of other partitions included."""
    unlogged: FloatArray
    """Mean probability that the policy gives to actions the log never holds, [prices]."""
    clipped: FloatArray
    """Share of the rows whose ratio was clipped, [prices]."""
    certain: float
    """Share of the rows whose logged action had probability 1."""
    estimated: bool = False
    """Whether the propensities were estimated from the log, not logged."""
    features: NDArray[np.floating] | None = None
    """What ratios of states are regressed on, [rows, features]."""
    feature_blocks: tuple[int, ...] = ()
    """Widths of nested sets of leading features, rising, for a regression to choose from; none is all of them."""
    past: NDArray[np.floating] | None = None
    """What happened to the user before, as far as states do not tell it, [rows, columns]."""
    own_weights: FloatArray | None = None
    """Weights after each step, [steps, users, prices], where an estimator has others than products of ratios."""

    @property
    def users(self) -> int:
        """Number of users."""
        return len(self.starts) - 1

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.ratio.shape[0])

    @property
    def prices(self) -> int:
        """Number of prices, or policies."""
        return int(self.ratio.shape[1])

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Number of steps of each user, [users]."""
        return np.diff(self.starts)

    @cached_property
    def positions(self) -> tuple[tuple[Rows, Rows], ...]:
        """For the first, second, … step of users: which users have one, and which rows those are.

        Slices where all users have equally many steps, so that nothing is copied.
        """
        longest = int(self.lengths.max())
        if int(self.lengths.min()) == longest:
            return tuple((slice(None), slice(position, None, longest)) for position in range(longest))
        present = [np.flatnonzero(self.lengths > position) for position in range(longest)]
        return tuple((users, self.starts[users] + position) for position, users in enumerate(present))

    @property
    def in_batches(self) -> Iterator[Evidence]:
        """The evidence as views of batches of users, of which an estimator's arrays stay in the cache."""
        return self.in_batches_of(self.steps * self.prices)

    def in_batches_of(self, numbers: int) -> Iterator[Evidence]:
        """Views of batches of users of whom so many numbers each stay in the cache; made anew every time, so that what
        a batch remembers is forgotten with it."""
        users = max(_LEAST_BATCH, _BATCH_NUMBERS // numbers)
        if self.users <= users:
            return iter((self,))
        # Given back at once and never touched: the C library keeps pieces for the next batch only if they are smaller
        # than the largest it was given back, and pages that are asked for anew cost as much as the arithmetic.
        np.empty(_KEPT_NUMBERS)
        return self.batches(users)

    @cached_property
    def weights(self) -> FloatArray:
        """How much likelier the policy makes what was logged, after each step, [steps, users, prices], to be read
        only: products of ratios, unless there are own weights; a user who has left keeps the last one."""
        if self.own_weights is not None:
            return self.own_weights
        if self.steps == 1:
            return self.ratio[None].astype(np.float64, copy=False)
        weights = np.empty((self.steps, self.users, self.prices))
        weights[0] = self.ratio[self.positions[0][1]]
        for position, (users, rows) in enumerate(self.positions[1:], start=1):
            if isinstance(users, slice):
                np.multiply(weights[position - 1], self.ratio[rows], out=weights[position])
            else:
                weights[position] = weights[position - 1]
                weights[position, users] *= self.ratio[rows]
        last = len(self.positions)
        weights[last:] = weights[last - 1]
        return weights

    def baseline(self) -> tuple[Table, Table]:
        """Baselines of states and of logged actions, both [outcomes, rows, prices]."""
        if self.values is None or self.action_values is None:
            raise UsageError(
                "this estimator needs a baseline: give values `to_go` to the evidence (a planner's, or "
                "`fitted_values` from the log itself), or use an importance sampling estimator"
            )
        return self.values, self.action_values

    def with_baseline(self, values: Table, action_values: Table) -> Evidence:
        """The same rows with other baselines of states and logged actions, both [outcomes, rows, prices]."""
        shape = (len(self.outcomes), self.rows, self.prices)
        for name, array in (("values", values), ("action_values", action_values)):
            if array.shape != shape:
                raise UsageError(f"{name} must be [outcomes, rows, prices] = {shape}, not {array.shape}")
        return replace(self, values=values, action_values=action_values)

    def of_users(self, chosen: NDArray[np.bool_]) -> Evidence:
        """The evidence of some users, chosen [users]; the same if they are all chosen."""
        if chosen.all():
            return self
        starts = np.concatenate([[0], np.cumsum(self.lengths[chosen])])
        return self._cut(starts, chosen, np.repeat(chosen, self.lengths))

    def _cut(self, starts: NDArray[np.int64], users: Cut, rows: Cut) -> Evidence:
        """Some users and their rows, which start there; views where both are slices."""
        return replace(
            self,
            starts=starts,
            keys=self.keys[users],
            ratio=self.ratio[rows],
            outcomes=self.outcomes[:, rows],
            values=None if self.values is None else self.values[:, rows],
            action_values=None if self.action_values is None else self.action_values[:, rows],
            features=None if self.features is None else self.features[rows],
            past=None if self.past is None else self.past[rows],
            own_weights=None if self.own_weights is None else self.own_weights[:, users],
        )

    def at_prices(self, places: NDArray[np.integer]) -> Evidence:
        """The same rows at some of the prices, [some prices]."""
        if self.own_weights is not None:
            raise UsageError("evidence that was weighed already cannot be cut by prices; cut it before")
        return replace(
            self,
            ratio=self.ratio[:, places],
            values=None if self.values is None else self.values[..., places],
            action_values=None if self.action_values is None else self.action_values[..., places],
            unlogged=self.unlogged[places],
            clipped=self.clipped[places],
        )

    def clip(self, limit: float) -> Evidence:
        """The same rows with no ratio of a step above a limit: less variance, and a bias nobody can tell."""
        if not limit > 0:
            raise UsageError(f"the limit of clipped ratios must be above 0, not {limit}")
        share = (self.ratio > limit).mean(axis=0)
        return replace(self, ratio=np.minimum(self.ratio, limit), clipped=share)

    def batches(self, users: int) -> Iterator[Evidence]:
        """Walk over the evidence in batches of so many users, as views."""
        for first in range(0, self.users, users):
            starts = self.starts[first : first + users + 1]
            rows = slice(int(starts[0]), int(starts[-1]))
            yield self._cut(starts - starts[0], slice(first, first + users), rows)
