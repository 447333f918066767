"""Two versions of the code on the same logs: does every command still give the same results, bit for bit?

    python benchmarks/same_results.py OLD_CHECKOUT [NEW_CHECKOUT] [--logs NAME ...] [--jobs 1] [--keep FOLDER]

Small logs of every kind are made once, apart from the code in question: drawn here, or simulated by the old
version. Either version then runs the real commands on them in a process of its own. Certificates, frontiers, weights,
decisions and everything that `--json` prints are compared number by number; sentences may be worded anew, and are
counted. With --keep, what a version gave is kept by its commit, and only what changed runs again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trials.differences import COMMANDS, compare, document
from trials.log_kinds import KINDS, Kind, make_log

ONE_THREAD = {f"{name}_THREADS": "1" for name in ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "POLARS_MAX")}
ONE_THREAD |= {"NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
RUN_ALL = """
import json, os, sys
from pathlib import Path
import redenvelope
source, commands, codes = Path(sys.argv[1]), json.loads(sys.argv[2]), {}
if not Path(redenvelope.__file__).is_relative_to(source):
    sys.exit(f"{redenvelope.__file__} is not in {source}")
from redenvelope.cli import main
for name, arguments in commands.items():
    for number, ending in ((1, "json"), (2, "txt")):
        opened = os.open(f"{name}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["redenvelope", *arguments]
    try:
        exec(arguments[1]) if arguments[0] == "python" else main()
        codes[name] = 0
    except SystemExit as ended:
        codes[name] = ended.code or 0
    except Exception as error:
        codes[name] = type(error).__name__
    Path("codes.json").write_text(json.dumps(codes))
"""
"""The commands of a log one after the other in one process: loading and compiling for each would take half the time."""
IN_PYTHON = """
import pandas
from redenvelope import fit, log_from_frame
plan = fit(log_from_frame(pandas.read_parquet({log!r})), budget={budget})
plan.save("plan")
sys.exit(0 if plan.certificate.is_certified else 3)
"""


def commands(name: str, kind: Kind) -> dict[str, list[str]]:
    """The command lines for a log, as seen from a folder of results."""
    place, reading, as_lake = f"../../../logs/{name}", kind.reading.split(), kind.form == "lake"
    ending = {"german": ".csv", "xlsx": ".xlsx", "lake": ""}.get(kind.form, ".parquet")
    log, work = f"{place}/log{ending}", ["--work", "work", "--engine", "local", "--parts", "4"] if as_lake else []
    fit = ["fit", log, "--out", "plan", "--seed", "0", "--no-cache", "--json", *kind.fit.split(), *reading, *work]
    if kind.form == "pandas":
        fit = ["python", IN_PYTHON.format(log=log, budget=kind.fit.split()[1])]
    users = f"{place}/users --out decisions" if as_lake else f"{place}/users.parquet --out decisions.parquet"
    return {
        "audit": ["audit", log, "--json", *reading, *work],
        "fit": fit,
        "reprice": ["reprice", "plan", "--out", "repriced", "--json", *kind.again.split()],
        "frontier": ["frontier", "plan", "--json"],
        "evaluate": ["evaluate", "plan", f"{place}/newer{ending}", "--json", *reading],
        "allocate": f"allocate plan {users} --history {place}/past.parquet --seed 0 --json".split(),
    }


def run(name: str, checkout: Path, keep: Path) -> Path:
    """The folder with what a version gives for a log, made if it is not there."""
    folder = keep / "results" / version(checkout) / name
    asked = json.dumps(commands(name, KINDS[name]))
    content = [path.read_bytes() for path in sorted((keep / "logs" / name).rglob("*")) if path.is_file()]
    digest = hashlib.sha256(b"".join([RUN_ALL.encode(), asked.encode(), *content])).hexdigest()
    done = folder / "done"
    if not done.exists() or done.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _python(checkout, folder, keep, RUN_ALL, str(checkout / "src"), asked)
        if not (folder / "codes.json").exists():
            sys.exit(f"{checkout}: nothing could be run")
        done.write_text(digest)
    return folder


def _python(checkout: Path, folder: Path, keep: Path, program: str, *arguments: str) -> None:
    """Run a program with the code of a checkout; compiled programs are kept for all, stages of a fit never."""
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(checkout / "src"), "PYTHONHASHSEED": "0"}
    environment["REDENVELOPE_CACHE"] = str(keep / "cache")
    command = [sys.executable, "-c", program, *arguments]
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)


def version(checkout: Path) -> str:
    """The commit of a checkout, with a hash of the code where it was changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True).stdout

    commit = git("rev-parse", "--short=12", "HEAD").strip()
    if not git("status", "--porcelain", "--", "src"):
        return commit
    files = sorted(path for path in (checkout / "src").rglob("*") if path.is_file() and path.suffix != ".pyc")
    return f"{commit}-{hashlib.sha256(b''.join(path.read_bytes() for path in files)).hexdigest()[:12]}"


def _told(name: str, old: Path, new: Path, seconds: float) -> tuple[str, bool]:
    """A line about a log, and whether it is the same."""
    found = compare(old, new)
    codes = [json.loads((path / "codes.json").read_text()) for path in (old, new)]
    shown = [" ".join(str(each.get(command, "?")) for command in COMMANDS) for each in codes]
    status = document(old / "plan" / "certificate.json").get("status", "no plan")
    said = shown[0] if shown[0] == shown[1] else f"{shown[0]} / {shown[1]}"
    return f"{name:<20}{said:<14}{status:<10}{found.values:>9,} values {seconds:4.0f} s  {found}", not found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a checkout of the version before")
    parser.add_argument("new", type=Path, nargs="?", default=Path(__file__).parents[1], help="and after; this one")
    parser.add_argument("--logs", nargs="+", choices=KINDS, default=list(KINDS), metavar="NAME", help=", ".join(KINDS))
    parser.add_argument("--jobs", type=int, default=1, help="logs at a time")
    parser.add_argument("--keep", type=Path, help="folder for logs and results, used again when it is there")
    options = parser.parse_args()
    versions = [path.resolve() for path in (options.old, options.new)]
    with tempfile.TemporaryDirectory() as aside, ThreadPoolExecutor(options.jobs) as pool:
        keep = (options.keep or Path(aside)).resolve()

        def simulate(campaign: str, users: int, seed: int, out: Path) -> None:
            asked = f"simulate {campaign} --users {users} --seed {seed} --out".split()
            _python(versions[0], keep, keep, "from redenvelope.cli import main; main()", *asked, str(out))

        def line(name: str) -> tuple[str, bool]:
            start = time.perf_counter()
            make_log(KINDS[name], keep / "logs" / name, simulate)
            old, new = (run(name, checkout, keep) for checkout in versions)
            return _told(name, old, new, time.perf_counter() - start)

        print(f"{'log':<20}{'exit codes':<14}{'status':<10}  ({', '.join(COMMANDS)})", flush=True)
        same = 0
        for text, alike in pool.map(line, options.logs):
            print(text, flush=True)
            same += alike
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{spent.ru_utime + spent.ru_stime:,.0f} s of the processor")
    print(f"{same} of {len(options.logs)} logs the same")
    sys.exit(same < len(options.logs))


if __name__ == "__main__":
    main()
