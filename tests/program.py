"""The real command, in a process of its own."""

import subprocess
import sys

PROGRAM = [sys.executable, "-c", "from redenvelope.cli import main; main()"]


def run(*arguments: object, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=timeout)
