"""The recorder checks what a price function answers."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.dual.price import Point, RecordedPrice
from redenvelope.errors import ProblemError


def test_every_evaluation_is_recorded_in_order() -> None:
    price = RecordedPrice(lambda duals: (1 / (1 + duals), duals * 2))
    price([1.0, 3.0])
    assert price.at(0.0) == Point(0.0, 1.0, 0.0)
    assert price.points == [Point(1.0, 0.5, 2.0), Point(3.0, 0.25, 6.0), Point(0.0, 1.0, 0.0)]
    assert price.passes == 2


def test_not_a_number_names_the_dual() -> None:
    price = RecordedPrice(lambda duals: (np.where(duals == 2.5, np.nan, 1.0), duals))
    with pytest.raises(ProblemError, match=r"costs that are not finite at dual 2\.5$"):
        price([1.0, 2.5])


def test_an_infinite_dual_that_is_multiplied_is_explained() -> None:
    price = RecordedPrice(lambda duals: (np.ones_like(duals), 1 - duals))
    with pytest.raises(ProblemError, match="rewards that are not finite at dual inf; an infinite dual must"):
        price([0.0, np.inf])


def test_one_answer_for_each_dual() -> None:
    price = RecordedPrice(lambda duals: (np.ones(1), np.ones(1)))
    with pytest.raises(ProblemError, match="given 2 duals and returned costs of shape"):
        price([0.0, 1.0])
