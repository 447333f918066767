"""An audit adds up: parts of a log, however many, say what the whole says."""

from __future__ import annotations

from math import isclose

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redenvelope import EnvelopeCampaign, LocalEngine, audit_log, log_from_frame
from redenvelope.audit.audit import AuditSample, audit_partitions
from redenvelope.audit.overlap import quantile_sums, quantiles
from tests.audit.campaigns import SKEWED_3, campaign
from tests.log.logs import frames
from tests.partitioned_log import read_partitions

SETTINGS = settings(
    derandomize=True, deadline=None, database=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)


def assert_same(one: object, other: object, place: str = "") -> None:
    """Equal in everything, figures but for their last digits."""
    if isinstance(one, dict):
        assert isinstance(other, dict)
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key], f"{place}/{key}")
    elif isinstance(one, list | tuple):
        assert isinstance(other, list | tuple)
        assert len(one) == len(other), place
        for number, (here, there) in enumerate(zip(one, other, strict=True)):
            assert_same(here, there, f"{place}/{number}")
    elif isinstance(one, float):
        assert isinstance(other, float)
        assert one == other or isclose(one, other, rel_tol=1e-9, abs_tol=1e-9) or (one != one and other != other), place
    else:
        assert one == other, place


@SETTINGS
@given(frame=frames(least_users=40, faults=False), parts=st.integers(1, 7))
def test_any_number_of_parts_gives_the_same_audit(frame: object, parts: int) -> None:
    whole = audit_log(log_from_frame(frame), 0.2).as_dict()  # type: ignore[arg-type]
    _, partitions = read_partitions(frame, parts=parts)  # type: ignore[arg-type]
    assert_same(whole, audit_partitions(partitions, 0.2).as_dict())


def test_a_campaign_in_parts_and_on_any_number_of_threads() -> None:
    frame = EnvelopeCampaign(population=50).log(1_500, seed=4)
    whole = audit_log(log_from_frame(frame), 1.0).as_dict()
    for parts, threads in ((2, 1), (5, 1), (5, 2)):
        _, partitions = read_partitions(frame, parts=parts)
        assert_same(whole, audit_partitions(partitions, 1.0, LocalEngine(threads)).as_dict())


def test_a_sample_of_users_stands_for_a_large_log() -> None:
    few = AuditSample(users=300)
    frame = campaign([[0.0, 0.5, 1.0]] * 2, [[0.1, 0.6, 1.1]] * 2, SKEWED_3).log(1_000, 0)
    whole = audit_log(log_from_frame(frame), sample=few)
    _, partitions = read_partitions(frame, parts=4)
    divided = audit_partitions(partitions, sample=few)
    assert divided.assignment.gain == pytest.approx(whole.assignment.gain, rel=1e-9)
    # The mean over states of Σ p log(p/share) is 0.2531 nats; 240 users of four rows learn most of it.
    assert whole.assignment.gain == pytest.approx(0.2531, abs=4 * whole.assignment.standard_error + 0.02)
    assert len(whole.overlap) == 4
    assert whole.users == 1_000


@SETTINGS
@given(
    values=st.lists(st.floats(1e-6, 1) | st.sampled_from([0.25, 1 / 3, 1.0]), min_size=1, max_size=60),
    cut=st.integers(1, 59),
)
def test_quantiles_of_parts_are_those_of_the_whole(values: list[float], cut: int) -> None:
    levels = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)
    numbers = np.array(values)
    parts = [part for part in (numbers[:cut], numbers[cut:]) if len(part)]
    sums = quantile_sums(parts[0]) if len(parts) == 1 else quantile_sums(parts[0]).merge(quantile_sums(parts[1]))
    assert quantiles(sums, levels) == quantiles(quantile_sums(numbers), levels)
    # A bin is as wide as a 4,096th of the values in it.
    np.testing.assert_allclose(quantiles(sums, levels), np.quantile(numbers, levels), rtol=2.5e-4)


def test_quantiles_of_values_that_repeat_are_exact() -> None:
    numbers = np.random.default_rng(0).choice([0.1, 1 / 3, 0.5], 1_001)
    levels = (0.0, 0.2, 0.25, 0.5, 0.75, 1.0)
    assert quantiles(quantile_sums(numbers), levels) == np.quantile(numbers, levels).tolist()
