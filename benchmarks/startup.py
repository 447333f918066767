"""Processor seconds to import the package and to print the help, beside an empty interpreter."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

SNIPPETS = {
    "python alone": "pass",
    "import redenvelope": "import redenvelope",
    "redenvelope --help": "import sys; sys.argv = ['redenvelope', '--help']; from redenvelope.cli import main; main()",
}
BARS = {"import redenvelope": 0.3, "redenvelope --help": 0.5}


def processor_seconds(code: str) -> float:
    """User and system time of one fresh interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    for name, code in SNIPPETS.items():
        best = min(processor_seconds(code) for _ in range(1 if arguments.quick else arguments.repeats))
        bar = f"  (bar {BARS[name]} s)" if name in BARS else ""
        print(f"{name:<20} {best:.3f} s{bar}")


if __name__ == "__main__":
    main()
