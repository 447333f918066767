"""Off-policy data: importance ratios, outcomes and baselines of logged rows, for the policies to evaluate.

`off_policy_data` makes them from a log and a policy's decisions, `gather` from plain arrays, in cache-sized blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from redenvelope.arrays import FloatArray
from redenvelope.errors import UsageError
from redenvelope.log.log import Log
from redenvelope.wording import counted

Table = NDArray[np.floating]
Rows = slice | NDArray[np.int64]
Cut = slice | NDArray[np.bool_]

# Rows times prices in one batch of an estimator, and the smallest number of users in a batch.
_BATCH_NUMBERS, _LEAST_BATCH = 2**17, 256
# More numbers than all arrays of a batch have together, with a factor of two to spare.
_KEPT_NUMBERS = 4 * _BATCH_NUMBERS


@dataclass(frozen=True, eq=False)
class OffPolicyData:
    """Logged rows with a policy's ratios and baselines; one column per price, or per policy if several are compared.
    Rows `starts[i]:starts[i + 1]` are those of user i, in the order of steps."""

    outcome_names: tuple[str, ...]
    """The reward, then one cost per budget."""
    starts: NDArray[np.int64]
    """First row of each user, and the number of rows at the end, [users + 1]."""
    keys: NDArray[np.uint64]
    """The users as 64-bit numbers, [users]; they determine folds and groups."""
    ratio: Table
    """Importance ratio: probability of the logged action under the policy divided by its propensity, [rows, prices]."""
    outcomes: FloatArray
    """[outcomes, rows]."""
    values: Table | None
    """Baseline of the state: predicted outcomes to go under the policy, [outcomes, rows, prices]."""
    action_values: Table | None
    """Baseline of the logged action, with the policy followed afterwards, [outcomes, rows, prices]."""
    steps: int
    """Number of steps of the longest user, other partitions included."""
    unlogged: FloatArray
    """Mean probability of never-logged actions under the policy, [prices]."""
    clipped: FloatArray
    """Share of rows with a clipped ratio, [prices]."""
    certain: float
    """Share of rows whose logged action had probability 1."""
    estimated: bool = False
    """Whether the propensities were estimated from the log, not logged."""
    features: NDArray[np.floating] | None = None
    """Features that state ratios are regressed on, [rows, features]."""
    feature_blocks: tuple[int, ...] = ()
    """Ascending widths of nested sets of leading features for a regression to choose from; if empty, all are used."""
    past: NDArray[np.floating] | None = None
    """The users' past, as far as states do not include it, [rows, columns]; for estimators that check another one."""
    group_ratio: Table | None = None
    """Importance ratio over groups of items, for `over_groups`, [rows, prices]."""
    own_weights: FloatArray | None = None
    """Importance weights after each step, [steps, users, prices], of an estimator that does not multiply ratios."""

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
        """For the users' first, second, … step: which users have one, and its rows.

        These are slices if all users have the same number of steps, so that nothing is copied.
        """
        longest = int(self.lengths.max())
        if int(self.lengths.min()) == longest:
            return tuple((slice(None), slice(position, None, longest)) for position in range(longest))
        present = [np.flatnonzero(self.lengths > position) for position in range(longest)]
        return tuple((users, self.starts[users] + position) for position, users in enumerate(present))

    @property
    def in_batches(self) -> Iterator[OffPolicyData]:
        """Views of batches of users, small enough for an estimator's arrays to stay in the cache."""
        return self.in_batches_of(self.steps * self.prices)

    def in_batches_of(self, numbers: int) -> Iterator[OffPolicyData]:
        """Views of batches of users that fit the cache at `numbers` numbers per user; made anew on every call, so that
        a batch's cached arrays are freed with it."""
        users = max(_LEAST_BATCH, _BATCH_NUMBERS // numbers)
        if self.users <= users:
            return iter((self,))
        # This memory is freed at once and never touched. The C library reuses memory for the next batch only if it is
        # smaller than the largest piece freed so far, and fresh pages cost as much as the arithmetic.
        np.empty(_KEPT_NUMBERS)
        return self.batches(users)

    @cached_property
    def weights(self) -> FloatArray:
        """Importance weights after each step, [steps, users, prices], read-only: cumulative products of ratios, unless
        there are `own_weights`. A user who has left keeps the last weight."""
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
                "this estimator needs a baseline: pass `to_go`, the outcomes to go of every action (a planner's), with "
                "the off-policy data, or use an importance sampling estimator"
            )
        return self.values, self.action_values

    def of_users(self, chosen: NDArray[np.bool_]) -> OffPolicyData:
        """The data of the users selected by a mask [users]; the same object if that is all of them."""
        if chosen.all():
            return self
        starts = np.concatenate([[0], np.cumsum(self.lengths[chosen])])
        return self._cut(starts, chosen, np.repeat(chosen, self.lengths))

    def _cut(self, starts: NDArray[np.int64], users: Cut, rows: Cut) -> OffPolicyData:
        """The data of some users and rows, with new `starts`; views if both are slices."""
        return replace(
            self,
            starts=starts,
            keys=self.keys[users],
            ratio=self.ratio[rows],
            group_ratio=None if self.group_ratio is None else self.group_ratio[rows],
            outcomes=self.outcomes[:, rows],
            values=None if self.values is None else self.values[:, rows],
            action_values=None if self.action_values is None else self.action_values[:, rows],
            features=None if self.features is None else self.features[rows],
            past=None if self.past is None else self.past[rows],
            own_weights=None if self.own_weights is None else self.own_weights[:, users],
        )

    def at_prices(self, places: NDArray[np.integer]) -> OffPolicyData:
        """The same rows at some of the prices, by index [some prices]."""
        if self.own_weights is not None:
            raise UsageError("off-policy data with an estimator's weights cannot be cut by prices; cut it before")
        return replace(
            self,
            ratio=self.ratio[:, places],
            group_ratio=None if self.group_ratio is None else self.group_ratio[:, places],
            values=None if self.values is None else self.values[..., places],
            action_values=None if self.action_values is None else self.action_values[..., places],
            unlogged=self.unlogged[places],
            clipped=self.clipped[places],
        )

    def over_groups(self) -> OffPolicyData:
        """The same rows with importance ratios over groups of items (`evaluation/item_groups.py`)."""
        assert self.group_ratio is not None
        return replace(self, ratio=self.group_ratio, group_ratio=None)

    def clip(self, limit: float) -> OffPolicyData:
        """The same rows with the ratio of each step limited: less variance, and an unknown bias."""
        if not limit > 0:
            raise UsageError(f"the limit at which ratios are clipped must be above 0, not {limit}")
        share = (self.ratio > limit).mean(axis=0)
        return replace(self, ratio=np.minimum(self.ratio, limit), clipped=share)

    def batches(self, users: int) -> Iterator[OffPolicyData]:
        """Yield the data in batches of `users` users, as views."""
        for first in range(0, self.users, users):
            starts = self.starts[first : first + users + 1]
            rows = slice(int(starts[0]), int(starts[-1]))
            yield self._cut(starts - starts[0], slice(first, first + users), rows)


# From a log and a policy's decisions to off-policy data.


@dataclass(frozen=True, eq=False)
class Extent:
    """Properties of the complete log that a partition does not show."""

    steps: int
    """Number of steps of the longest user."""
    logged: NDArray[np.bool_]
    """Which actions were logged, [actions]."""

    @classmethod
    def of(cls, log: Log) -> Extent:
        """The extent of a complete log."""
        return cls(int(log.lengths.max()), np.bincount(log.action, minlength=len(log.catalogue)) > 0)


def off_policy_data(
    log: Log,
    probabilities: Table,
    to_go: Table | None = None,
    *,
    extent: Extent | None = None,
    features: Table | None = None,
    feature_blocks: tuple[int, ...] = (),
    past: Table | None = None,
) -> OffPolicyData:
    """The off-policy data of a log, or of a partition of it; `extent` is then that of the complete log.

    The arrays are as in `gather`.
    """
    refuse_gaps(log)
    extent = extent or Extent.of(log)
    logged = np.zeros(probabilities.shape[-1], dtype=bool)
    logged[: len(extent.logged)] = extent.logged
    return gather(
        starts=log.starts,
        keys=log.keys,
        action=log.action,
        propensity=log.propensity,
        outcomes=log.outcomes,
        outcome_names=log.outcome_names,
        probabilities=probabilities,
        to_go=to_go,
        features=features,
        feature_blocks=feature_blocks,
        past=past,
        logged_actions=logged,
        steps=extent.steps,
        estimated=log.propensity_source == "estimated",
    )


def refuse_gaps(log: Log) -> None:
    """Refuse a log with gaps between a user's steps."""
    if log.has_gaps:
        raise UsageError(
            "steps of some users are missing from the log: what the missing rows cost and earned, and how likely they "
            "were, is unknown, so no sequence can be weighted; bring every step, or number the steps without gaps"
        )


# Block size for probabilities: a block and its products stay in the second-level cache.
_BLOCK_NUMBERS = 2**17
_CERTAIN = 1 - 1e-9
_FEW_ROWS = 4096
# Policies computed in float32 have probabilities that sum to one only this closely.
_PROBABILITY_TOLERANCE = 1e-4


def gather(
    *,
    starts: NDArray[np.int64],
    keys: NDArray[np.integer],
    action: NDArray[np.integer],
    propensity: ArrayLike,
    outcomes: ArrayLike,
    probabilities: Table,
    to_go: Table | None = None,
    outcome_names: Sequence[str] = ("reward", "cost"),
    features: Table | None = None,
    feature_blocks: tuple[int, ...] = (),
    past: Table | None = None,
    logged_actions: NDArray[np.bool_] | None = None,
    steps: int | None = None,
    estimated: bool = False,
) -> OffPolicyData:
    """Off-policy data from plain arrays.

    `starts` [users + 1] and `keys` [users]; `action` and `propensity` [rows]; `outcomes` [outcomes, rows];
    `probabilities` [rows, prices, actions] and `to_go`, the outcomes to go of every action with the policy followed
    afterwards, [outcomes, rows, prices, actions], both without the axis of prices if there is one for all; `features`
    [rows, features], whose leading columns may be nested sets to choose from, `feature_blocks` wide; `past` [rows,
    columns], what happened before, as far as features do not include it. If the rows are part of a larger log,
    `logged_actions` [actions] marks the actions that occur in that log, and `steps` is the length of its longest user.
    """
    observed = checked_outcomes(outcomes, tuple(outcome_names), len(action))
    shares, futures = aligned(probabilities, to_go, len(observed), len(action))
    rows, prices, actions = shares.shape
    chance = np.asarray(propensity, dtype=np.float64)
    longest = check_rows(starts, keys, action, chance, actions)
    ratio = np.empty((rows, prices), dtype=shares.dtype)
    values, logged_values = _room(len(futures), rows, prices, shares.dtype)
    missing = np.zeros(prices)
    is_logged = _seen(action, actions) if logged_actions is None else logged_actions
    is_all_logged = bool(is_logged.all())
    block = min(rows, max(1, _BLOCK_NUMBERS // (prices * actions)))
    # Allocated once, so that no block allocates memory; unused if everything is contiguous.
    copies = np.empty((len(futures) + 1, block, prices, actions), dtype=shares.dtype)
    cells = np.arange(block * prices).reshape(block, prices) * actions
    for first in range(0, rows, block):
        part = slice(first, min(first + block, rows))
        share, totals = checked_shares(contiguous(shares[part], copies[-1]), first)
        logged = cells[: len(share)] + action[part, None]
        _pick(share, logged, out=ratio[part])
        ratio[part] /= chance[part, None]
        for place, future in enumerate(futures):
            ahead = contiguous(future[part], copies[place])
            _pick(ahead, logged, out=logged_values[place, part])
            _expect(share, ahead, copies[place], out=values[place, part])
        if totals is not None:
            ratio[part] /= totals
            values[:, part] /= totals
        if not is_all_logged:
            missing += share[:, :, ~is_logged].sum(axis=(0, 2), dtype=np.float64)
    for baseline in (values, logged_values):
        check_finite(baseline, "a baseline (to_go)")
    return OffPolicyData(
        outcome_names=tuple(outcome_names),
        starts=starts,
        keys=keys.astype(np.uint64, copy=False),
        ratio=ratio,
        outcomes=observed,
        values=None if to_go is None else values,
        action_values=None if to_go is None else logged_values,
        steps=max(longest, steps or 0),
        unlogged=missing / rows,
        clipped=np.zeros(prices),
        certain=float((chance >= _CERTAIN).mean()) if float(chance.max()) >= _CERTAIN else 0.0,
        estimated=estimated,
        features=None if features is None else checked_features(features, rows),
        feature_blocks=feature_blocks,
        past=None if past is None else checked_features(past, rows),
    )


def _room(baselines: int, rows: int, prices: int, dtype: DTypeLike) -> tuple[Table, Table]:
    """Two uninitialised arrays of baselines [baselines, rows, prices], in the precision of their inputs.

    They share one allocation, which the allocator can reuse for the next pass; fresh pages cost as much as the
    arithmetic.
    """
    room = np.empty((2 * baselines, rows, prices), dtype=dtype)
    return room[:baselines], room[baselines:]


def _seen(action: NDArray[np.integer], actions: int) -> NDArray[np.bool_]:
    """Which actions occur in the rows, [actions]."""
    # Usually all occur in the first few thousand rows.
    few = np.bincount(action[:_FEW_ROWS], minlength=actions) > 0
    return few if few.all() else np.bincount(action, minlength=actions) > 0


def _pick(block: Table, cells: NDArray[np.int64], out: Table) -> None:
    """Copy the entries of a contiguous block at flat indices [rows, prices] to `out`."""
    if block.dtype == out.dtype:
        # Any mode but "raise" writes in place; the indices are known to be valid.
        block.take(cells, out=out, mode="clip")
    else:
        out[...] = block.take(cells)


def _expect(share: Table, ahead: Table, room: Table, out: Table) -> None:
    """The mean of `ahead` [rows, prices, actions] under `share`, to `out` [rows, prices]; `room` may be `ahead`'s."""
    if share.dtype == np.float64:
        np.einsum("npa,npa->np", share, ahead, out=out)
    else:
        # In single precision, multiplying and then summing is twice as fast.
        out[...] = over_actions(np.multiply(share, ahead, out=room[: len(share)]))


def aligned(
    probabilities: NDArray[np.floating], to_go: NDArray[np.floating] | None, outcomes: int, rows: int
) -> tuple[NDArray[np.floating], list[NDArray[np.floating]]]:
    """Reshape probabilities, and the outcomes to go if given, to [rows, prices, actions]."""
    if probabilities.ndim not in (2, 3) or len(probabilities) != rows:
        raise UsageError(
            f"probabilities must be [rows, actions] or [rows, prices, actions] with {rows} rows, "
            f"not of shape {probabilities.shape}"
        )
    if not np.issubdtype(probabilities.dtype, np.floating):
        probabilities = probabilities.astype(np.float64)
    shares = probabilities.reshape(rows, -1, probabilities.shape[-1])
    if to_go is None:
        return shares, []
    if to_go.shape not in ((outcomes, *probabilities.shape), (outcomes, rows, shares.shape[2])):
        raise UsageError(
            f"to_go must be [outcomes, …] with {counted(outcomes, 'outcome')}, each of the shape of probabilities, "
            f"{probabilities.shape}, not {to_go.shape}"
        )
    return shares, [future.reshape(rows, -1, future.shape[-1]) for future in to_go]


def checked_outcomes(outcomes: ArrayLike, names: tuple[str, ...], rows: int) -> FloatArray:
    """The outcomes of each row, [outcomes, rows], checked to be finite."""
    table = np.asarray(outcomes, dtype=np.float64)
    if table.shape != (len(names), rows):
        raise UsageError(f"outcomes must be [outcomes, rows] = {(len(names), rows)}, not {table.shape}")
    for name, column in zip(names, table, strict=True):
        check_finite(column, name)
    return table


def checked_features(features: NDArray[np.floating], rows: int) -> NDArray[np.floating]:
    """Features that state ratios are regressed on, [rows, features], checked to be finite."""
    if features.ndim != 2 or len(features) != rows:
        raise UsageError(f"features must be [rows, features] with {rows} rows, not of shape {features.shape}")
    check_finite(features, "a feature")
    return features


def check_rows(
    starts: NDArray[np.int64],
    keys: NDArray[np.integer],
    action: NDArray[np.integer],
    propensity: FloatArray,
    actions: int,
) -> int:
    """Check the columns, and return the number of steps of the longest user."""
    rows, lengths = len(action), np.diff(starts)
    if rows == 0 or starts[0] != 0 or starts[-1] != rows or int(lengths.min()) < 1:
        raise UsageError("starts must rise from 0 to the number of rows: every user needs at least one row")
    if keys.shape != lengths.shape:
        raise UsageError(f"keys must be [users] = {lengths.shape}, one for each of the starts but the last")
    if not 0 <= int(action.min()) <= int(action.max()) < actions:
        raise UsageError(f"actions must be indices from 0 to {actions - 1}, one for each action of the policy")
    if propensity.shape != (rows,):
        raise UsageError(f"propensity must be [rows] = {(rows,)}, not {propensity.shape}")
    highest = float(propensity.max())
    if highest > 1 + 1e-9:
        hint = "; they look like percentages: divide them by 100" if highest <= 100 else ""
        raise UsageError(f"propensities are probabilities and cannot be above 1, but one is {highest:g}{hint}")
    if not float(propensity.min()) > 0:
        row = int(np.flatnonzero(~(propensity > 0))[0])
        raise UsageError(
            f"the propensity of row {row} is {propensity[row]:g}: an action that was logged had a probability above 0; "
            "log the true probability, or leave the row's user out"
        )
    return int(lengths.max())


def check_finite(numbers: NDArray[np.floating], name: str) -> None:
    """Refuse an array with entries that are not finite."""
    # The sum is finite only if all entries are, and needs no mask.
    with np.errstate(invalid="ignore", over="ignore"):
        if not np.isfinite(numbers.sum(dtype=np.float64)):
            raise UsageError(f"{name} has a number that is not finite")


def checked_shares(
    shares: NDArray[np.floating], first: int
) -> tuple[NDArray[np.floating], NDArray[np.floating] | None]:
    """Check contiguous probabilities [rows, prices, actions]; in float32, where they sum to one only roughly, also
    return their sums [rows, prices] to divide by."""
    totals = over_actions(shares)
    low, high = float(totals.min()), float(totals.max())
    if not (float(shares.min()) >= 0 and low >= 1 - _PROBABILITY_TOLERANCE and high <= 1 + _PROBABILITY_TOLERANCE):
        wrong = (shares < 0).any(axis=2) | ~(np.abs(totals - 1) <= _PROBABILITY_TOLERANCE)
        row = first + int(np.argwhere(wrong)[0][0])
        raise UsageError(f"the policy's probabilities for row {row} are negative or do not sum to 1")
    return shares, None if shares.dtype == np.float64 else totals


def contiguous(block: NDArray[np.floating], room: NDArray[np.floating]) -> NDArray[np.floating]:
    """The same numbers [rows, prices, actions], contiguous and in the type of `room`: the block itself or a copy.

    `room` has at least as many rows. A single price is broadcast to the prices of `room`.
    """
    room = room[: len(block)]
    if block.dtype == room.dtype and block.shape == room.shape:
        if block.flags.c_contiguous:
            return block
        if block.strides[-1] == block.itemsize:
            # Every n-th row of a larger array: copied row by row instead of number by number.
            row = np.dtype((np.void, block.itemsize * block.shape[-1]))
            room.view(row)[...] = block.view(row)
            return room
    room[...] = block
    return room


def over_actions(block: NDArray[np.floating]) -> NDArray[np.floating]:
    """Sums over actions: [rows, prices, actions] -> [rows, prices]."""
    # A product with ones is several times faster than a sum over a short axis.
    actions = block.shape[2]
    return np.asarray(block.reshape(-1, actions) @ np.ones(actions, dtype=block.dtype)).reshape(block.shape[:2])
