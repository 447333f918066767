"""Write the reference pages that come from the code: rules, commands, Python names, JSON, tests of the errata.

Run `python docs/generate.py` after changing any of them; a test fails while the pages are behind the code.
"""

from __future__ import annotations

import ast
import json
import re
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer.main

import redenvelope
from redenvelope.cli import app
from redenvelope.log.columns import ROLES
from redenvelope.log.rules import RULES

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
SOURCE = Path(redenvelope.__file__).parent
_LONG = 100


def rules_page() -> str:
    """Every column and every rule of a log."""
    lines = ["# The log: columns and rules", "", "## Columns", "", "| column | meaning |", "|---|---|"]
    lines += [f"| `{role}` | {meaning} |" for role, meaning in ROLES.items()]
    lines += ["", "Every other column is a feature: a number, true or false, or a category (text).", ""]
    meanings = {
        "error": "the log is refused",
        "warning": "the log is used, and the finding reported",
        "repaired": "the log was repaired, and the repairs counted",
    }
    for severity, meaning in meanings.items():
        lines += [f"## {severity.capitalize()}: {meaning}", "", "| rule | what it says | what to do |", "|---|---|---|"]
        for name, rule in RULES.items():
            if rule.severity == severity:
                message = re.sub(r"{(count|users):([\w ]*[a-z])}", r"{\1} \2s", rule.message)
                lines.append(f"| `{name}` | {_cell(message)} | {_cell(rule.remedy)} |")
        lines.append("")
    lines += ["## Limits", "", "What is beyond is refused in words, before memory or time is spent on it.", ""]
    lines += ["| limit | value | why |", "|---|---|---|"]
    lines += [f"| `{name}` | {value} | {_cell(why)} |" for name, value, why in limits()]
    return "\n".join([*lines, ""])


def limits() -> list[tuple[str, str, str]]:
    """Name, value and reason of every limit, as they stand in the code."""
    body = ast.parse((SOURCE / "log" / "limits.py").read_text(encoding="utf-8")).body
    found = []
    for node, after in pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            name = ast.unparse(node.targets[0])
            value = getattr(import_module("redenvelope.log.limits"), name)
            why = " ".join(str(after.value.value).split())
            found.append(
                (name.lower().replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:g}", why)
            )
    return found


def commands_page() -> str:
    """Every command with its arguments and options, read from the program itself."""
    lines = ["# Commands", "", "`redenvelope --version` prints the version, `redenvelope COMMAND --help` this.", ""]
    group: Any = typer.main.get_command(app)
    for name, command in _leaves(group):
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


def _leaves(group: Any, before: str = "") -> list[tuple[str, Any]]:
    """The commands of a group and of the groups in it, by all of their words."""
    found = []
    for name, command in group.commands.items():
        words = f"{before} {name}".strip()
        found += _leaves(command, words) if hasattr(command, "commands") else [(words, command)]
    return found


def names_page() -> str:
    """Every public name with its signature, fields and methods, in the order of the pipeline, read from the source."""
    lines = ["# Python", "", "Everything here is imported from `redenvelope`, in the order of the pipeline.", ""]
    room = None
    for name, home in redenvelope._HOMES.items():
        stage = home.partition(".")[0]
        if stage != room:
            room = stage
            said = (import_module(f"redenvelope.{stage}").__doc__ or "").strip().splitlines()[0]
            lines += [f"## {said.partition(':')[0].capitalize() if ':' in said else stage.capitalize()}", "", said, ""]
        node = _definition(SOURCE / f"{home.replace('.', '/')}.py", name)
        lines += [f"### {name}", ""]
        lines += _class(node) if isinstance(node, ast.ClassDef) else _function(node)
    return "\n".join(lines)


def json_page() -> str:
    """What `--json` prints, command by command, read from the schemas."""
    lines = [
        "# What `--json` prints",
        "",
        "One document on standard output; all else goes to standard error. Each has a schema (JSON Schema 2020-12),",
        "which `tests/test_json.py` holds the commands to. Keys may be added; none is taken away or changes its type",
        "within a version. A number that JSON cannot hold is `null`.",
        "",
    ]
    group: Any = typer.main.get_command(app)
    for name in group.commands:
        path = DOCS / "schemas" / f"{name}.json"
        if not path.exists():
            continue
        schema = json.loads(path.read_text(encoding="utf-8"))
        lines += [f"## {name}", "", schema["description"], "", f"Schema: [{name}.json](../schemas/{name}.json)", ""]
        lines += ["| key | type | meaning |", "|---|---|---|"]
        for key, entry in schema["properties"].items():
            always = "" if key in schema["required"] else " (not always)"
            meaning = _cell(entry.get("description", ""))
            lines.append(f"| `{key}`{always} | {_json_type(entry)} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def _json_type(entry: dict[str, Any]) -> str:
    """A type in a word or two."""
    if "$ref" in entry:
        return str(entry["$ref"].rpartition("/")[2])
    if "enum" in entry:
        return " or ".join(f"`{value}`" for value in entry["enum"])
    if "const" in entry:
        return f"`{entry['const']}`"
    if "anyOf" in entry:
        return " or ".join(map(_json_type, entry["anyOf"]))
    kind = entry["type"]
    if isinstance(kind, list):
        return " or ".join(kind)
    return f"array of {_json_type(entry['items'])}" if kind == "array" else str(kind)


def notebook_page() -> str:
    """The notebook, for whoever reads it here."""
    notebook = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```py\n{source}\n```")
    first, *others = parts
    where = "To run it yourself: [notebook.ipynb](../notebook.ipynb). `tests/test_notebook.py` runs it as it stands."
    return "\n\n".join([first, where, *others, ""])


def errata_tests_page() -> str:
    """The source of every test that the page of errata names."""
    lines = ["# Tests of the errata", "", "What the [errata](../errata.md) rest on, as it is run.", ""]
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "errata.md").read_text(encoding="utf-8"))
    for file, name in dict.fromkeys(named):
        path = DOCS.parent / file
        node = _definition(path, name)
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        source = path.read_text(encoding="utf-8").splitlines()[first - 1 : node.end_lineno]
        lines += [f"## {name}", "", f"`{file}`", "", "```text", *source, "```", ""]
    return "\n".join(lines)


def _definition(path: Path, name: str) -> ast.ClassDef | ast.FunctionDef:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    raise LookupError(f"{path} does not define {name}")


def _function(node: ast.FunctionDef) -> list[str]:
    return ["```text", _signature(node), "```", "", ast.get_docstring(node) or "", ""]


def _signature(node: ast.FunctionDef) -> str:
    """The call as it is written, one argument a line where it is long."""
    arguments = [
        re.sub(r"^(\w+: [^=]+)=", r"\1 = ", part)
        for part in ast.unparse(node.args).split(", ")
        if part not in ("self", "cls")
    ]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    whole = f"{node.name}({', '.join(arguments)}){returns}"
    if len(whole) <= _LONG:
        return whole
    # Commas inside of brackets belong to a type, not between arguments.
    parts = re.split(r", (?![^\[(]*[\])])", ", ".join(arguments))
    return "\n".join([f"{node.name}(", *(f"    {part}," for part in parts), f"){returns}"])


def _class(node: ast.ClassDef) -> list[str]:
    """A class: what it is, its fields with their meaning, and its methods."""
    lines = [ast.get_docstring(node) or "", ""]
    fields = [
        (part.target.id, ast.unparse(part.annotation), part.value, _said(node.body, place))
        for place, part in enumerate(node.body)
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.target.id[0] != "_"
    ]
    if fields:
        lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
        for name, kind, value, said in fields:
            default = f"`{ast.unparse(value)}`" if value is not None else ""
            cells = (f"`{name}`", f"`{kind}`", default, said)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
            kinds = {ast.unparse(decorator) for decorator in method.decorator_list}
            shown = f"{node.name}.{_signature(method)}"
            if kinds & {"property", "cached_property"}:
                shown = f"{node.name}.{method.name} -> {ast.unparse(method.returns)}" if method.returns else shown
            lines += ["```text", shown, "```", "", ast.get_docstring(method) or "", ""]
    return lines


def _said(body: list[ast.stmt], place: int) -> str:
    """The string that stands below a field."""
    below = body[place + 1] if place + 1 < len(body) else None
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
        return " ".join(below.value.value.split())
    return ""


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


def surface_page() -> str:
    """What docs/stability.md promises, as a list: a change of it is a change of this file."""
    from redenvelope import client
    from redenvelope.cli import guard, options
    from redenvelope.ledger.database import FORMAT as LEDGER_FORMAT
    from redenvelope.log.columns import _ENTRIES, OPTIONAL, SAID
    from redenvelope.plan.storage import FORMAT as PLAN_FORMAT
    from redenvelope.serve.app import document

    served = document()
    codes = {"certified, or done": 0, "the user's mistake": options.REFUSED, "not certified": options.NOT_CERTIFIED}
    codes |= {"hardly spends": options.UNDER_SPENT, "a bug": guard.A_BUG, "no memory": guard.NO_MEMORY}
    public = [name for name, kind in vars(client).items() if getattr(kind, "__module__", "") == client.__name__]
    found = {
        "python": {name: _members(name) for name in sorted(redenvelope.__all__)},
        "client": sorted(name for name in public if not name.startswith("_")),
        "commands": {
            name: sorted(option for each in command.params for option in (*each.opts, *each.secondary_opts))
            for name, command in _leaves(typer.main.get_command(app))
        },
        "exit codes": codes | {"output lost": guard.OUTPUT_LOST, "interrupted": guard._INTERRUPTED},
        "json": {
            path.stem: sorted(json.loads(path.read_text(encoding="utf-8"))["properties"])
            for path in sorted((DOCS / "schemas").glob("*.json"))
        },
        "http": {
            "addresses": [f"{method.upper()} {path}" for path, own in served["paths"].items() for method in own],
            "messages": {
                name: sorted(schema.get("properties", {})) for name, schema in served["components"]["schemas"].items()
            },
        },
        "log": [*ROLES, *OPTIONAL, *SAID],
        "campaign.toml": sorted(_ENTRIES),
        "formats": {"plan": PLAN_FORMAT, "ledger": LEDGER_FORMAT},
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _members(name: str) -> list[str]:
    """The parameters of a function, or the public members of a class."""
    node = _definition(SOURCE / f"{redenvelope._HOMES[name].replace('.', '/')}.py", name)
    if not isinstance(node, ast.ClassDef):
        own = node.args
        return [argument.arg for argument in (*own.posonlyargs, *own.args, *own.kwonlyargs)]
    members = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    names = [each.id for each in members if isinstance(each, ast.Name)]
    names += [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
    return sorted(name for name in set(names) if not name.startswith("_"))


PAGES = {
    "log.md": rules_page,
    "commands.md": commands_page,
    "api.md": names_page,
    "json.md": json_page,
    "notebook.md": notebook_page,
    "errata-tests.md": errata_tests_page,
    "surface.json": surface_page,
}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
