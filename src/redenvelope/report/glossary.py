"""The field's words, explained where they first stand in a section: on hover, on focus, and in a list at the end."""

from __future__ import annotations

import re

from redenvelope.report.markup import folded, text

__all__ = ["glossary_section", "linked"]

_TERMS = {
    "bandit": ("bandit", "A plan that looks at each step by itself, and not at what it does to later ones."),
    "calibration": ("calibration", "Whether what is predicted also happens, on average, where it is predicted."),
    "certificate": (
        "certificate|certified",
        "The statement, tested on users who had no part in making the plan, that its mean cost keeps to the budget.",
    ),
    "check-users": (
        "check users",
        "Users who neither trained the model nor chose the price. All that is promised was tested on them.",
    ),
    "confidence": ("confidence", "How often such a bound is right, were all of it done again with other users."),
    "effective-users": (
        "effective users",
        "Logged users differ in how much they say about another way of deciding; so many equally telling ones say as "
        "much as all of them together.",
    ),
    "estimator": ("estimator", "The formula that tells from logged behaviour what another behaviour would have given."),
    "fold": ("folds?", "A part of the users, drawn by chance and kept for one purpose."),
    "frontier": ("frontier", "The most reward that each cost can buy."),
    "interval": ("interval", "The range in which the true figure lies, with the confidence that is said."),
    "logged": ("logged", "What was done and what came of it, as the log has it: today’s way."),
    "nats": ("nats", "A measure of information: how much better the features predict the action than chance does."),
    "overlap": (
        "overlap",
        "Whether enough logged users got what the plan would give: without them nobody can say what it does.",
    ),
    "price": (
        "price λ|prices?",
        "What a unit of cost must earn to be spent, written λ: the plan gives what is worth most at it. It is also "
        "what one more unit of budget would buy.",
    ),
    "propensity": ("propensity|propensities", "The probability with which the logged action was chosen."),
    "standard-error": ("standard error", "How far an estimate is typically from the truth, by chance alone."),
    "temperature": ("temperature", "How readily the plan draws among actions that are worth nearly the same."),
    "trajectory": ("trajectory", "All steps of one user."),
}
_PATTERNS = {
    name: re.compile(rf"(?<![\w-])({pattern})(?![\w-])", re.IGNORECASE) for name, (pattern, _) in _TERMS.items()
}
_TAG = re.compile(r"(<[^>]*>)")
_SILENT = ("svg", "a", "h1", "h2", "h3", "summary", "table", "code", "script", "style", "dl", "label", "strong")
"""Inside of these no word is explained."""


def linked(markup: str) -> str:
    """A section's markup with the first mention of each term made a link to what it means."""
    seen: set[str] = set()
    silent: list[str] = []
    parts = []
    for part in _TAG.split(markup):
        if part.startswith("<"):
            _follow(part, silent)
            parts.append(part)
        else:
            parts.append(part if silent else _explained(part, seen))
    return "".join(parts)


def _follow(tag: str, silent: list[str]) -> None:
    name = re.match(r"</?([a-z0-9]+)", tag)
    if name is None or tag.endswith("/>"):
        return
    if tag.startswith("</"):
        if silent and silent[-1] == name[1]:
            silent.pop()
    elif name[1] in _SILENT or 'aria-hidden="true"' in tag:
        silent.append(name[1])


def _explained(words: str, seen: set[str]) -> str:
    """Text with links; found before any is made, so that no link stands inside of another."""
    found: list[tuple[int, int, str]] = []
    for name, pattern in _PATTERNS.items():
        match = pattern.search(words) if name not in seen else None
        if match and not any(match.start() < end and start < match.end() for start, end, _ in found):
            found.append((match.start(), match.end(), name))
            seen.add(name)
    for start, end, name in sorted(found, reverse=True):
        link = f'<a class="term" href="#term-{name}" aria-describedby="term-{name}">{words[start:end]}</a>'
        words = words[:start] + link + words[end:]
    return words


def glossary_section() -> str:
    """Every term and its meaning."""
    entries = "".join(
        f'<dt>{text(name.replace("-", " "))}</dt><dd id="term-{name}">{text(meaning)}</dd>'
        for name, (_, meaning) in _TERMS.items()
    )
    return folded("glossary", "What the words mean", f'<dl class="glossary">{entries}</dl>')
