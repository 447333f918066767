"""All experiments, one after the other, each written down as soon as it is done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments.accuracy import run_accuracy
from experiments.budgets import run_budgets
from experiments.folder import ResultFolder
from experiments.log_table import run_log_table
from experiments.prices import run_prices
from experiments.result import Result
from experiments.searches import run_searches
from experiments.second_table import run_second_table
from experiments.settings import ReproduceSettings
from experiments.studies import Studies
from experiments.table_one import run_table_one
from redenvelope.log.log import Log
from redenvelope.progress import Progress, Stages

__all__ = ["EXPERIMENTS", "GivenLog", "reproduce"]

EXPERIMENTS: dict[str, Callable[[Studies], Result]] = {
    "table-one": run_table_one,
    "accuracy": run_accuracy,
    "budgets": run_budgets,
    "prices": run_prices,
    "searches": run_searches,
    "second-table": run_second_table,
}
"""In the order of the paper."""


@dataclass(frozen=True, eq=False)
class GivenLog:
    """A log of the user's own, for the second table's form."""

    log: Log
    name: str
    budget: float | None = None
    """Mean cost per user; the logged cost if None."""


def reproduce(
    folder: Path,
    settings: ReproduceSettings,
    given: GivenLog | None = None,
    only: Collection[str] = (*EXPERIMENTS, "log"),
    progress: Progress | None = None,
    experiments: Mapping[str, Callable[[Studies], Result]] = EXPERIMENTS,
) -> ResultFolder:
    """Run experiments into a folder, those named in `only`; what is finished stays, whatever happens after."""
    stages = Stages(progress)
    written = ResultFolder(folder, settings)
    written.start()
    studies = Studies(settings)
    runs = {name: partial(run, studies) for name, run in experiments.items() if name in only}
    if given is not None and "log" in only:
        runs["log"] = partial(run_log_table, given.log, given.name, settings, given.budget)
    for name, run in runs.items():
        stages.begin(name)
        result = run()
        written.add(result)
        stages.finish(name, result.key)
    written.finish()
    return written
