from __future__ import annotations

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.policies.fixed import CheapestPolicy, DearestPolicy, UniformPolicy

STATES = np.zeros((3, 2))
MASK = np.array([[True, True, True, True], [False, True, True, False], [False, False, True, False]])


def test_without_a_mask():
    np.testing.assert_array_equal(UniformPolicy(4).probabilities(STATES, 1), np.full((3, 4), 0.25))
    np.testing.assert_array_equal(CheapestPolicy(4).probabilities(STATES, 1), np.eye(4)[[0, 0, 0]])
    np.testing.assert_array_equal(DearestPolicy(4).probabilities(STATES, 1), np.eye(4)[[3, 3, 3]])


def test_only_eligible_actions():
    uniform = UniformPolicy(4).probabilities(STATES, 1, MASK)
    np.testing.assert_array_equal(uniform, [[0.25] * 4, [0, 0.5, 0.5, 0], [0, 0, 1, 0]])
    np.testing.assert_array_equal(CheapestPolicy(4).probabilities(STATES, 1, MASK), np.eye(4)[[0, 1, 2]])
    np.testing.assert_array_equal(DearestPolicy(4).probabilities(STATES, 1, MASK), np.eye(4)[[3, 2, 2]])


def test_one_action():
    for policy in (UniformPolicy(1), CheapestPolicy(1), DearestPolicy(1)):
        np.testing.assert_array_equal(policy.probabilities(STATES, 1), np.ones((3, 1)))


def test_masks_that_make_no_sense():
    with pytest.raises(UsageError, match="row 1 has no eligible action"):
        UniformPolicy(4).probabilities(STATES, 1, MASK & [[True], [False], [True]])
    with pytest.raises(UsageError, match="eligible must be"):
        CheapestPolicy(4).probabilities(STATES, 1, MASK[:, :3])
