"""One self-contained page about a plan: no network, no library, light and dark, for screens, phones and paper."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from redenvelope import __version__
from redenvelope.plan.plan import Plan
from redenvelope.report.certificate_section import certificate_section
from redenvelope.report.evidence_sections import allocation_section, log_section, model_section
from redenvelope.report.markup import number, text
from redenvelope.report.plan_sections import frontier_section, making_section, search_section

__all__ = ["render_report"]

_SECTIONS = (
    ("certificate", "Certificate", certificate_section),
    ("frontier", "What a budget buys", frontier_section),
    ("allocation", "Who gets what", allocation_section),
    ("model", "The model", model_section),
    ("search", "The price", search_section),
    ("log", "The log", log_section),
    ("making", "How it was made", making_section),
)


def render_report(plan: Plan) -> str:
    """The report of a plan as HTML."""
    links = "".join(f'<li><a href="#{name}">{text(title)}</a></li>' for name, title, _ in _SECTIONS)
    title = f"Spending plan for a budget of {number(plan.certificate.budget)} a user"
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
{"".join(make(plan) for _, _, make in _SECTIONS)}
</main>
<footer>
<p>Made by redenvelope {text(__version__)}. Policy {text(plan.certificate.policy_sha256)}; check fold
{text(plan.certificate.fold_sha256)}.</p>
</footer>
<div id="note" role="tooltip" hidden></div>
<script>{script}</script>
</body>
</html>
"""


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
