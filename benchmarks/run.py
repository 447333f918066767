"""Run every benchmark, one after the other, each in a process of its own."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
QUICK = {
    "budgets": ("--small", "--campaigns", "1", "--users", "6000", "--population", "100"),
    "faults": ("--kills", "5", "--restarts", "1", "--races", "1", "--seeds", "3"),
    "pacing": ("--users", "1000"),
    "serve": ("--seconds", "3"),
}
"""What makes those quick that take no --quick."""
BY_HAND = {"figures", "same_results"}  # the first runs others, the second needs another version of the code
WITH_PEERS = {"evaluation", "learning"}  # these install other libraries, gigabytes of them, into a cache of their own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="the full sizes; without it each runs with --quick")
    parser.add_argument("--peers", action="store_true", help=f"also {', '.join(sorted(WITH_PEERS))}")
    parser.add_argument("names", nargs="*", help="only these, e.g. read planning")
    arguments = parser.parse_args()
    scripts = [path for path in sorted(FOLDER.glob("*.py")) if path.stem not in {"run", "__init__", *BY_HAND}]
    usual = [path.stem for path in scripts if arguments.peers or path.stem not in WITH_PEERS]
    wanted = [path for path in scripts if path.stem in (arguments.names or usual)]
    failed = []
    for path in wanted:
        print(f"\n== {path.name} ==", flush=True)
        command = [sys.executable, str(path), *(() if arguments.full else QUICK.get(path.stem, ("--quick",)))]
        if subprocess.run(command).returncode:
            failed.append(path.name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
