"""One thread per worker, set before any library reads it; repeatable hypothesis; skipped tests are reported aloud."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("REDENVELOPE_CACHE", "off")  # a test must not find what another one made
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

# Programs are found by all that is in them, so workers and the commands they start may share what they compile.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import pytest  # noqa: E402 - the variables above must be set first
from hypothesis import settings  # noqa: E402

# Here, because tests of other folders use these helpers too and may be collected first.
pytest.register_assert_rewrite("tests.log.files")

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

_MOST_RESIDENT = 1_000_000_000
"""Bytes that a worker may hold between two modules before it drops its compiled programs."""


@pytest.fixture(scope="module", autouse=True)
def small_workers() -> Iterator[None]:
    """Drop compiled programs between modules: a worker would keep those of every module, several gigabytes.

    They are read again from the cache of programs where another module needs them.
    """
    yield
    status = Path("/proc/self/statm")
    if "jax" in sys.modules and status.exists():
        resident = int(status.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if resident > _MOST_RESIDENT:
            from redenvelope.engine.memory import give_back

            sys.modules["jax"].clear_caches()
            give_back()


BROWSER_SKIPPED = "browser tests of the report were skipped"
"""How the reason of a skipped browser test begins."""

POSTGRES_SKIPPED = "tests of the ledger in PostgreSQL were skipped"
"""How the reason of a test begins that had no database."""

TOOL_SKIPPED = "tests with a tool that is not here were skipped"
"""How the reason of a test begins that needs a program from outside: dbt, node, podman, promtool."""

ALOUD = (BROWSER_SKIPPED, POSTGRES_SKIPPED, TOOL_SKIPPED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say aloud what was not looked at in a browser, in PostgreSQL or by a tool: a quiet skip looks like a pass."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    reasons = {place[2].removeprefix("Skipped: ") for place in skipped if isinstance(place, tuple)}
    for reason in sorted(reason for reason in reasons if reason.startswith(ALOUD)):
        terminalreporter.section("NOT TESTED", red=True, bold=True)
        terminalreporter.line(reason, red=True, bold=True)
