"""Guessing the columns of missing roles from names and contents, as options to paste."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from redenvelope.log.cleaning.number_formats import to_numbers, to_plain_numbers
from redenvelope.log.columns import ROLES, ColumnMap, column, nearest_name, taken

_ROWS = 5_000  # enough to see what a column holds
_NAMES = {
    "user": "user customer client member account person uid visitor subscriber player household kunde kunden nutzer",
    "time": "time timestamp datetime date sent at ts when datum zeit zeitpunkt moment created",
    "step": "step round touch decision wave week period nr number mailing schritt runde woche index",
    "action": "action treatment offer coupon arm variant incentive message discount envelope voucher promo gift "
    "gutschein aktion angebot",
    "propensity": "propensity probability prob pscore ps p chance score wahrscheinlichkeit",
    "reward": "reward revenue outcome conversion converted bought purchased purchase ordered response responded "
    "clicked completed consumed sales gmv profit margin turnover active orders value umsatz erlös ertrag "
    "gewinn gekauft bestellt",
    "cost": "cost costs spend spent amount redeemed redemption paid payout expense kosten einlösung ausgaben eingelöst",
    "episode": "episode wave week month campaign period cycle season run batch welle woche monat kampagne",
}
_WORDS = re.compile(r"[a-zà-ÿ]+|[A-ZÀ-Ý][a-zà-ÿ]*|\d+")
_DATE = r"^\d{4}-\d{1,2}-\d{1,2}|^\d{1,2}\.\d{1,2}\.\d{4}"
_MOST_ACTIONS, _MOST_STEPS = 200, 10_000


class Guess(NamedTuple):
    """Options with which the table would be a log, and how certain they are."""

    line: str
    """The options to paste."""
    why: str
    """How each column was chosen, and which others might be meant."""


def guessed_columns(frame: pl.DataFrame, free: Sequence[str], lacking: Sequence[str], columns: ColumnMap) -> Guess:
    """The options for a table that lacks roles, with YOUR_COLUMN for roles without a candidate.

    Each free column is guessed for at most one role, the one that its name and content fit best. Options that the table
    would need next are included: for costs that are missing, several waves, or no propensities.
    """
    evidence = _evidence(frame.head(_ROWS), free, lacking, columns)
    found = _best(evidence)
    known = {role: columns.name_of(role) for role in ROLES if columns.name_of(role) in frame.columns} | found
    if "step" in lacking and "step" not in found and "time" not in found:
        found |= _counted(frame, free, known)
    pairs = {role: columns.names[role] for role in columns.names if role not in lacking}
    for role in lacking:
        if role == "step" and "time" in found and "step" not in found:
            continue
        if role != "propensity" or role in found:
            pairs[role] = found.get(role) or nearest_name(role, free) or "YOUR_COLUMN"
    options = {"--columns": ",".join(f"{role}={name}" for role, name in pairs.items())} if pairs else {}
    if "step" in lacking and "step" not in pairs:
        options["--time"] = found["time"]
    options |= _foreseen(frame, free, known | pairs, columns)
    line = " ".join(f"{option} {shlex.quote(value)}" for option, value in options.items())
    if "propensity" in lacking and "propensity" not in pairs:
        line += " --estimate-propensity"
    return Guess(line.strip(), _why(evidence, found, pairs))


class _Fit(NamedTuple):
    """How well a column fits a role."""

    score: float
    named: int
    """Number of words in its name that stand for the role."""
    differs: float
    """Share of its variance between actions: outcomes depend on the action, features do not."""


Evidence = dict[tuple[str, str], _Fit]
"""(role or "time", column) -> their fit, for pairs that fit at all; in the order of the table's columns."""

_CLEARLY, _NEAR = 0.02, 0.5


def _evidence(sample: pl.DataFrame, free: Sequence[str], lacking: Sequence[str], columns: ColumnMap) -> Evidence:
    asked = [role for role in (*lacking, "time") if role != "time" or "step" in lacking]
    fits = {
        (role, name): _Fit(score, _named(role, name), 0.0)
        for name in free
        for role in asked
        if (score := _score(role, name, column(sample, name))) > 0
    }
    action = columns.name_of("action") if "action" not in lacking else _best(fits).get("action")
    if action is None or action not in sample.columns:
        return fits
    for (role, name), fit in fits.items():
        if role in ("reward", "cost"):
            share = _between(column(sample, name), column(sample, action))
            # A column that does not differ between actions was known before the decision, whatever its name.
            fits[role, name] = _Fit(fit.score * (1.0 if share > _CLEARLY else 0.4) + share, fit.named, share)
    return fits


def _best(evidence: Evidence) -> dict[str, str]:
    """Role, or "time" -> the column with the best fit."""
    order = list(evidence)
    ranked = sorted(order, key=lambda pair: (-evidence[pair].score, order.index(pair)))
    found: dict[str, str] = {}
    for role, name in ranked:
        if role not in found and name not in found.values():
            found[role] = name
    return found


def _between(values: pl.Series, actions: pl.Series) -> float:
    """The share of a column's variance between actions, minus the share expected by chance."""
    numbers = values.cast(pl.Float64) if values.dtype == pl.Boolean else _numbers(values)
    if numbers is None or len(numbers) < 3:
        return 0.0
    rows = pl.DataFrame({"value": numbers, "action": actions.cast(pl.String)}).drop_nulls()
    total = rows["value"].var()
    if not isinstance(total, float) or not total > 0:
        return 0.0
    means = rows.select(pl.col("value").mean().over("action")).to_series()
    kinds = rows["action"].n_unique()
    share = float(means.var() or 0.0) / total  # type: ignore[arg-type]
    return max(share - (kinds - 1) / max(len(rows) - 1, 1), 0.0)


def _why(evidence: Evidence, found: Mapping[str, str], pairs: Mapping[str, str]) -> str:
    """How certain the guess is for each role, the least certain last."""
    sure, unsure = [], []
    for role, name in pairs.items():
        fit = evidence.get((role, name))
        if fit is None or found.get(role) != name:
            if role in found or name == "YOUR_COLUMN":
                unsure.append(f"{role}: nothing looks like it")
            continue
        by = [
            said for said, is_so in (("its name", fit.named), ("it differs by action", fit.differs > _CLEARLY)) if is_so
        ]
        others = [
            other
            for (one, other), its in evidence.items()
            if one == role and other not in pairs.values() and its.score >= _NEAR * fit.score
        ]
        told = f"{role} by {' and because '.join(by) if by else 'its content alone'}"
        if others or not by:
            unsure.append(f"{told}; look whether it is {' or '.join([name, *others[:3]])}")
        else:
            sure.append(told)
    return "; ".join(part for part in (", ".join(sure), *unsure) if part) or "from names and contents"


def _counted(frame: pl.DataFrame, free: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """A column that numbers the rows of each user, whatever its name."""
    users = known.get("user")
    if users is None:
        return {}
    for name in free:
        values = column(frame, name)
        if name in known.values() or values.null_count() or not _may_be_step(values.head(_ROWS)):
            continue
        if pl.DataFrame({"user": column(frame, users), "step": values}).n_unique() == len(frame):
            return {"step": name}
    return {}


def _foreseen(frame: pl.DataFrame, free: Sequence[str], known: Mapping[str, str], columns: ColumnMap) -> dict[str, str]:
    """Options without which the table would be refused once its roles are named."""
    options, cost = {}, known.get("cost")
    if cost in frame.columns and columns.missing_cost is None and column(frame, cost).null_count():
        options["--missing-cost"] = "0"
    keys = [known.get(role, "") for role in ("user", "step")]
    if columns.episode is not None or not set(keys) <= set(frame.columns):
        return options
    rows = taken(frame, keys).rename(dict(zip(keys, ("user", "step"), strict=True)))
    if rows.n_unique() == len(rows):
        return options
    others = [name for name in free if name not in (*known.values(), *ROLES) and not frame.schema[name].is_nested()]
    # Only columns that distinguish all rows: a feature that differs between some of them is not a wave.
    told = {
        name: apart
        for name, apart in guessed_episodes(
            rows.with_columns(column(frame, name).alias(name) for name in others)
        ).items()
        if rows.with_columns(column(frame, name).alias("\0apart")).n_unique() == len(rows)
    }
    if told:
        options["--episode"] = max(told, key=lambda name: told[name])
    return options


def guessed_episodes(frame: pl.DataFrame) -> dict[str, int]:
    """Columns that may distinguish the waves of a campaign -> how many rows of the same user and step they distinguish.

    Columns with words for a wave in their names rank above all others.
    """
    keys = frame.select("user", "step")
    together, found = keys.n_unique(), {}
    for name in frame.columns:
        if name.startswith("\0") or name in ROLES:
            continue
        apart = keys.with_columns(column(frame, name).alias("\0apart"))
        values = apart["\0apart"].n_unique()
        told = apart.n_unique() - together
        if 2 <= values <= max(len(frame) // 20, 2) and told:
            found[name] = told + len(frame) * _named("episode", name)
    return found


def _named(role: str, name: str) -> int:
    """Number of words in a column's name that stand for a role."""
    words = [word.casefold() for word in _WORDS.findall(name)]
    return sum(word in _NAMES[role].split() for word in words)


def _score(role: str, name: str, values: pl.Series) -> float:
    """How well a column fits a role; 0 if it cannot have it."""
    filled = values.drop_nulls()
    if not len(filled) or not _FITS[role](filled):
        return 0.0
    named = _named(role, name)
    # Roles that content alone can suggest: repeated ids, probabilities, and times.
    alone = {"user": 0.2, "propensity": 0.3, "time": 0.5}.get(role, 0.0)
    return named + alone if named or alone else 0.0


def _may_be_user(values: pl.Series) -> bool:
    if not (values.dtype == pl.String or values.dtype.is_integer()) or _may_be_time(values):
        return False
    return values.n_unique() > max(len(values) // 50, 1) and not _is_fraction(values)


def _may_be_time(values: pl.Series) -> bool:
    if values.dtype == pl.String:
        return bool(values.str.contains(_DATE).all())
    return values.dtype.is_temporal() and values.dtype not in (pl.Time, pl.Duration)


def _may_be_step(values: pl.Series) -> bool:
    numbers = _numbers(values)
    if numbers is None or not (numbers == numbers.floor()).all() or numbers.n_unique() < 2:
        return False
    return float(numbers.max()) - float(numbers.min()) < min(_MOST_STEPS, len(values) / 2)  # type: ignore[arg-type]


def _may_be_action(values: pl.Series) -> bool:
    return 2 <= values.n_unique() <= min(_MOST_ACTIONS, max(len(values) // 2, 2)) and not _may_be_time(values)


def _is_fraction(values: pl.Series) -> bool:
    numbers = _numbers(values)
    return numbers is not None and bool(((numbers > 0) & (numbers <= 1)).all()) and float(numbers.min()) < 1  # type: ignore[arg-type]


def _may_be_reward(values: pl.Series) -> bool:
    return values.dtype == pl.Boolean or _numbers(values) is not None or values.n_unique() == 2


def _may_be_cost(values: pl.Series) -> bool:
    numbers = _numbers(values)
    return numbers is not None and float(numbers.min()) >= 0  # type: ignore[arg-type]


def _numbers(values: pl.Series) -> pl.Series | None:
    """The values as numbers, if all are finite numbers."""
    if values.dtype == pl.Boolean or values.dtype.is_temporal() or values.dtype.is_nested():
        return None
    plain = to_plain_numbers(values) if values.dtype == pl.String else values
    numbers = to_numbers(plain)
    usable = numbers.is_not_null() & numbers.is_finite().fill_null(False)
    return numbers if usable.all() else None


_FITS: dict[str, Callable[[pl.Series], bool]] = {
    "user": _may_be_user,
    "time": _may_be_time,
    "step": _may_be_step,
    "action": _may_be_action,
    "propensity": _is_fraction,
    "reward": _may_be_reward,
    "cost": _may_be_cost,
}
