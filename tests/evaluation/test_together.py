"""Several estimators at once say what each says alone."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope.errors import UsageError
from redenvelope.evaluation import evidence as module
from redenvelope.evaluation.estimate import ESTIMATORS, evaluate, marginalised_by
from redenvelope.evaluation.intervals import Bootstrap
from redenvelope.evaluation.marginalised import by_cell
from redenvelope.evaluation.together import evaluate_together

from .conftest import World


def test_the_same_as_one_by_one(leaving_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several batches."""
    monkeypatch.setattr(module, "_LEAST_BATCH", 16)
    monkeypatch.setattr(module, "_BATCH_NUMBERS", 1)
    drawn = leaving_world.draw(60, seed=1)
    estimators = [*ESTIMATORS.values(), marginalised_by(by_cell(drawn.state))]
    evidence = drawn.evidence(0.4)
    assert len(list(evidence.in_batches)) == 4
    together = evaluate_together(evidence, estimators, 0.9)
    assert list(together) == [estimator.name for estimator in estimators]
    for estimator in estimators:
        alone, found = evaluate(evidence, estimator, 0.9), together[estimator.name]
        np.testing.assert_allclose(found.value, alone.value, rtol=1e-12)
        np.testing.assert_allclose(found.standard_error, alone.standard_error, rtol=1e-9)
        for made, wanted in zip(
            vars(found.bounds(0.9, "both", Bootstrap(50))).values(),
            vars(alone.bounds(0.9, "both", Bootstrap(50))).values(),
            strict=True,
        ):
            np.testing.assert_allclose(made, wanted, rtol=1e-9)


def test_by_name(leaving_world: World) -> None:
    evidence = leaving_world.draw(40, seed=2).evidence(0.4)
    found = evaluate_together(evidence, ["magic", "weighted_doubly_robust"])
    np.testing.assert_allclose(found["magic"].value, evaluate(evidence, "magic").value, rtol=1e-12)
    assert found["magic"].diagnostics is found["weighted_doubly_robust"].diagnostics


def test_wrong_uses(leaving_world: World) -> None:
    evidence = leaving_world.draw(5, seed=0).evidence(None)
    with pytest.raises(UsageError, match="discount"):
        evaluate_together(evidence, ["trajectory"], 0)
    with pytest.raises(UsageError, match="choose among direct"):
        evaluate_together(evidence, ["ips"])
