"""Gathering evidence from a log's columns and a policy's tables: the hot loop, block by block in the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from redenvelope.evaluation.checks import (
    aligned,
    check_finite,
    check_rows,
    checked_features,
    checked_outcomes,
    checked_shares,
    contiguous,
    over_actions,
)
from redenvelope.evaluation.evidence import Evidence

__all__ = ["gather"]

FloatArray = NDArray[np.float64]
Table = NDArray[np.floating]

# Numbers in one block of probabilities: the block and what is made of it stay in a second-level cache.
_BLOCK_NUMBERS = 2**17
_CERTAIN = 1 - 1e-9
_FEW_ROWS = 4096


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
) -> Evidence:
    """Gather evidence from arrays.

    `starts` [users + 1] and `keys` [users]; `action` and `propensity` [rows]; `outcomes` [outcomes, rows];
    `probabilities` [rows, prices, actions] and `to_go`, the outcomes of every action with the policy followed
    afterwards, [outcomes, rows, prices, actions], where the axis of prices is left out if there is one for all;
    `features` [rows, features], of which leading columns may be nested sets to choose from, `feature_blocks` wide;
    `past` [rows, columns] is what happened before, as far as the features do not tell it.
    `logged_actions` [actions] marks those that the whole log holds, and `steps` is the length of its longest user,
    where the rows are only a part of it.
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
    # Untouched if everything is contiguous already; made once, so that no block has to ask for memory.
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
    return Evidence(
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
    """Two unfilled sets of so many baselines [baselines, rows, prices], as precise as what they are made of.

    One piece of memory: given back in one piece, the allocator keeps it for the next pass. Pages that have to be asked
    for anew cost as much as all the arithmetic.
    """
    room = np.empty((2 * baselines, rows, prices), dtype=dtype)
    return room[:baselines], room[baselines:]


def _seen(action: NDArray[np.integer], actions: int) -> NDArray[np.bool_]:
    """Which of so many actions occur in [rows], [actions]."""
    # A few thousand rows hold all of them, as a rule.
    few = np.bincount(action[:_FEW_ROWS], minlength=actions) > 0
    return few if few.all() else np.bincount(action, minlength=actions) > 0


def _pick(block: Table, cells: NDArray[np.int64], out: Table) -> None:
    """Numbers of a contiguous block, of any shape, at flat places [rows, prices]."""
    if block.dtype == out.dtype:
        # Any mode but "raise" writes in place; the places are known to be inside.
        block.take(cells, out=out, mode="clip")
    else:
        out[...] = block.take(cells)


def _expect(share: Table, ahead: Table, room: Table, out: Table) -> None:
    """What is ahead [rows, prices, actions], expected by shares, [rows, prices]; `room` may be that of `ahead`."""
    if share.dtype == np.float64:
        np.einsum("npa,npa->np", share, ahead, out=out)
    else:
        # In single precision, a product written out and summed is twice as fast.
        out[...] = over_actions(np.multiply(share, ahead, out=room[: len(share)]))
