"""Long-lived processes: what was compiled is given up before the system ends the process."""

import jax
import pytest

from redenvelope.engine import programs


@pytest.mark.parametrize(("most", "kept"), [(10**9, 1), (10, 0)])
def test_programs_are_forgotten_near_the_limit_of_a_process_and_not_before(most: int, kept: int) -> None:
    program = jax.jit(lambda number: number + 1)
    program(1.0)
    programs.forget_programs(most)
    assert program._cache_size() == kept
