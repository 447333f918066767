"""Rows in blocks come out as if they had gone in at once."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.planning.q_values import block_rows, in_blocks


@pytest.mark.parametrize("rows", [1, 63, 64, 1_000, 9_000])
def test_blocks_are_the_whole(rows: int) -> None:
    states = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    shapes = set()

    def double(block: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shapes.add(block.shape)
        return 2 * block, ~mask

    doubled, barred = in_blocks(double, 600, states, states > 0)
    assert (doubled == 2 * states).all()
    assert (barred == (states <= 0)).all()
    assert shapes == {(block_rows(rows, 600), 3)}
