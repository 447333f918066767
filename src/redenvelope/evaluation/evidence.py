"""Evidence: all that an off-policy estimate needs to know of a log and of the policies it is to weigh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.evaluation.checks import aligned, check_finite, check_rows, checked_shares

__all__ = ["Evidence", "Rows", "gather", "merge_evidence"]

FloatArray = NDArray[np.float64]
Rows = slice | NDArray[np.int64]

# Numbers in one block of probabilities: the block and what is made of it stay in a second-level cache.
_BLOCK_NUMBERS = 2**16
# Users and duals in one batch of an estimator, and the fewest users worth a batch.
_BATCH_NUMBERS, _LEAST_BATCH = 2**17, 256
_CERTAIN = 1 - 1e-9


@dataclass(frozen=True, eq=False)
class Evidence:
    """Logged rows seen through policies: one column a dual (or a policy, where several are compared).

    Rows `starts[i]:starts[i + 1]` are those of user i, step after step.
    """

    targets: tuple[str, ...]
    """What is estimated: reward, cost."""
    starts: NDArray[np.int64]
    """First row of each user, and the number of rows at the end, [users + 1]."""
    ratio: FloatArray
    """Probability of the logged action under the policy over that under the logger, [rows, duals]."""
    outcomes: FloatArray
    """[targets, rows]."""
    values: FloatArray | None
    """Baseline of the state: what the policy is predicted to get from there on, [targets, rows, duals]."""
    action_values: FloatArray | None
    """Baseline of the logged action, the policy followed afterwards, [targets, rows, duals]."""
    steps: int
    """Steps of the longest user, those of other batches included."""
    unlogged: FloatArray
    """Mean probability that the policy gives to actions the log never holds, [duals]."""
    clipped: FloatArray
    """Share of the rows whose ratio was clipped, [duals]."""
    certain: float
    """Share of the rows whose logged action had probability 1."""
    estimated: bool = False
    """Whether the propensities were estimated from the log, not logged."""

    @property
    def users(self) -> int:
        """Number of users."""
        return len(self.starts) - 1

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.ratio.shape[0])

    @property
    def duals(self) -> int:
        """Number of duals, or policies."""
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

    @cached_property
    def position_of_row(self) -> NDArray[np.int64]:
        """How many rows of the same user come before a row, [rows]."""
        return np.arange(self.rows) - np.repeat(self.starts[:-1], self.lengths)

    @property
    def in_batches(self) -> tuple[Evidence, ...]:
        """The evidence as views of batches of users, of which an estimator's arrays stay in a second-level cache."""
        # Not remembered if it is one batch: what holds itself is not given back in time.
        return (self,) if self.users <= self._users_in_batch else self._batches

    @property
    def _users_in_batch(self) -> int:
        return max(_LEAST_BATCH, _BATCH_NUMBERS // self.duals)

    @cached_property
    def _batches(self) -> tuple[Evidence, ...]:
        return tuple(self.batches(self._users_in_batch))

    def first_ratio(self) -> FloatArray:
        """Ratios of everybody's first step, [users, duals]: a copy if later steps are to be multiplied into them."""
        ratio = self.ratio[self.positions[0][1]]
        return ratio if len(self.positions) == 1 else np.array(ratio)

    def baseline(self) -> tuple[FloatArray, FloatArray]:
        """Baselines of states and of logged actions, both [targets, rows, duals]."""
        if self.values is None or self.action_values is None:
            raise UsageError(
                "this estimator needs a baseline: give `action_values` to the evidence (a planner's values to go, "
                "or `fitted_values` from the log itself), or use an importance sampling estimator"
            )
        return self.values, self.action_values

    def with_baseline(self, values: FloatArray, action_values: FloatArray) -> Evidence:
        """The same rows with other baselines of states and logged actions, both [targets, rows, duals]."""
        shape = (len(self.targets), self.rows, self.duals)
        for name, array in (("values", values), ("action_values", action_values)):
            if array.shape != shape:
                raise UsageError(f"{name} must be [targets, rows, duals] = {shape}, not {array.shape}")
        return replace(self, values=values, action_values=action_values)

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
            part = slice(int(starts[0]), int(starts[-1]))
            yield replace(
                self,
                starts=starts - starts[0],
                ratio=self.ratio[part],
                outcomes=self.outcomes[:, part],
                values=None if self.values is None else self.values[:, part],
                action_values=None if self.action_values is None else self.action_values[:, part],
            )


def gather(
    *,
    starts: NDArray[np.int64],
    action: NDArray[np.integer],
    propensity: ArrayLike,
    outcomes: Mapping[str, ArrayLike],
    probabilities: NDArray[np.floating],
    action_values: Mapping[str, NDArray[np.floating]] | None = None,
    logged_actions: NDArray[np.bool_] | None = None,
    steps: int | None = None,
    estimated: bool = False,
) -> Evidence:
    """Gather evidence from arrays.

    `starts` [users + 1]; `action`, `propensity` and every outcome [rows]; `probabilities` and the values to go of
    every action [rows, duals, actions], or [rows, actions] for one policy. `logged_actions` [actions] marks those
    that the whole log holds, and `steps` is the length of its longest user, where the rows are only a part of it.
    """
    shares, futures = aligned(probabilities, action_values, tuple(outcomes), len(action))
    rows, duals, actions = shares.shape
    chance = np.asarray(propensity, dtype=np.float64)
    steps = max(check_rows(starts, action, chance, rows, actions), steps or 0)
    if logged_actions is None:
        logged_actions = np.bincount(action, minlength=actions) > 0
    observed, ratio, values, logged_values = _room(len(outcomes), rows, duals, futures is not None)
    for number, (name, column) in enumerate(outcomes.items()):
        observed[number] = column
        check_finite(observed[number], name)
    missing = np.zeros(duals)
    block = max(1, _BLOCK_NUMBERS // (duals * actions))
    cells = np.arange(block * duals).reshape(block, duals) * actions
    for first in range(0, rows, block):
        part = slice(first, min(first + block, rows))
        share, totals = checked_shares(shares[part], first)
        logged = cells[: len(share)] + action[part, None]
        np.divide(share.take(logged), chance[part, None] * totals, out=ratio[part])
        if not logged_actions.all():
            missing += share[:, :, ~logged_actions].sum(axis=(0, 2), dtype=np.float64)
        for target, future in enumerate(futures or ()):
            ahead = _like(share, future[part])
            logged_values[target, part] = ahead.take(logged)
            np.divide(np.einsum("nda,nda->nd", share, ahead), totals, out=values[target, part])
    check_finite(values, "a baseline (action_values)")
    check_finite(logged_values, "a baseline (action_values)")
    return Evidence(
        targets=tuple(outcomes),
        starts=starts,
        ratio=ratio,
        outcomes=observed,
        values=None if futures is None else values,
        action_values=None if futures is None else logged_values,
        steps=steps,
        unlogged=missing / rows,
        clipped=np.zeros(duals),
        certain=float((chance >= _CERTAIN).mean()) if float(chance.max()) >= _CERTAIN else 0.0,
        estimated=estimated,
    )


def merge_evidence(parts: Sequence[Evidence]) -> Evidence:
    """The evidence of batches of users, in their order, as one."""
    first = parts[0]
    if any(part.targets != first.targets or part.duals != first.duals for part in parts):
        raise UsageError("only evidence about the same targets and duals can be merged")
    rows = np.array([part.rows for part in parts])
    offsets = np.concatenate([[0], np.cumsum(rows)])
    starts = [part.starts[:-1] + offset for part, offset in zip(parts, offsets[:-1], strict=True)]
    has_baseline = first.values is not None
    share = rows / rows.sum()
    return Evidence(
        targets=first.targets,
        starts=np.concatenate([*starts, offsets[-1:]]),
        ratio=np.concatenate([part.ratio for part in parts]),
        outcomes=np.concatenate([part.outcomes for part in parts], axis=1),
        values=np.concatenate([part.baseline()[0] for part in parts], axis=1) if has_baseline else None,
        action_values=np.concatenate([part.baseline()[1] for part in parts], axis=1) if has_baseline else None,
        steps=max(part.steps for part in parts),
        unlogged=share @ np.stack([part.unlogged for part in parts]),
        clipped=share @ np.stack([part.clipped for part in parts]),
        certain=float(share @ [part.certain for part in parts]),
        estimated=any(part.estimated for part in parts),
    )


def _room(
    targets: int, rows: int, duals: int, with_baseline: bool
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Unfilled outcomes [targets, rows], ratios [rows, duals], and two baselines [targets, rows, duals] (or empty).

    One piece of memory: given back in one piece, the allocator keeps it for the next pass. Pages that have to be asked
    for anew cost as much as all the arithmetic.
    """
    wide = targets if with_baseline else 0
    room = np.empty(rows * (targets + duals * (1 + 2 * wide)))
    observed, ratio, baselines = np.split(room, [rows * targets, rows * (targets + duals)])
    values, logged_values = baselines.reshape(2, wide, rows, duals)
    return observed.reshape(targets, rows), ratio.reshape(rows, duals), values, logged_values


def _like(shares: NDArray[np.floating], block: NDArray[np.floating]) -> NDArray[np.floating]:
    """Values of actions [rows, 1 or duals, actions] in the shape and type of the policy's probabilities."""
    wide = block if block.shape == shares.shape else np.broadcast_to(block, shares.shape)
    return np.ascontiguousarray(wide, dtype=shares.dtype)
