"""Text for readers: numbers in sentences and tables, notebook displays, and option names for Python or commands."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`, `1,200 steps`; for nouns whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Count(int):
    """An integer whose format may be a noun: `{count:row}` is "1 row" or "2 rows"."""

    def __format__(self, form: str) -> str:
        return counted(self, form) if form[-1:].isalpha() and form != "d" else super().__format__(form)


def number(value: float | None, digits: int = 4) -> str:
    """A figure for readers, with about `digits` significant digits, such as 1.517; a dash if there is none."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int) or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}".replace("-", "−")
    value = float(f"{value:.12g}")  # so that values that differ only by the order of a sum round the same way
    # One digit less below 1, so that figures of one table have equally many decimals.
    figures = digits - 1 if digits > 3 and abs(value) < 1 else digits
    return f"{value:.{figures}g}".replace("-", "−")


def price_label(value: float) -> str:
    """A price λ; an infinite one is called cheapest, because only cost counts at it."""
    return "cheapest" if math.isinf(value) else number(value)


def signed(value: float | None, digits: int = 3) -> str:
    """A difference with its sign; one that comes from rounding alone is shown as 0."""
    shown = number(0.0 if value is not None and abs(value) < 1e-9 else value, digits)
    return f"+{shown}" if shown[0].isdigit() and shown != "0" else shown


def interval(lower: float | None, upper: float | None) -> str:
    """The two ends of an interval, with equally many decimals."""
    ends = [number(end, 3) for end in (lower, upper)]
    places = max(0 if "e" in end else len(end.partition(".")[2]) for end in ends)
    return " to ".join(_padded(end, places) for end in ends)


def _padded(shown: str, places: int) -> str:
    """A short number as shown, with zeros up to so many decimals."""
    whole, _, decimals = shown.partition(".")
    if not places or not whole.lstrip("−").isdigit() or "e" in decimals:
        return shown
    return f"{whole}.{decimals:0<{places}}"


def html_block(title: str, sentences: Iterable[str], rows: Iterable[tuple[str, str]] = ()) -> str:
    """The HTML display of an object in a notebook: its title, a list of sentences, and a table of names and values."""
    listed = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    told = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in rows
    )
    parts = (f"<p><b>{escape(title)}</b></p>", listed and f"<ul>{listed}</ul>", told and f"<table>{told}</table>")
    return f"<div>{''.join(parts)}</div>"


# Remedies name options as on the command line. Callers from Python see the corresponding arguments instead, and a
# command names only options that it has.

_OPTION = re.compile(r"--([a-z][a-z-]+)(?:[ =]('[^']*'|(?:[^\s;,:()\"']|,(?=\S))+(?<!\.)))?")
_SWITCHES = frozenset({"estimate-propensity", "for-all-prices", "all-users", "no-leaf-values"})
_OF_COLUMNS = frozenset({"ignore", "time", "episode", "cluster", "missing-cost", "dates"})
_OF_FIT = frozenset({"most-per-user", "temperature", "horizon", "known-before", "estimate-propensity"})
_TO_COMMANDS = frozenset({"budget-total", "amounts", "user-cap", "port", "debug", "first", "parts", "engine"})
"""Options that only commands have."""

_options: ContextVar[frozenset[str] | None] = ContextVar("options", default=None)
"""The options of the running command; None in Python."""


@contextmanager
def speaking_to_commands() -> Iterator[None]:
    """Within the block, options are named as on the command line."""
    token = _options.set(frozenset())
    try:
        yield
    finally:
        _options.reset(token)


def command_has(options: Iterable[str]) -> None:
    """Register the options of the running command, such as `--time`; does nothing outside of commands."""
    if _options.get() is not None:
        _options.set(frozenset(options))


def for_reader(text: str) -> str:
    """A message with its options as its reader writes them: arguments in Python, or options that the command has."""
    known = _options.get()
    if known is None:  # several options are arguments of one call
        named = _OPTION.sub(_as_argument, text)
        return named.replace("} columns={", ", ").replace("} estimate_propensity=", "}, estimate_propensity=")
    return _OPTION.sub(lambda found: _as_option(found, known), text) if known else text


def _as_option(found: re.Match[str], known: frozenset[str]) -> str:
    name, value = found[1], found[2]
    if f"--{name}" not in known and name in _OF_FIT:
        return f"fit {found[0]}"
    if f"--{name}" in known or name not in _OF_COLUMNS or "--columns" not in known:
        return found[0]
    return f"--columns {name.replace('-', '_')}={value or '…'}"


def _as_argument(found: re.Match[str]) -> str:
    name, value = found[1].replace("-", "_"), found[2]
    if found[1] in _TO_COMMANDS:
        return found[0]
    if found[1] in _SWITCHES:
        return f"{name}=True" + ("" if value is None else f" {value}")
    if value is None:
        return f'columns={{"{name}": …}}' if found[1] in _OF_COLUMNS else f"{name}=…" if name != "columns" else name
    plain = value.strip("'")
    if name == "columns":
        pairs = (pair.partition("=") for pair in plain.split(","))
        return "columns={" + ", ".join(f'"{role}": "{column}"' for role, _, column in pairs) + "}"
    written = plain if re.fullmatch(r"-?\d+(\.\d+)?|…|[A-Z]+", plain) else f'"{plain}"'
    if found[1] in _OF_COLUMNS:
        return f'columns={{"{name}": {written}}}'
    return f"{name}=({written},)" if name == "known_before" else f"{name}={written}"
