"""Conditions on the columns of a row: the language, its parser, and three-valued evaluation.

A condition is true, false, or unknown if a value is missing; unknown propagates through `and`, `or` and `not` as in SQL
and polars. A condition holds only where it is true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import BoolArray
from redenvelope.errors import UsageError

Kind = Literal["number", "text"]

_SIGNS = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


class Texts(NamedTuple):
    """A text column in some rows."""

    codes: NDArray[np.integer]
    """[rows], index into the labels; −1 is missing, any other number outside the labels is an unlisted label."""
    labels: tuple[str, ...]


class RowColumns(Protocol):
    """The columns of some rows, by name."""

    def numbers(self, name: str) -> NDArray[np.float32]:
        """A numeric column (true is 1), [rows]; NaN is missing."""
        ...

    def texts(self, name: str) -> Texts:
        """A text column."""
        ...

    def is_text(self, name: str) -> bool:
        """Whether a column is text; otherwise it is numeric."""
        ...


class Verdict(NamedTuple):
    """Where a condition is true and where it is false; elsewhere it is unknown."""

    true: BoolArray
    """[rows]"""
    false: BoolArray
    """[rows]"""


def holds(condition: Condition, rows: RowColumns) -> BoolArray:
    """Where a condition is true, [rows]."""
    return judged(condition, lambda leaf: leaf.verdict(rows)).true


def columns_of(condition: Condition) -> frozenset[str]:
    """Names of the columns that a condition uses."""
    return frozenset(name for name, _ in column_uses(condition))


def column_uses(condition: Condition) -> Iterator[tuple[str, Kind | None]]:
    """Every use of a column in a condition: its name, and its required type (None if either will do)."""
    for leaf in leaves(condition):
        if isinstance(leaf, Compare):
            yield leaf.left, "text" if isinstance(leaf.right, str) else "number"
            if isinstance(leaf.right, Column):
                yield leaf.right.name, "number"
        elif isinstance(leaf, Among):
            yield leaf.name, "text" if isinstance(leaf.values[0], str) else "number"
        else:
            yield leaf.name, "number" if isinstance(leaf, Column) else None


@dataclass(frozen=True)
class Column:
    """A column alone, true where it is not 0."""

    name: str

    def verdict(self, rows: RowColumns) -> Verdict:
        """Where it is true and where it is false."""
        return Compare(self.name, "!=", 0.0).verdict(rows)


@dataclass(frozen=True)
class Compare:
    """A comparison of a column with a number, a text, or another numeric column."""

    left: str
    sign: str
    right: float | str | Column

    def verdict(self, rows: RowColumns) -> Verdict:
        """Where it is true and where it is false."""
        if isinstance(self.right, str):
            found = _is_text(rows.texts(self.left), (self.right,))
            return found if self.sign == "==" else Verdict(found.false, found.true)
        # In float32, as features are stored, so that a number equals itself wherever it was written.
        left = rows.numbers(self.left)
        right = rows.numbers(self.right.name) if isinstance(self.right, Column) else np.float32(self.right)
        known = ~(np.isnan(left) | np.isnan(right))
        said = np.asarray(_SIGNS[self.sign](left, right))
        return Verdict(known & said, known & ~said)


@dataclass(frozen=True)
class Among:
    """Membership of a column in a list of numbers or texts."""

    name: str
    values: tuple[float, ...] | tuple[str, ...]

    def verdict(self, rows: RowColumns) -> Verdict:
        """Where it is true and where it is false."""
        texts = tuple(value for value in self.values if isinstance(value, str))
        if texts:
            return _is_text(rows.texts(self.name), texts)
        values = rows.numbers(self.name)
        known = ~np.isnan(values)
        said = np.isin(values, np.array(self.values, dtype=np.float32))
        return Verdict(known & said, known & ~said)


@dataclass(frozen=True)
class Missing:
    """A column without a value; never unknown."""

    name: str

    def verdict(self, rows: RowColumns) -> Verdict:
        """Where it is true and where it is false."""
        is_text = rows.is_text(self.name)
        missing = rows.texts(self.name).codes == -1 if is_text else np.isnan(rows.numbers(self.name))
        return Verdict(missing, ~missing)


@dataclass(frozen=True)
class Negation:
    """The condition `not …`."""

    inner: Condition


@dataclass(frozen=True)
class Every:
    """The condition `… and …`."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Either:
    """The condition `… or …`."""

    parts: tuple[Condition, ...]


Leaf = Column | Compare | Among | Missing
"""A test of one column."""
Condition = Leaf | Negation | Every | Either
"""A test of single rows."""


def leaves(condition: Condition) -> Iterator[Leaf]:
    """Yield the single-column tests of a condition."""
    if isinstance(condition, Negation):
        yield from leaves(condition.inner)
    elif isinstance(condition, Every | Either):
        for part in condition.parts:
            yield from leaves(part)
    else:
        yield condition


def judged(condition: Condition, answer: Callable[[Leaf], Verdict]) -> Verdict:
    """The verdict of a condition, given a function for the verdicts of its leaves."""
    if isinstance(condition, Negation):
        inner = judged(condition.inner, answer)
        return Verdict(inner.false, inner.true)
    if isinstance(condition, Every | Either):
        true, false = (and_, or_) if isinstance(condition, Every) else (or_, and_)
        said = [judged(part, answer) for part in condition.parts]
        return Verdict(reduce(true, (part.true for part in said)), reduce(false, (part.false for part in said)))
    return answer(condition)


def _is_text(column: Texts, wanted: tuple[str, ...]) -> Verdict:
    places = [place for place, label in enumerate(column.labels) if label in wanted]
    known = column.codes != -1
    said = np.isin(column.codes, places)
    return Verdict(known & said, known & ~said)


# The parser. Conditions are comparisons of columns, joined by and, or, not; they are parsed, never executed.
#
#     tenure_days >= 30
#     segment == 'new' and not (visits > 3 or is_member)
#     country in ('FR', 'DE') and `days since order` is not null
#     visits > purchases
#
# Column names with special characters go in backticks; texts are quoted, numbers are not. `step` is the index of the
# decision.


_LONGEST = 2_000  # characters
_DEEPEST = 50  # nesting depth of parentheses and nots

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
      | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
      | `(?P<quoted>[^`]+)`
      | (?P<name>[^\W\d]\w*)
      | (?P<sign>==|!=|<>|<=|>=|=|<|>)
      | (?P<mark>[()\[\],])
    )""",
    re.VERBOSE,
)
_WORDS = ("and", "or", "not", "in", "is", "null", "none", "true", "false")
_SAME = {"=": "==", "<>": "!="}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


class _Token(NamedTuple):
    kind: str
    """number, text, column, sign, mark, word, or end."""
    value: str
    place: int
    """Position of its first character, from 1."""


def parse_condition(text: str) -> Condition:
    """Parse a condition; a syntax error raises a UsageError with its position and a remedy."""
    if len(text) > _LONGEST:
        raise UsageError(f"a condition of {len(text):,} characters is too long; at most {_LONGEST:,} are allowed")
    return _Reader(_tokens(text)).whole()


def _tokens(text: str) -> list[_Token]:
    found, place = [], 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise _unexpected(text, place)
        kind = str(match.lastgroup)
        value = match.group(kind)
        begins = match.start(kind) + 1
        if kind == "name" and value.lower() in _WORDS:
            kind, value = "word", value.lower()
        elif kind in ("name", "quoted"):
            kind = "column"
        elif kind == "text":
            value = value[1:-1].replace(value[0] * 2, value[0])
        found.append(_Token(kind, _SAME.get(value, value) if kind == "sign" else value, begins))
        place = match.end()
    return [*found, _Token("end", "", len(text) + 1)]


def _unexpected(text: str, place: int) -> UsageError:
    place += len(text[place:]) - len(text[place:].lstrip())
    hints = {
        "&": "; write 'and'",
        "|": "; write 'or'",
        "!": "; write 'not'",
        "~": "; write 'not'",
        "'": "; the text is never closed",
        '"': "; the text is never closed",
        "`": "; the name is never closed",
    }
    letter = text[place]
    return UsageError(f"character {place + 1}: {letter!r} is not expected here{hints.get(letter, '')}")


class _Reader:
    """A recursive-descent parser; in order of precedence, lowest first: or, and, not, comparisons."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens, self._next, self._depth = tokens, 0, 0

    def whole(self) -> Condition:
        if self._seen.kind == "end":
            raise UsageError("the condition is empty; write one such as tenure_days >= 30")
        condition = self._either()
        if self._seen.kind != "end":
            raise self._refusal("'and', 'or' or the end")
        return condition

    @property
    def _seen(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._seen
        self._next += 1
        return token

    def _took(self, kind: str, value: str) -> bool:
        """Take the next token if it is this one; whether it was."""
        if self._seen.kind != kind or self._seen.value != value:
            return False
        self._next += 1
        return True

    def _refusal(self, wanted: str) -> UsageError:
        token = self._seen
        found = "the end" if token.kind == "end" else repr(token.value)
        return UsageError(f"character {token.place}: {wanted} is expected, not {found}")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UsageError(
                f"character {self._seen.place}: more than {_DEEPEST} nested levels; simplify the condition"
            )

    def _either(self) -> Condition:
        parts = [self._every()]
        while self._took("word", "or"):
            parts.append(self._every())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _every(self) -> Condition:
        parts = [self._negation()]
        while self._took("word", "and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else Every(tuple(parts))

    def _negation(self) -> Condition:
        self._deeper()
        if self._took("word", "not"):
            condition: Condition = Negation(self._negation())
        elif self._took("mark", "("):
            condition = self._either()
            if not self._took("mark", ")"):
                raise self._refusal("')'")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> Condition:
        token = self._seen
        left = self._operand("a column, such as tenure_days")
        if isinstance(left, Column):
            if self._took("word", "is"):
                return self._missing(left.name)
            if self._took("word", "in"):
                return Among(left.name, self._values())
            if self._seen.kind == "word" and self._seen.value == "not":
                self._take()
                if not self._took("word", "in"):
                    raise self._refusal("'in'")
                return Negation(Among(left.name, self._values()))
        if self._seen.kind != "sign":
            if isinstance(left, Column):
                return left
            raise self._refusal("a comparison such as >=")
        sign = self._take().value
        right = self._operand("a value or a column")
        if self._seen.kind == "sign":
            raise UsageError(f"character {self._seen.place}: comparisons cannot be chained; join two with 'and'")
        return _compared(left, sign, right, token.place)

    def _operand(self, wanted: str) -> Column | float | str:
        token = self._seen
        if token.kind == "column":
            self._take()
            return Column(token.value)
        value = self._literal()
        if value is None:
            raise self._refusal(wanted)
        return value

    def _literal(self) -> float | str | None:
        """Take a number (true is 1) or a text; None if the next token is neither."""
        token = self._seen
        if token.kind == "number":
            self._take()
            return _finite(token)
        if token.kind == "text":
            self._take()
            return token.value
        if token.kind == "word" and token.value in ("true", "false"):
            self._take()
            return float(token.value == "true")
        return None

    def _missing(self, name: str) -> Condition:
        negated = self._took("word", "not")
        if not (self._took("word", "null") or self._took("word", "none")):
            raise self._refusal("'null'")
        return Negation(Missing(name)) if negated else Missing(name)

    def _values(self) -> tuple[float, ...] | tuple[str, ...]:
        begins = self._seen.place
        ends = {"(": ")", "[": "]"}.get(self._seen.value if self._seen.kind == "mark" else "")
        if ends is None:
            raise self._refusal("a list such as ('a', 'b')")
        self._take()
        values: list[float | str] = []
        while not values or self._took("mark", ","):
            value = self._literal()
            if value is None:
                raise self._refusal("a number or a quoted text")
            values.append(value)
        if not self._took("mark", ends):
            raise self._refusal(f"',' or {ends!r}")
        texts = tuple(value for value in values if isinstance(value, str))
        numbers = tuple(value for value in values if not isinstance(value, str))
        if texts and numbers:
            raise UsageError(f"character {begins}: the list mixes numbers and texts; a column holds one or the other")
        return texts or numbers


def _finite(token: _Token) -> float:
    number = float(token.value)
    if abs(number) > 1e38:  # the range of float32
        raise UsageError(f"character {token.place}: the number {token.value} is too large")
    return number


def _compared(left: Column | float | str, sign: str, right: Column | float | str, place: int) -> Condition:
    if not isinstance(left, Column):
        if not isinstance(right, Column):
            raise UsageError(f"character {place}: two constants are compared; one side must be a column")
        left, right, sign = right, left, _TURNED[sign]
    if isinstance(right, str) and sign not in ("==", "!="):
        raise UsageError(f"character {place}: texts cannot be ordered; compare them with ==, != or in")
    return Compare(left.name, sign, right)
