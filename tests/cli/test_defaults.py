"""Every command can be left to its defaults: they are parsed as what is given is, by whatever typer is installed."""

from pathlib import Path
from typing import Any

import pytest

from tests.program import COMMANDS


def least(command: Any) -> list[str]:
    """A line with what a command cannot do without, and nothing else."""
    line = []
    for parameter in command.params:
        if parameter.required:
            word = (parameter.metavar or "given").split("|")[0]  # the first of several that it may be
            line += [parameter.opts[0], word] if parameter.param_type_name == "option" else [word]
    return line


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_is_not_given_is_its_default(words: tuple[str, ...]) -> None:
    command = COMMANDS[words]
    with command.make_context(words[-1], least(command)) as context:
        for parameter in command.params:
            if not parameter.required and parameter.default is not None:
                found = context.params[parameter.name]
                assert (type(found), found) == (type(parameter.default), parameter.default)


def test_paths_among_them_stay_paths() -> None:
    for name, wanted in (("demo", "demo"), ("report", "report.html")):
        command = COMMANDS[name,]
        with command.make_context(name, least(command)) as context:
            assert context.params["out"] == Path(wanted)
