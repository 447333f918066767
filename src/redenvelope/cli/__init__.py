"""The commands. Heavy imports are inside the commands that need them, so that help appears at once."""

from __future__ import annotations

import os
from typing import Annotated

import typer
import typer.core

from redenvelope import __version__
from redenvelope.cli import data, fit, plans, serving
from redenvelope.cli.guard import guarded
from redenvelope.engine.memory import share_arena
from redenvelope.engine.programs import keep_programs
from redenvelope.wording import command_has

__all__ = ["app", "main"]

app = typer.Typer(
    name="redenvelope",
    help="From a log of past incentives to the best spending plan a budget can buy, checked before any money is spent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in (
    data.demo,
    data.simulate,
    data.audit,
    fit.fit,
    fit.reprice,
    plans.frontier,
    plans.evaluate,
    plans.compare,
    plans.allocate,
    plans.explain,
    plans.power,
    plans.report,
    serving.serve,
    serving.token,
):
    app.command()(_command)
app.add_typer(serving.ledger)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"redenvelope {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a bug; anywhere on the line.")] = False,
) -> None:
    group = context.command
    chosen = group.commands.get(context.invoked_subcommand or "") if isinstance(group, typer.core.TyperGroup) else None
    command_has(option for each in (chosen.params if chosen else ()) for option in each.opts)
    keep_programs()  # before a command imports anything that compiles


def main() -> None:
    """Run a command; any failure becomes a few lines on stderr and an exit code, never a traceback."""
    # Large products run in XLA and polars, which have their own threads. BLAS threads for the small products would only
    # wait for each other; on busy cores they cost ten times what they save.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    share_arena()
    guarded(app)
