"""The regression behind a continuation."""

from __future__ import annotations

import numpy as np

from redenvelope.planning.continuation import fit_tail


def test_what_is_linear_is_found():
    generator = np.random.default_rng(0)
    inputs, tree = generator.normal(size=(300, 4)), generator.normal(size=(2, 300, 3))
    inputs[:, 3] = 7.0  # does not vary, so it says nothing
    weights = generator.uniform(0.1, 1.0, size=(300, 3))
    dual = np.arange(1.0, 4.0)
    # Each dual has a slope of its own, each target a constant of its own.
    targets = np.stack([inputs[:, :1] * dual + tree[0], 2.0 - inputs[:, 1:2] - dual * tree[1]])
    tail = fit_tail(inputs, tree, targets, weights)
    few = slice(0, 5)
    asked = np.repeat(inputs[few, None], 2, axis=1).astype(np.float32)
    found = tail.predict(asked, np.repeat(tree[:, few, :, None], 2, axis=3).astype(np.float32))
    assert found.shape == (2, 5, 3, 2)
    for action in range(2):
        np.testing.assert_allclose(found[..., action], targets[:, few], atol=1e-4)


def test_weights_decide_where_it_must_be_right():
    inputs = np.linspace(-1, 1, 201)[:, None]
    targets = np.broadcast_to(np.abs(inputs), (2, 201, 1))
    weights = np.where(inputs > 0, 1.0, 1e-6)
    tail = fit_tail(inputs, np.zeros((2, 201, 1)), targets, weights)
    found = tail.predict(np.float32([[[0.5]]]), np.zeros((2, 1, 1, 1), dtype=np.float32))
    np.testing.assert_allclose(found.ravel(), 0.5, atol=1e-3)


def test_never_beyond_what_was_seen():
    inputs = np.linspace(0, 1, 50)[:, None]
    targets = np.stack([inputs, -inputs])
    tail = fit_tail(inputs, np.zeros((2, 50, 1)), targets, np.ones((50, 1)))
    far = np.float32([[[100.0], [-100.0]]])
    found = tail.predict(far, np.zeros((2, 1, 1, 2), dtype=np.float32))
    np.testing.assert_allclose(found[0].ravel(), [1.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(found[1].ravel(), [-1.0, 0.0], atol=1e-6)
