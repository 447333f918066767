"""Evidence: all that an off-policy estimate needs to know of a log and of the policies it is to weigh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.evaluation.checks import aligned, check_finite, check_rows, checked_shares, contiguous, over_actions

__all__ = ["Evidence", "Rows", "gather", "merge_evidence"]

FloatArray = NDArray[np.float64]
Rows = slice | NDArray[np.int64]

# Numbers in one block of probabilities: the block and what is made of it stay in a second-level cache.
_BLOCK_NUMBERS = 2**17
# Rows times duals in one batch of an estimator, and the fewest users worth a batch.
_BATCH_NUMBERS, _LEAST_BATCH = 2**17, 256
_CERTAIN = 1 - 1e-9
_FEW_ROWS = 4096


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
    def in_batches(self) -> Iterator[Evidence]:
        """The evidence as views of batches of users, of which an estimator's arrays stay in the cache; made anew every
        time, so that what a batch remembers is forgotten with it."""
        users = max(_LEAST_BATCH, _BATCH_NUMBERS // (self.steps * self.duals))
        return iter((self,)) if self.users <= users else self.batches(users)

    @cached_property
    def weights(self) -> FloatArray:
        """Products of ratios after each step, [steps, users, duals], to be read only; a user who has left keeps the
        last one."""
        if self.steps == 1:
            return self.ratio[None]
        weights = np.empty((self.steps, self.users, self.duals))
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
        logged_actions = _seen(action, actions)
    observed, ratio, values, logged_values = _room(len(outcomes), rows, duals, futures is not None)
    for number, (name, column) in enumerate(outcomes.items()):
        observed[number] = column
        check_finite(observed[number], name)
    missing, is_all_logged = np.zeros(duals), bool(logged_actions.all())
    block = min(rows, max(1, _BLOCK_NUMBERS // (duals * actions)))
    # Untouched if everything is contiguous already; made once, so that no block has to ask for memory.
    copies = np.empty((len(outcomes) + 1, block, duals, actions), dtype=shares.dtype)
    cells = np.arange(block * duals).reshape(block, duals) * actions
    for first in range(0, rows, block):
        part = slice(first, min(first + block, rows))
        share, totals = checked_shares(contiguous(shares[part], copies[-1]), first)
        logged = cells[: len(share)] + action[part, None]
        _pick(share, logged, out=ratio[part])
        ratio[part] /= chance[part, None]
        for target, future in enumerate(futures or ()):
            ahead = contiguous(future[part], copies[target])
            _pick(ahead, logged, out=logged_values[target, part])
            _expect(share, ahead, copies[target], out=values[target, part])
        if totals is not None:
            ratio[part] /= totals
            values[:, part] /= totals
        if not is_all_logged:
            missing += share[:, :, ~logged_actions].sum(axis=(0, 2), dtype=np.float64)
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


def _seen(action: NDArray[np.integer], actions: int) -> NDArray[np.bool_]:
    """Which of so many actions occur in [rows], [actions]."""
    # A few thousand rows hold all of them, as a rule.
    few = np.bincount(action[:_FEW_ROWS], minlength=actions) > 0
    return few if few.all() else np.bincount(action, minlength=actions) > 0


def _pick(block: NDArray[np.floating], cells: NDArray[np.int64], out: FloatArray) -> None:
    """Numbers of a contiguous block, of any shape, at flat places [rows, duals]."""
    if block.dtype == out.dtype:
        # Any mode but "raise" writes in place; the places are known to be inside.
        block.take(cells, out=out, mode="clip")
    else:
        out[...] = block.take(cells)


def _expect(
    share: NDArray[np.floating], ahead: NDArray[np.floating], room: NDArray[np.floating], out: FloatArray
) -> None:
    """What is ahead [rows, duals, actions], expected by shares, [rows, duals]; `room` may be that of what is ahead."""
    if share.dtype == out.dtype:
        np.einsum("nda,nda->nd", share, ahead, out=out)
    else:
        # In single precision, a product written out and summed is twice as fast.
        out[...] = over_actions(np.multiply(share, ahead, out=room[: len(share)]))
