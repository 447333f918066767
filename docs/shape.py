"""Count what keeps the package readable: modules, lines, folders, modules with a single importer, words not to use.

`make shape` prints the counts and writes them into docs/architecture.md; tests/test_shape.py holds the package to the
limits below.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "architecture.md"

MOST_MODULES = 220
MOST_LINES = 53_300
MOST_IN_A_FOLDER = 14
MOST_SINGLE_IMPORTERS = 0.12
LONGEST_MODULE = 700

RETIRED_NAMES = (
    *("Kept", "Asked", "Whole", "Lessons", "Contestant", "Contender", "Standing", "Followed", "Worth"),
    *("scouts", "walkers", "doubts", "trust_in"),
)
"""Names of an earlier, private vocabulary; docs/architecture.md has the field's words."""

RETIRED_PHRASES = (
    r"\b(mean|cost|reward|budget|spent|earned|costs|earns)( [a-z]+)? a user\b",
    r"how-manieth|the lot decides|users apart|users that chose nothing|not worth a word|none that is known",
)
"""Phrases that readers stumbled over."""


def modules() -> dict[str, Path]:
    """Every module by its dotted name, packages included."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def importers(found: dict[str, Path]) -> dict[str, set[str]]:
    """The modules that import each module."""
    result: dict[str, set[str]] = defaultdict(set)
    for name, path in found.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for target in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if target in found and target != name:
                        result[target].add(name)
    return result


def suffix_pairs(found: dict[str, Path]) -> list[tuple[str, str]]:
    """Modules of one folder of which one name is the other with something appended."""
    folders: dict[Path, list[str]] = defaultdict(list)
    for path in found.values():
        if path.name != "__init__.py":
            folders[path.parent].append(path.stem)
    return [
        (f"{folder.name}/{short}", long)
        for folder, names in folders.items()
        for short, long in pairwise(sorted(names))
        if long.startswith(short)
    ]


def retired_words(found: dict[str, Path]) -> list[str]:
    """Places where a retired name or phrase stands."""
    phrases = re.compile("|".join(RETIRED_PHRASES))
    hits = []
    for path in found.values():
        text = path.read_text(encoding="utf-8")
        named = [(node.lineno, name) for node in ast.walk(ast.parse(text)) for name in _identifiers(node)]
        said = [
            (number, match[0]) for number, line in enumerate(text.splitlines(), 1) if (match := phrases.search(line))
        ]
        retired = [entry for entry in named if entry[1] in RETIRED_NAMES]
        hits += [f"{path.relative_to(ROOT)}:{number}: {word}" for number, word in sorted({*retired, *said})]
    return hits


def _identifiers(node: ast.AST) -> list[str]:
    """The names that a node of the syntax tree introduces or uses."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.arg):
        return [node.arg]
    return [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []


def shape() -> dict[str, object]:
    """All counts."""
    found = modules()
    lines = {name: path.read_text(encoding="utf-8").count("\n") for name, path in found.items()}
    chapters = [name for name, path in found.items() if path.name != "__init__.py"]
    imported = importers(found)
    folders = Counter(path.parent.relative_to(SOURCE).as_posix() for path in found.values() if path.stem != "__init__")
    single = [name for name in chapters if len(imported[name]) == 1]
    return {
        "modules": len(found),
        "lines": sum(lines.values()),
        "median lines of a module": sorted(lines[name] for name in chapters)[len(chapters) // 2],
        "longest module": max(lines.values()),
        "most modules in a folder": max(folders.values()),
        "share of modules with a single importer": len(single) / len(chapters),
        "names that differ by a suffix": len(suffix_pairs(found)),
        "retired names and phrases": len(retired_words(found)),
    }


def table() -> str:
    """The counts beside their limits, as Markdown."""
    limits = {
        "modules": f"{MOST_MODULES}",
        "lines": f"{MOST_LINES:,}",
        "longest module": f"{LONGEST_MODULE}",
        "most modules in a folder": f"{MOST_IN_A_FOLDER}",
        "share of modules with a single importer": f"{MOST_SINGLE_IMPORTERS:.0%}",
        "names that differ by a suffix": "0",
        "retired names and phrases": "0",
    }
    rows = ["| count | now | at most |", "|---|---|---|"]
    for name, value in shape().items():
        shown = f"{value:.1%}" if isinstance(value, float) else f"{value:,}"
        rows.append(f"| {name} | {shown} | {limits.get(name, '')} |")
    return "\n".join(rows)


def main() -> None:
    """Print the counts, and write them into the page on the architecture."""
    content = table()
    print(content)
    found = modules()
    for short, long in suffix_pairs(found):
        print(f"differ by a suffix: {short} and {long}")
    for place in retired_words(found)[:20] if "--words" in sys.argv else ():
        print(place)
    page = PAGE.read_text(encoding="utf-8")
    start, end = "<!-- shape -->\n", "\n<!-- end of shape -->"
    before, rest = page.split(start)
    PAGE.write_text(before + start + content + end + rest.split(end)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
