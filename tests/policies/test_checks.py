"""What a policy is asked must make sense, and the message says what does not."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope import UsageError
from redenvelope.policies.policy import checked_eligible, checked_steps_left, whole_mask


def test_steps_left_are_one_number_or_one_a_user():
    assert checked_steps_left(2, 3, 5).tolist() == [2, 2, 2]
    assert checked_steps_left([1, 5, 2], 3, 5).tolist() == [1, 5, 2]
    for wrong, words in ((0, "row 0 has 0 steps left"), ([1, 6, 2], "row 1 has 6"), ([1, 2, 1.5], "row 2 has 1.5")):
        with pytest.raises(UsageError, match=words):
            checked_steps_left(wrong, 3, 5)
    with pytest.raises(UsageError, match="one for each of 3 users"):
        checked_steps_left([1, 2], 3, 5)


def test_a_mask_leaves_everybody_an_action():
    assert checked_eligible(None, 2, 3) is None
    assert whole_mask(None, 2, 3).tolist() == [[True] * 3] * 2
    mask = np.array([[True, False, True], [False, False, True]])
    assert (whole_mask(mask, 2, 3) == mask).all()
    with pytest.raises(UsageError, match="row 1 has no eligible action"):
        whole_mask(mask & [True, True, False], 2, 3)
    with pytest.raises(UsageError, match=r"\(2, 4\)"):
        checked_eligible(mask, 2, 4)
