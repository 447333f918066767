"""The real command: in a process of its own, or here, where many are asked and none has to train anything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer.main

from redenvelope.cli import app, guard

PROGRAM = [sys.executable, "-c", "from redenvelope.cli import main; main()"]


def _leaves(group: Any, *before: str) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for name, command in group.commands.items():
        words = (*before, name)
        found |= _leaves(command, *words) if hasattr(command, "commands") else {words: command}
    return found


COMMANDS = _leaves(typer.main.get_command(app))
"""The commands, those in groups too, by all of their words."""


def understood(given: list[str]) -> None:
    """Parse a command line as the program does; nothing of it is run."""
    if given[0] in ("--help", "--version"):
        return
    name = tuple(given[:2]) if tuple(given[:2]) in COMMANDS else tuple(given[:1])
    assert name in COMMANDS, f"no such command: {given}"
    with COMMANDS[name].make_context(name[-1], given[len(name) :]):
        pass


def run(
    *arguments: object,
    folder: Path | None = None,
    timeout: float = 900,
    program: Sequence[str] = PROGRAM,
    **settings: object,
) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [*program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=timeout, **settings)  # type: ignore[call-overload, no-any-return]


def run_here(
    *arguments: object, folder: Path | None = None, app: typer.Typer = app
) -> subprocess.CompletedProcess[str]:
    """The same command line in this process: most of a short command's time goes into starting Python."""
    out, err, given = StringIO(), StringIO(), ["redenvelope", *map(str, arguments)]
    with chdir(folder or "."), patch.object(sys, "argv", given), redirect_stdout(out), redirect_stderr(err):
        code = guard._run(app, debug=False)
    return subprocess.CompletedProcess(given, code, out.getvalue(), err.getvalue())
