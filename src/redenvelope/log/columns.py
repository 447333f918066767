"""The roles of a log's columns, the mapping from a table's names to roles, and access to columns by exact name."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from redenvelope.errors import UsageError
from redenvelope.files import read_regular

ROLES: dict[str, str] = {
    "user": "who: one id per user, text or integer",
    "step": "when: the index of the decision for this user, an integer",
    "action": "what the user got: a label, text or number",
    "propensity": "the probability with which the action was chosen: above 0, at most 1",
    "reward": "what it earned: a number, or true and false",
    "cost": "what it cost: a number, never negative",
}
"""The columns of a log; every other column is a feature."""

HOLDOUT = "holdout"
"""The column that marks held-out users, in decisions and logs."""

OPTIONAL = {
    "eligible": "what the user might have got: a list of labels, or labels with a bar between",
    HOLDOUT: "whether the user is in the control group, which gets the cheapest action: true or false",
}
"""Further columns that a log may have, under any name."""

SAID = {
    "time": "when a decision was made: steps are numbered by it",
    "episode": "which wave of the campaign a row belongs to",
    "cluster": "which village, household or store a user belongs to",
}
"""Columns that a log may have instead of or besides steps."""

DATES = ("leave-out", "relative")
"""What can be done with columns of dates."""

_LARGEST_BYTES = 2**20
"""The largest size of a campaign file."""

_ENTRIES = {
    "columns": "[columns]",
    "ignore": "ignore",
    "time": "time",
    "episode": "episode",
    "missing_cost": "missing_cost",
    "dates": "dates",
    "audience": "audience",
    "budget": "[[budget]]",
    "rule": "[[rule]]",
    "explore": "[explore]",
    "holdout": "holdout",
    "items": "[items]",
    "new": "[[new]]",
}
"""The entries of a campaign file, as they are written there."""


def nearest_name(name: str, present: Iterable[str]) -> str | None:
    """The closest name, ignoring case; None if none is close."""
    folded = {candidate.casefold(): candidate for candidate in present}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.7)
    return folded[near[0]] if near else None


@dataclass(frozen=True)
class ColumnMap:
    """Maps roles to the names a table uses; `ignored` columns are neither roles nor features."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Role -> the table's own name, for the roles whose name differs."""
    ignored: frozenset[str] = frozenset()
    costs: tuple[str, ...] = ()
    """Further columns that budgets sum; they are not features, because they are known only afterwards."""
    time: str | None = None
    """The table's name of the time column from which steps are numbered; None if the table has steps."""
    episode: str | None = None
    """The column that distinguishes the waves of a campaign; each is a sequence of its own."""
    cluster: str | None = None
    """The column of groups (villages, stores) whose users are not independent; folds and errors are by group."""
    missing_cost: float | None = None
    """The value of a missing cost; None if a missing cost is an error."""
    dates: str = "leave-out"
    """What to do with dates: "leave-out", or "relative" for the weekday of a decision and the days until it."""

    def __post_init__(self) -> None:
        unknown = [role for role in self.names if role not in ROLES and role not in OPTIONAL]
        if unknown:
            known = ", ".join((*ROLES, *OPTIONAL, *SAID))
            raise UsageError(f"columns: {unknown[0]!r} is not a role; the roles are {known} (write role=your_column)")
        sources = [self.name_of(role) for role in dict.fromkeys((*ROLES, *self.names))]
        twice = {name for name in sources if sources.count(name) > 1}
        if twice:
            raise UsageError(f"columns: {min(twice)!r} is mapped to two roles; every role needs its own column")
        clash = self.ignored & set(self.names.values())
        if clash:
            raise UsageError(f"columns: {min(clash)!r} is both mapped to a role and ignored; remove one of the two")
        self._check_order()

    def _check_order(self) -> None:
        """Check that time, episode and cluster are columns of their own, and that the other settings are valid."""
        if self.time is not None and "step" in self.names and self.names["step"] != self.time:
            raise UsageError(
                f"columns: steps are either {self.names['step']!r} or numbered by the time; name one of them"
            )
        own = {"time": self.time, "episode": self.episode, "cluster": self.cluster}
        for what, name in own.items():
            if name in self.ignored:
                raise UsageError(f"columns: {name!r} is both the {what} and ignored; remove one of the two")
            taken = [role for role in ROLES if self.name_of(role) == name and (what, role) != ("time", "step")]
            if taken:
                raise UsageError(f"columns: {name!r} is both the {what} and the {taken[0]}; each needs its own column")
            other = next((other for other in own if other != what and own[other] == name), None)
            if name is not None and other is not None:
                raise UsageError(f"columns: {name!r} is both the {what} and the {other}; each needs its own column")
        if self.missing_cost is not None and not 0 <= self.missing_cost < 1e15:
            raise UsageError(f"a missing cost is 0 or more, not {self.missing_cost}")
        if self.dates not in DATES:
            raise UsageError(f"dates are one of {', '.join(DATES)}, not {self.dates!r}")

    def name_of(self, role: str) -> str:
        """The table's name for a role."""
        return self.names.get(role, role)

    def reading(
        self,
        time: str | None = None,
        episode: str | None = None,
        missing_cost: float | None = None,
        dates: str | None = None,
        cluster: str | None = None,
    ) -> ColumnMap:
        """A copy with other settings for the order of rows, costs, dates and clusters; None keeps a setting."""
        return replace(
            self,
            cluster=self.cluster if cluster is None else cluster,
            dates=self.dates if dates is None else dates,
            time=self.time if time is None else time,
            episode=self.episode if episode is None else episode,
            missing_cost=self.missing_cost if missing_cost is None else missing_cost,
        )

    @classmethod
    def parse(cls, columns: str | None = None, ignore: str | None = None) -> ColumnMap:
        """Parse `user=customer_id,reward=active` and `row_id,comment`, as given to the commands."""
        names: dict[str, Any] = {}
        for pair in filter(None, (columns or "").split(",")):
            role, separator, name = (part.strip() for part in pair.partition("="))
            if not separator or not role or not name:
                raise UsageError(f"columns: cannot read {pair!r}; write role=your_column, e.g. user=customer_id")
            if role in names:
                raise UsageError(f"columns: {role!r} is mapped twice; every role has one column")
            names[role] = name
        ignored = [name.strip() for name in (ignore or "").split(",") if name.strip()]
        if "ignore" in names:
            ignored.append(names["ignore"])
        if "missing_cost" in names:
            try:
                names["missing_cost"] = float(names["missing_cost"])
            except ValueError:
                raise UsageError(f"a missing cost is a number, not {names['missing_cost']!r}") from None
        return cls.of({**names, "ignore": ignored})

    @classmethod
    def of(cls, given: ColumnMap | Mapping[str, Any] | None) -> ColumnMap:
        """The column map of a mapping by role, such as {"user": "customer_id", "time": "sent_at"}.

        Besides roles, it may have `time`, `episode`, `cluster`, `missing_cost`, `dates`, and `ignore` for columns that
        are not features.
        """
        if given is None or isinstance(given, ColumnMap):
            return given or cls()
        if not isinstance(given, Mapping):
            raise UsageError(
                f'columns must be a ColumnMap or map roles to names, such as {{"user": "customer_id"}}, not {given!r}'
            )
        named = {key: value for key, value in given.items() if key not in ("ignore", "missing_cost")}
        odd = next((key for key, value in named.items() if not isinstance(value, str)), None)
        if odd is not None:
            raise UsageError(f'columns: {odd!r} must be the name of a column, such as {{"{odd}": "customer_id"}}')
        ignored, cost = given.get("ignore", ()), given.get("missing_cost")
        ignored = (ignored,) if isinstance(ignored, str) else ignored
        if not isinstance(ignored, Collection) or not all(isinstance(name, str) for name in ignored):
            raise UsageError('ignore must be a list of column names, e.g. ignore = ["row_id"]')
        if cost is not None and (isinstance(cost, bool) or not isinstance(cost, int | float)):
            raise UsageError("missing_cost must be a number, e.g. missing_cost = 0")
        roles = {role: name for role, name in named.items() if role not in (*SAID, "dates")}
        said = {key: named.get(key) for key in ("time", "episode", "dates", "cluster")}
        return cls(roles, frozenset(ignored)).reading(missing_cost=None if cost is None else float(cost), **said)

    @classmethod
    def from_toml(cls, path: str | Path) -> ColumnMap:
        """Read the `[columns]` table and the `ignore` list of a campaign file."""
        content = campaign_content(path)
        try:
            for unknown in unknown_entries(content):
                raise UsageError(unknown)
            return cls.from_content(content)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> ColumnMap:
        """Like `from_toml`, from the content of the file."""
        names = content.get("columns", {})
        ignored = content.get("ignore", [])
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UsageError('[columns] must map roles to column names, e.g. user = "customer_id"')
        if not isinstance(ignored, list) or not all(isinstance(name, str) for name in ignored):
            raise UsageError('ignore must be a list of column names, e.g. ignore = ["row_id"]')
        for name in ("time", "episode"):
            if not isinstance(content.get(name, ""), str):
                raise UsageError(f'{name} must be the name of a column, e.g. {name} = "sent_at"')
        if not isinstance(content.get("dates", ""), str):
            raise UsageError('dates must be "leave-out" or "relative"')
        said = {key: content[key] for key in ("time", "episode", "missing_cost", "dates") if key in content}
        return cls.of({**names, "ignore": ignored, **said})


def campaign_content(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a campaign file, or of a mapping with the same entries; nothing is checked."""
    return dict(source) if isinstance(source, Mapping) else _parsed(source)


def unknown_entries(content: Mapping[str, Any]) -> list[str]:
    """What is wrong with the names of the entries of a campaign file, one sentence for each that is unknown."""
    found = []
    for name in sorted(map(str, set(content) - set(_ENTRIES))):
        near = nearest_name(name, _ENTRIES)
        meant = f"did you mean {_ENTRIES[near]}?" if near else f"the entries are {', '.join(_ENTRIES.values())}"
        found.append(f"{name!r} is not an entry of a campaign file; {meant}")
    return found


def _parsed(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(Path(path), _LARGEST_BYTES).decode("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such campaign file; check the path") from None
    except (ValueError, RecursionError, OSError) as error:  # a number of a million digits is a ValueError too
        raise UsageError(f"{path}: not a valid TOML file ({error})") from None


# Columns by their exact names. Where polars expects a name, it takes `*` and `^…$` for patterns, and tables may use any
# name, so columns are selected and dropped here, and nowhere else.


def column(frame: pl.DataFrame, name: str) -> pl.Series:
    """One column under a neutral name, because expressions on a series also interpret its name."""
    return frame.get_column(name).alias("value")


def put_back(frame: pl.DataFrame, columns: Mapping[str, pl.Series]) -> pl.DataFrame:
    """The frame with the values of some columns replaced, by name."""
    return frame.with_columns(values.alias(name) for name, values in columns.items())


def is_unnamed(name: str) -> bool:
    """Whether a column has no usable name; internal names begin with the same character."""
    return not name or name.startswith("\0")


def taken(frame: pl.DataFrame, names: Iterable[str]) -> pl.DataFrame:
    """The columns with these names, in this order."""
    return frame.select(cs.by_name(list(names)))


def taken_lazily(frame: pl.LazyFrame, names: Iterable[str]) -> pl.LazyFrame:
    """Like `taken`, for a lazy frame."""
    return frame.select(cs.by_name(list(names)))


def without(frame: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """The frame without the columns of these names, if it has them."""
    return taken(frame, [name for name in frame.columns if name not in names])
