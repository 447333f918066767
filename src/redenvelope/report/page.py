"""One self-contained page about a plan: no network, no library, light and dark, for screens, phones and paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from importlib.resources import files

from redenvelope import __version__
from redenvelope.plan.plan import Plan
from redenvelope.report.budget_section import budget_section
from redenvelope.report.certificate_section import certificate_section
from redenvelope.report.evidence_sections import allocation_section, log_section, model_section
from redenvelope.report.examples_section import examples_section
from redenvelope.report.glossary import glossary_section, linked
from redenvelope.report.markup import number, section, text
from redenvelope.report.plan_sections import frontier_section, making_section, search_section
from redenvelope.report.rules_section import rules_section
from redenvelope.report.spoken import Spoken
from redenvelope.report.summary_section import summary_section
from redenvelope.report.who_section import who_section

__all__ = ["render_report"]

Make = Callable[[Plan], str]

# For whoever pays.
_FIRST: tuple[tuple[str, str, Make], ...] = (
    ("summary", "In short", summary_section),
    ("budget", "What a budget buys", budget_section),
    ("who", "Who gets what", who_section),
    ("examples", "Some users", examples_section),
)
# For whoever checks, folded.
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
    links += '<li><a href="#checks">For whoever checks</a></li>'
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
        return f"Spending plan for a reward of {number(certificate.target_reward)} a user"
    if len(certificate.budgets) > 1:
        several = ", ".join(f"{number(each.budget)} ({each.name})" for each in certificate.budgets)
        return f"Spending plan for budgets of {several} a user"
    total = f", {words.total_cost(certificate.budget)} {words.everybody}" if words.audience is not None else ""
    return f"Spending plan for a budget of {words.cost(certificate.budget)} a user{total}"


def _checks(plan: Plan) -> str:
    """The second half."""
    introduction = "What the first half rests on: open what you want to see. Words that are underlined are explained."
    inside = "\n".join(linked(made) for make in _CHECKS if (made := make(plan)))
    return section("checks", "For whoever checks", f"<p>{introduction}</p>", inside, glossary_section())


def _origin(plan: Plan) -> str:
    """What the page is, of which log, and of when, as far as the record knows."""
    source = plan.record.source
    said = () if source is None else (source.log, source.date)
    return " · ".join(("redenvelope report", *filter(None, said)))


def _policy(script: str) -> str:
    """Nothing may be fetched, and no script but the page's own may run, whatever a label says."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _resource(name: str) -> str:
    return files("redenvelope.report").joinpath(name).read_text(encoding="utf-8")
