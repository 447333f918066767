"""The commands. Heavy parts are imported by the command that needs them, so that help is instant."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from redenvelope import __version__
from redenvelope.cli import data, plans, reproduce
from redenvelope.cli.options import REFUSED
from redenvelope.errors import LogError, RedenvelopeError

__all__ = ["app", "main"]

app = typer.Typer(
    name="redenvelope",
    help="From a log of past incentives to the best spending plan a budget can buy, checked before a cent is spent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in (
    data.demo,
    data.simulate,
    data.audit,
    plans.fit,
    plans.reprice,
    plans.frontier,
    plans.evaluate,
    plans.allocate,
    plans.report,
    reproduce.reproduce,
):
    app.command()(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"redenvelope {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command; the user's mistakes become a few lines on stderr and exit code 2, never a traceback."""
    # The large products run in XLA and polars, which bring their own threads; threads of BLAS for the small ones
    # that remain would only wait for each other, and on busy cores they cost ten times what they save.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):  # a name that cannot be printed must not stop what is said about it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except LogError as error:
        print(f"redenvelope: the log cannot be used, {len(error.findings)} error(s):\n{error}", file=sys.stderr)
        sys.exit(REFUSED)
    except RedenvelopeError as error:
        print(f"redenvelope: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    except MemoryError:
        print("redenvelope: there is not enough memory for this; bring fewer users, or more memory", file=sys.stderr)
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        print("redenvelope: interrupted; what was not finished was not written", file=sys.stderr)
        sys.exit(130)
