"""Tables and pages for people: Markdown beside the CSV, and one page that shows everything."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import polars as pl

from experiments.paper import DIFFERENCES
from experiments.result import Result

__all__ = ["cells", "differences_frame", "index_html", "index_markdown", "markdown_table"]

_TITLE = "The paper's experiments, reproduced"
_ABOUT = (
    "Xiao, Guo, Jiang, Lv, Chen, Zhu and Yang, “Model-based Constrained MDP for Budget Allocation in Sequential "
    "Incentive Marketing”, CIKM 2019. The paper's numbers stand beside those that were measured."
)
_FEW_ROWS = 30  # longer tables are left to their own file

# Columns whose figures are shares, shown as percentages.
_SHARES = ("gain", "paper_gain", "exact_gain", "change", "paper_change")


def cells(table: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heads and rows as people read them: a figure and its interval are one cell, empty columns are left out."""
    columns = [
        name
        for name in table.columns
        if not (name.endswith(("_lower", "_upper")) and name.rsplit("_", 1)[0] in table.columns)
        and table[name].null_count() < len(table)
    ]
    rows = [[_cell(row, name) for name in columns] for row in table.iter_rows(named=True)]
    return [name.replace("_", " ") for name in columns], rows


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = _shown(row[name], name)
    low, high = row.get(f"{name}_lower"), row.get(f"{name}_upper")
    if low is None or high is None or (_shown(low, name) == _shown(high, name) == value):
        return value
    return f"{value} ({_shown(low, name)} to {_shown(high, name)})"


def _shown(value: Any, name: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if math.isinf(value):
        return "∞"
    if name in _SHARES:
        return f"{value:+.2%}"
    if name.startswith("seconds") and abs(value) < 0.1:
        return f"{value:.2g}"
    shown = f"{value:.4f}" if not name.startswith("seconds") else f"{value:.2f}"
    return shown.removeprefix("-") if float(shown) == 0 else shown


def markdown_table(table: pl.DataFrame) -> str:
    """A Markdown table of all rows."""
    heads, rows = cells(table)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def differences_frame() -> pl.DataFrame:
    """What differs from the paper, and why."""
    return pl.DataFrame(
        [
            {"subject": item.subject, "the paper": item.paper, "here": item.here, "reason": item.reason}
            for item in DIFFERENCES
        ]
    )


def index_markdown(results: Sequence[Result], note: str) -> str:
    """All results in one Markdown file, with links to theirs."""
    parts = [f"# {_TITLE}", _ABOUT, note]
    for result in results:
        parts += [f"## {result.title}", *result.sentences]
        if len(result.table) <= _FEW_ROWS:
            parts.append(markdown_table(result.table))
        parts += [
            f"![{figure.title}]({figure.name}.png)\n\n{figure.caption} [With tooltips]({figure.name}.html)."
            for figure in result.figures
        ]
        parts.append(f"Table: [CSV]({result.name}.csv), [Markdown]({result.name}.md).")
    parts += ["## What differs from the paper, and why", markdown_table(differences_frame())]
    return "\n\n".join(parts) + "\n"


def index_html(results: Sequence[Result], pictures: Mapping[str, bytes], note: str) -> str:
    """All results on one page that needs nothing but itself; `pictures` are PNG by figure."""
    body = [f"<h1>{escape(_TITLE)}</h1>", f"<p>{escape(_ABOUT)}</p>", f"<p>{escape(note)}</p>"]
    for result in results:
        body.append(f'<section id="{escape(result.name)}"><h2>{escape(result.title)}</h2>')
        body += [f"<p>{escape(sentence)}</p>" for sentence in result.sentences]
        for figure in result.figures:
            picture = base64.b64encode(pictures[figure.name]).decode()
            body.append(
                f'<figure><img alt="{escape(figure.title)}" src="data:image/png;base64,{picture}">'
                f"<figcaption>{escape(figure.caption)} "
                f'<a href="{escape(figure.name)}.html">With tooltips</a></figcaption></figure>'
            )
        table = _html_table(*cells(result.table))
        if len(result.table) > _FEW_ROWS:
            table = f"<details><summary>All {len(result.table)} rows</summary>{table}</details>"
        body.append(f'{table}<p><a href="{escape(result.name)}.csv">CSV</a></p></section>')
    body.append("<section><h2>What differs from the paper, and why</h2>")
    body.append(_html_table(*cells(differences_frame())) + "</section>")
    return _PAGE.replace("BODY", "\n".join(body)).replace("TITLE", escape(_TITLE))


def _html_table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<style>
body { margin: 0 auto; max-width: 980px; padding: 24px 16px 64px; color: #1c1d21; background: #ffffff;
  font: 16px/1.55 system-ui, sans-serif; }
h2 { margin-top: 48px; }
figure { margin: 20px 0; }
img { max-width: 100%; height: auto; }
figcaption, thead th { color: #5d616b; font-size: 14px; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 6px 14px 6px 0; border-bottom: 1px solid #e2e1de; }
a { color: #22619e; }
</style>
</head>
<body>
BODY
</body>
</html>
"""
