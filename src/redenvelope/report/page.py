"""The report: one self-contained HTML page about a plan, light and dark, for screens, phones and paper.

It loads nothing and uses no library. The first half is for readers who decide about the budget, the second for
reviewers. Terms are linked to a glossary at the end.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Callable
from html import escape
from importlib.resources import files
from pathlib import Path

from redenvelope import __version__
from redenvelope.errors import UsageError
from redenvelope.files import replacing
from redenvelope.plan.plan import Plan
from redenvelope.report.budget_slider import budget_section
from redenvelope.report.markup import Spoken, folded, section, text
from redenvelope.report.sections import (
    allocation_section,
    frontier_section,
    log_section,
    making_section,
    model_section,
    rules_section,
    search_section,
)
from redenvelope.report.summary import certificate_section, summary_section
from redenvelope.report.who_gets_what import examples_section, who_section
from redenvelope.wording import number

Make = Callable[[Plan], str]

# For readers who decide about the budget.
_FIRST: tuple[tuple[str, str, Make], ...] = (
    ("summary", "In short", summary_section),
    ("budget", "What a budget buys", budget_section),
    ("who", "Who gets what", who_section),
    ("examples", "Some users", examples_section),
)
# For reviewers, collapsed.
_CHECKS: tuple[Make, ...] = (
    certificate_section,
    frontier_section,
    allocation_section,
    rules_section,
    model_section,
    search_section,
    log_section,
    making_section,
)


def render_report(plan: Plan) -> str:
    """The report of a plan as HTML."""
    first = {name: (title, linked(made)) for name, title, make in _FIRST if (made := make(plan))}
    links = "".join(f'<li><a href="#{name}">{text(title)}</a></li>' for name, (title, _) in first.items())
    links += '<li><a href="#checks">For reviewers</a></li>'
    title = _title(plan)
    style, script = _resource("page.css"), _resource("page.js")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{text(_policy(script))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<style>{style}</style>
</head>
<body>
<header class="page">
<p>{text(_origin(plan))}</p>
<h1>{text(title)}</h1>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{"".join(made for _, made in first.values())}
{_checks(plan)}
</main>
<footer>
<p>Made by redenvelope {text(__version__)}.</p>
</footer>
<div id="note" role="tooltip" hidden></div>
<script>{script}</script>
</body>
</html>
"""


def _title(plan: Plan) -> str:
    words, certificate = Spoken.of(plan), plan.certificate
    if certificate.target_reward is not None:
        return f"Spending plan for a reward of {number(certificate.target_reward)} per user"
    if len(certificate.budgets) > 1:
        several = ", ".join(f"{number(each.budget)} ({each.name})" for each in certificate.budgets)
        return f"Spending plan for budgets of {several} per user"
    total = f", {words.total_cost(certificate.budget)} {words.everybody}" if words.audience is not None else ""
    return f"Spending plan for a budget of {words.cost(certificate.budget)} per user{total}"


def _checks(plan: Plan) -> str:
    """The half for reviewers."""
    introduction = "The evidence for the first half: open what you want to see. Underlined words are explained."
    inside = "\n".join(linked(made) for make in _CHECKS if (made := make(plan)))
    return section("checks", "For reviewers", f"<p>{introduction}</p>", inside, glossary_section())


def _origin(plan: Plan) -> str:
    """The page's kind, the log and the date, as far as the record knows them."""
    source = plan.record.source
    said = () if source is None else (source.log, source.date)
    return " · ".join(("redenvelope report", *filter(None, said)))


def _policy(script: str) -> str:
    """The content security policy: nothing is fetched, and only the page's own script runs."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _resource(name: str) -> str:
    return files("redenvelope.report").joinpath(name).read_text(encoding="utf-8")


# The field's terms, explained at their first mention in a section: on hover, on focus, and in a list at the end.


_TERMS = {
    "bandit": ("bandit", "A policy that optimises each step alone and ignores effects on later steps."),
    "calibration": ("calibration", "Whether predictions agree with what happens, on average."),
    "certificate": (
        "certificate|certified",
        "The statement, tested on held-out users, that the plan’s mean cost is within the budget.",
    ),
    "check-users": (
        "check users",
        "Users who did not train the model that decides for them. Every promise was tested on them.",
    ),
    "confidence": ("confidence", "How often such a bound would be right if everything were repeated with other users."),
    "effective-users": (
        "effective users",
        "The effective sample size: so many equally weighted users would estimate another policy as precisely as the "
        "logged users with their weights.",
    ),
    "estimator": ("estimator", "The formula that estimates another policy’s reward and cost from the log."),
    "fold": ("folds?", "A part of the users, selected by their ids for one purpose."),
    "frontier": ("frontier", "The most reward that each cost can buy."),
    "interval": ("interval", "The range that contains the true figure with the stated confidence."),
    "logged": ("logged", "What was done and earned according to the log: today’s policy."),
    "nats": ("nats", "A measure of information: how much better the features predict the action than chance does."),
    "overlap": (
        "overlap",
        "Whether enough logged users got what the plan would give: without them its effect cannot be estimated.",
    ),
    "price": (
        "price λ|prices?",
        "What a unit of cost must earn to be spent, written λ: the plan gives what is worth most at this price. It is "
        "also what one more unit of budget would buy.",
    ),
    "propensity": ("propensity|propensities", "The probability with which the logged action was chosen."),
    "standard-error": ("standard error", "How far an estimate is typically from the truth, by chance alone."),
    "temperature": ("temperature", "How much the plan randomises among actions of nearly the same value."),
    "trajectory": ("trajectory", "All steps of one user."),
}
_PATTERNS = {
    name: re.compile(rf"(?<![\w-])({pattern})(?![\w-])", re.IGNORECASE) for name, (pattern, _) in _TERMS.items()
}
_TAG = re.compile(r"(<[^>]*>)")
_SILENT = ("svg", "a", "h1", "h2", "h3", "summary", "table", "code", "script", "style", "dl", "label", "strong")
"""Tags in which no term is explained."""


def linked(markup: str) -> str:
    """A section's markup with the first mention of each term linked to its explanation."""
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
    """Text with links to terms; all mentions are found before links are made, so that links are not nested."""
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
    """Every term with its explanation."""
    entries = "".join(
        f'<dt>{text(name.replace("-", " "))}</dt><dd id="term-{name}">{text(meaning)}</dd>'
        for name, (_, meaning) in _TERMS.items()
    )
    return folded("glossary", "What the words mean", f'<dl class="glossary">{entries}</dl>')


# A plan with its report in one folder: the plan is saved first, so that an error in drawing cannot lose it.


def save_with_report(plan: Plan, folder: Path) -> None:
    """Save a plan with a simple page, then replace the page by the report.

    If the report cannot be drawn, the plan and the simple page remain.
    """
    plan.save(folder, {"report.html": _plain_page(plan).encode()})
    try:
        page = render_report(plan).encode()
    except Exception as error:  # whatever goes wrong in drawing, the plan must survive
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        print(
            f"the plan is saved, but its report could not be drawn ({said}); try `redenvelope report {folder}` again",
            file=sys.stderr,
        )
        return
    plan.save(folder, {"report.html": page})


def write_report(plan: Plan, path: Path) -> Path:
    """Write a plan's report to a separate file."""
    require_html(path)
    page = render_report(plan).encode()
    with replacing(path) as file:
        file.write(page)
    return path


def require_html(path: Path) -> None:
    """Refuse a file name that a browser would not open as a page."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path}: the report is written as .html; choose that ending")


def _plain_page(plan: Plan) -> str:
    """The page in the folder until the report is drawn."""
    reasons = "".join(f"<li>{escape(reason.message)}</li>" for reason in plan.certificate.notes)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Spending plan</title></head><body>'
        f"<p>{escape(plan.certificate.sentence())}</p><ul>{reasons}</ul>"
        "<p>The report with its charts was not drawn: <code>redenvelope report</code> draws it.</p></body></html>\n"
    )
