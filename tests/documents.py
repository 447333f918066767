"""What the documentation tells to type: its fenced blocks, and the commands in them and in its sentences."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

__all__ = ["FENCE", "PAGES", "ROOT", "Block", "blocks", "commands", "lines", "spans", "words"]

ROOT = Path(__file__).parent.parent
PAGES = {path.relative_to(ROOT).as_posix(): path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]}
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)
_OPERATORS = frozenset(";|&<>()")


class Block(NamedTuple):
    """A fenced block."""

    kind: str
    content: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, without the indentation that they stand in."""
    text = PAGES[page].read_text(encoding="utf-8")
    return [
        Block(kind, re.sub(rf"^{indent}", "", content, flags=re.MULTILINE))
        for indent, kind, content in FENCE.findall(text)
    ]


def lines(block: Block) -> list[str]:
    """The command lines of a block: in a console those after a prompt; what goes on in the next line is one."""
    if block.kind not in ("sh", "console"):
        return []
    typed = block.content.replace("\\\n", " ").splitlines()
    if block.kind == "console":
        typed = [line.removeprefix("$ ") for line in typed if line.startswith("$ ")]
    return [line.strip() for line in typed if line.strip() and not line.startswith("#")]


def spans(page: str, start: str) -> list[str]:
    """The code in a page's sentences and tables that begins with a word."""
    text = FENCE.sub("", PAGES[page].read_text(encoding="utf-8"))
    return [" ".join(found.split()) for found in re.findall(rf"`({re.escape(start)}[^`]*)`", text)]


def words(line: str) -> list[list[str]]:
    """A command line as a shell divides it into commands, without its comment and without where output goes."""
    found: list[list[str]] = [[]]
    divided = shlex.shlex(line, posix=True, punctuation_chars=True)
    divided.whitespace_split = True
    redirected = False
    for word in divided:
        operator = set(word) <= _OPERATORS
        if operator and not set(word) & {"<", ">"}:
            found.append([])
        elif not operator and not redirected:
            found[-1].append(word)
        redirected = operator and bool(set(word) & {"<", ">"})
    return [command for command in found if command]


def commands(line: str, program: str) -> list[list[str]]:
    """What a line tells a program."""
    return [command[1:] for command in words(line) if command[0] == program]
