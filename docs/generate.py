"""Write the reference pages that come from the code: the rules of a log, and the commands.

Run `python docs/generate.py` after changing either; a test fails while the pages are behind the code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer.main

from redenvelope.cli import app
from redenvelope.log.columns import ROLES
from redenvelope.log.rules import RULES

REFERENCE = Path(__file__).parent / "reference"


def rules_page() -> str:
    """Every column and every rule of a log."""
    lines = ["# The log: columns and rules", "", "## Columns", "", "| column | meaning |", "|---|---|"]
    lines += [f"| `{role}` | {meaning} |" for role, meaning in ROLES.items()]
    lines += ["", "Every other column is a feature: a number, true or false, or a category (text).", ""]
    meanings = {
        "error": "the log is refused",
        "warning": "the log is used, and the finding reported",
        "repaired": "the log was mended, and the repairs counted",
    }
    for severity, meaning in meanings.items():
        lines += [f"## {severity.capitalize()}: {meaning}", "", "| rule | what it says | what to do |", "|---|---|---|"]
        for name, rule in RULES.items():
            if rule.severity == severity:
                lines.append(f"| `{name}` | {_cell(rule.message)} | {_cell(rule.remedy)} |")
        lines.append("")
    return "\n".join(lines)


def commands_page() -> str:
    """Every command with its arguments and options, read from the program itself."""
    lines = ["# Commands", ""]
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        words = " ".join(_word(parameter) for parameter in command.params if parameter.param_type_name == "argument")
        usage = " ".join(filter(None, ["redenvelope", name, words, "[options]"]))
        lines += [f"## {name}", "", f"`{usage}`", "", *command.help.strip().splitlines(), ""]
        lines += ["| option | meaning | default |", "|---|---|---|"]
        for parameter in command.params:
            shown = (
                _word(parameter)
                if parameter.param_type_name == "argument"
                else ", ".join([*parameter.opts, *parameter.secondary_opts])
            )
            lines.append(f"| `{shown.replace('|', chr(92) + '|')}` | {parameter.help or ''} | {_default(parameter)} |")
        lines.append("")
    return "\n".join(lines)


def _word(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    unset = parameter.default is None or parameter.default is False
    return "" if unset else f"`{parameter.default}`"


def _cell(sentence: str) -> str:
    """A rule's sentence with its placeholders as plain words."""
    return re.sub(r"\{(\w+)[^}]*\}", r"⟨\1⟩", sentence).replace("|", "\\|")


PAGES = {"log.md": rules_page, "commands.md": commands_page}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
