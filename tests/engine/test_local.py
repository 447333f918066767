"""Whatever the threads, results come in order and errors come through."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from redenvelope import LocalEngine, UsageError
from redenvelope.engine.engine import one_blas_thread


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_parts(threads: int) -> None:
    def work(number: int) -> int:
        time.sleep(0.002 * (number % 3))  # so that later parts are often done first
        return number**2

    assert list(LocalEngine(threads).map(work, range(20))) == [number**2 for number in range(20)]


def test_parts_are_read_as_they_are_needed() -> None:
    """Of many partitions only a few are ever in memory."""
    read: list[int] = []

    def parts() -> object:
        for number in range(100):
            read.append(number)
            yield number

    results = LocalEngine(2).map(lambda number: number, parts())  # type: ignore[arg-type]
    next(results)
    assert len(read) <= 4


def test_what_the_work_raises_is_raised_here() -> None:
    def work(number: int) -> int:
        if number == 3:
            raise UsageError("part 3 is damaged")
        return number

    with pytest.raises(UsageError, match="part 3"):
        list(LocalEngine(2).map(work, range(10)))
    assert threading.active_count() < 10


def test_no_threads_is_no_engine() -> None:
    with pytest.raises(UsageError, match="at least one thread"):
        LocalEngine(0)


def test_products_run_in_one_thread_while_asked_and_as_before_afterwards() -> None:
    def threads() -> set[int]:
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    np.ones((2, 2)) @ np.ones((2, 2))  # the library is loaded
    with threadpool_limits(limits=2, user_api="blas"):
        before = threads()
        with one_blas_thread():
            assert threads() == {1}
        assert threads() == before
