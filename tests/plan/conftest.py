"""The small plan that several tests look at, and programs compiled quickly: most decide for a few users, once."""

from collections.abc import Iterator

import pytest

from tests.quick_programs import quick_programs
from tests.two_step_plan import campaign, log, plan, stages

__all__ = ["campaign", "log", "plan", "stages"]


@pytest.fixture(scope="package", autouse=True)
def quickly_compiled() -> Iterator[None]:
    with quick_programs():
        yield
