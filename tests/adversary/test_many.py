"""The long run: as many mutations of each kind as REDENVELOPE_MUTATIONS says, in a process of its own."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logs", "users", "plans"])
def test_many_mutations(kind: str) -> None:
    count = os.environ.get("REDENVELOPE_MUTATIONS", "20000")
    command = [sys.executable, "-m", "tests.adversary", "--kinds", kind, "--count", count]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-5_000:] + result.stderr[-5_000:]
    assert f"{int(count):,} mutations" in result.stdout
