"""Numbers in sentences and tables."""

from __future__ import annotations

import math


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`, `1,200 steps`: the noun's plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Count(int):
    """A number that takes a noun as its format: `{count:row}` is "1 row" or "2 rows"."""

    def __format__(self, form: str) -> str:
        return counted(self, form) if form[-1:].isalpha() and form != "d" else super().__format__(form)


def number(value: float | None, digits: int = 4) -> str:
    """A figure as people write it, such as 1.517 and 0.313 side by side; a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int) or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}".replace("-", "−")
    value = float(f"{value:.12g}")  # what differs by the order of a sum alone must not round differently
    # Below 1 a digit less, so that figures of one table have as many decimals.
    figures = digits - 1 if digits > 3 and abs(value) < 1 else digits
    return f"{value:.{figures}g}".replace("-", "−")


def price_label(value: float) -> str:
    """A price λ; at an infinite one nothing but cost counts."""
    return "cheapest" if math.isinf(value) else number(value)


def signed(value: float | None, digits: int = 3) -> str:
    """A difference with its sign; what only rounding made is none."""
    shown = number(0.0 if value is not None and abs(value) < 1e-9 else value, digits)
    return f"+{shown}" if shown[0].isdigit() and shown != "0" else shown


def interval(lower: float | None, upper: float | None) -> str:
    """The two ends of an interval."""
    return f"{number(lower, 3)} to {number(upper, 3)}"
