"""`python -m experiments --out FOLDER`: run the paper's experiments again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redenvelope.cli import options
from redenvelope.cli.guard import guarded
from redenvelope.engine.programs import keep_programs
from redenvelope.errors import UsageError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_NAMES = ("table-one", "accuracy", "budgets", "prices", "searches", "second-table", "log")


@app.command()
def reproduce(
    out: Annotated[
        Path, typer.Option(parser=options.given_path, metavar="PATH", help="Folder for tables and figures.")
    ],
    seeds: Annotated[
        int | None, typer.Option(min=2, help="Logs drawn for each interval; 5, or 2 with --quick.", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small logs: about a minute, and rough.")] = False,
    log: Annotated[
        str | None, typer.Option(help="A log of your own, for the second table.", metavar="LOG", show_default=False)
    ] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Mean cost per user on that log; as logged if not given.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help=f"Some experiments alone, of {', '.join(_NAMES)}.", metavar="NAME,…")
    ] = None,
    columns: options.Columns = None,
    ignore: options.Ignore = None,
    campaign: options.CampaignFile = None,
    estimate_propensity: options.EstimatePropensity = False,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Run the paper's experiments and write tables (CSV, Markdown) and figures (PNG, HTML) beside its numbers.

    Takes a few minutes; every experiment is written as soon as it is done. Start with index.html or README.md.
    """
    if log is None:
        _require_no_log(budget=budget, columns=columns, ignore=ignore, campaign=campaign)
        if estimate_propensity:
            raise UsageError("--estimate-propensity is about a log of your own; give it with --log")
    wanted = _experiments(only, log)
    from experiments.room import require_room

    require_room(out)
    rows = None
    if log is not None:
        from redenvelope.log.read import read_log

        rows = read_log(
            log, options.read_campaign(log, columns, ignore, campaign).columns, estimate_propensity=estimate_propensity
        )
    from experiments.reproduce import GivenLog
    from experiments.reproduce import reproduce as run
    from experiments.settings import ReproduceSettings, quick_settings
    from redenvelope.report.terminal import StageView

    given = None if rows is None or log is None else GivenLog(rows, Path(log).name, budget)
    settings = quick_settings(seeds or 2, seed) if quick else ReproduceSettings(seeds=seeds or 5, seed=seed)
    with StageView(enabled=not as_json) as view:
        written = run(out, settings, given, wanted, view.tell)
    if as_json:
        options.print_json(written.as_dict())
        return
    typer.echo(f"{out}: {len(written.files)} files; start with {out / 'index.html'} or {out / 'README.md'}")


def _experiments(only: str | None, log: str | None) -> tuple[str, ...]:
    """The experiments to run."""
    if only is None:
        return _NAMES
    names = tuple(name.strip() for name in only.split(","))
    unknown = [name for name in names if name not in _NAMES]
    if unknown:
        raise UsageError(f"there is no experiment {unknown[0]!r}; choose among {', '.join(_NAMES)}")
    if "log" in names and log is None:
        raise UsageError("--only log needs a log of your own; give it with --log")
    return names


def _require_no_log(**options: object) -> None:
    """Options that only speak of a log."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"--{name} is about a log of your own; give it with --log")


if __name__ == "__main__":
    keep_programs()
    guarded(app)
