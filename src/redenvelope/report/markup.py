"""Pieces of HTML, and costs and rewards in words. Every text from outside goes through `text`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from redenvelope.plan.money import money
from redenvelope.plan.plan import Plan
from redenvelope.wording import number

_SIDE_BY_SIDE = 5  # columns that fit on a phone
# Characters that XML cannot represent; the drawing library aborts the process on them.
_UNSHOWN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Chart:
    """A drawn chart, with a narrower drawing for phones if shrinking would make it unreadable."""

    title: str
    caption: str
    """One sentence that says what to see."""
    wide: str
    narrow: str | None = None


def text(value: object) -> str:
    """Any value as text that is escaped for markup."""
    return escape(shown(str(value)), quote=True)


def shown(value: str) -> str:
    """Text with characters that a page cannot contain written as escapes."""
    return _UNSHOWN.sub(lambda found: found[0].encode("unicode_escape").decode(), value)


def section(name: str, title: str, *parts: str) -> str:
    """A titled section; `name` is its anchor."""
    body = "\n".join(part for part in parts if part)
    return f'<section id="{text(name)}" aria-labelledby="{text(name)}-title">\n' + (
        f'<h2 id="{text(name)}-title">{text(title)}</h2>\n{body}\n</section>'
    )


def folded(name: str, title: str, *parts: str) -> str:
    """A section that is collapsed under its title; `name` is its anchor."""
    body = "\n".join(part for part in parts if part)
    return (
        f'<details class="check" id="{text(name)}"><summary><h3>{text(title)}</h3></summary>\n'
        f'<div class="inside">{body}</div>\n</details>'
    )


def figure(chart: Chart | None, name: str = "") -> str:
    """A chart with its title and caption; `name` is its anchor."""
    if chart is None:
        return ""
    anchor = f' id="{text(name)}"' if name else ""
    alternative = text(f"{chart.title}. {chart.caption}")
    drawings = [(chart.wide, "wide" if chart.narrow else "any")]
    if chart.narrow:
        drawings.append((chart.narrow, "narrow"))
    inside = "\n".join(
        f'<div class="drawing {kind}" role="img" aria-label="{alternative}">{drawing}</div>'
        for drawing, kind in drawings
    )
    return (
        f"<figure{anchor}>\n<figcaption><h3>{text(chart.title)}</h3><p>{text(chart.caption)}</p></figcaption>\n"
        f"{inside}\n</figure>"
    )


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """A table with a caption; the first `words` columns contain words, the others figures."""
    kinds = ["word" if place < words else "figure" for place in range(len(heads))]
    head = "".join(f'<th scope="col" class="{kind}">{text(name)}</th>' for name, kind in zip(heads, kinds, strict=True))
    lines = []
    for row in rows:
        first, *others = row
        cells = "".join(
            f'<td class="{kind}" data-head="{text(head)}">{text(value)}</td>'
            for value, kind, head in zip(others, kinds[1:], heads[1:], strict=True)
        )
        lines.append(f'<tr><th scope="row" class="{kinds[0]}">{text(first)}</th>{cells}</tr>')
    if not lines:
        return ""
    # On a phone, a row with many cells or with sentences becomes a small list; tables of figures only scroll.
    reflows = words > 2 or 0 < words <= _SIDE_BY_SIDE < len(heads)
    kind = ' class="reflow"' if reflows else ""
    # The title is outside the table: on a phone, a wide table scrolls and would move its caption along.
    return (
        f'<div class="table"><p aria-hidden="true">{text(caption)}</p>'
        f'<div class="scroll" role="region" aria-label="{text(caption)}" tabindex="0"><table{kind}>'
        f"<caption>{text(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></div>"
    )


def items(sentences: Iterable[object], kind: str = "") -> str:
    """A list of sentences."""
    lines = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    return f'<ul class="{text(kind)}">{lines}</ul>' if lines else ""


# Sums in words: in the plan's currency if it has one, per user and in total.


_FIGURES = 4  # digits of a total; more would suggest a precision that the bounds do not have


@dataclass(frozen=True)
class Spoken:
    """Words for costs and rewards."""

    currency: str = ""
    audience: int | None = None

    @classmethod
    def of(cls, plan: Plan) -> Spoken:
        """The words that suit a plan."""
        asked = plan.money
        return cls(asked.currency, asked.audience)

    def cost(self, value: float) -> str:
        """A cost: 3.46 EUR, or 3.456 without a currency."""
        if not self.currency:
            return number(value)
        return money(value, self.currency).replace("-", "−")

    def total_cost(self, mean: float) -> str:
        """A mean cost per user as a total, such as 173,000 EUR; empty if the audience is unknown."""
        return "" if self.audience is None else self._total(mean, self.currency)

    def total_reward(self, mean: float) -> str:
        """A mean reward per user as a total; empty if the audience is unknown."""
        return "" if self.audience is None else self._total(mean, "")

    def _total(self, mean: float, unit: str) -> str:
        assert self.audience is not None
        return money(mean * self.audience, unit, _FIGURES).replace("-", "−")

    @property
    def unit(self) -> str:
        """The name of one unit of cost."""
        return f"1 {self.currency}" if self.currency else "one more unit of cost"

    @property
    def axis(self) -> str:
        """The title of an axis of costs."""
        return f"cost per user, {self.currency}" if self.currency else "cost per user"

    @property
    def everybody(self) -> str:
        """The audience in words; empty if unknown."""
        return "" if self.audience is None else f"for {self.audience:,} users"
