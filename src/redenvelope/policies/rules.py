"""The rules of a campaign as one constraint (`RuleConstraint`): conditions on features, and caps that count actions.

Its memory has three parts. Counters: for a cap over the campaign, how often its actions were given; for a cap within n
steps, whether each of the last n − 1 steps gave one. Verdicts of conditions on columns that never change: 0 for not
evaluated yet, then true, false and unknown. And each action's eligibility at this step by the known features: 0 for not
known, then yes and no. So rules are exact while features are known, and use predicted states only deeper in a tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import BoolArray, library_of
from redenvelope.campaign.conditions import Condition, Leaf, RowColumns, Verdict, columns_of, judged, leaves
from redenvelope.campaign.records import Rule
from redenvelope.campaign.rows import STEP, places_of
from redenvelope.errors import UsageError
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.encoding.history import ActionsOnly
from redenvelope.log.log import ActionCatalogue
from redenvelope.models.charges import Decoding, decoding_for
from redenvelope.policies.policy import Constraint, Memory

_TRUE, _FALSE, _UNKNOWN = 1, 2, 3
_YES, _NO = 1, 2
_TOLD = 4  # most levels of a counter, or steps looked back, that become regressors


@dataclass(frozen=True, eq=False)
class Cap:
    """A cap: at most `most` actions of a group per user, in the campaign or within any `window` steps."""

    group: BoolArray
    """[actions]"""
    most: int
    window: int | None
    columns: slice
    """Its columns of the memory: one counter, or one for each step looked back."""

    def after(self, before: Any, given: BoolArray) -> list[Any]:
        """Its columns one step later; `given` [rows] says which rows got one of the actions."""
        if self.window is None:
            # Once the cap is used up, further counts do not matter.
            return [(before + given[:, None]).clip(0, self.most)]
        return [given[:, None].astype(np.int16), before[:, :-1]]

    def used_up(self, memory: Any) -> Any:
        """Whether no more may be given, [rows]."""
        return memory[:, self.columns].sum(axis=1) >= self.most


@dataclass(frozen=True)
class RuleConstraint(Constraint):
    """The rules of a campaign, for its features (`encoder`) and actions (`catalogue`)."""

    rules: tuple[Rule, ...]
    encoder: Encoder
    catalogue: ActionCatalogue
    joins_late: bool = False
    """Whether some users join after the first step; their past then begins where they joined."""

    def __post_init__(self) -> None:
        for rule in self.rules:
            self._group(rule)

    @cached_property
    def caps(self) -> tuple[Cap, ...]:
        """The rules that count actions."""
        found, first = [], 0
        for rule in self.rules:
            if rule.most is None:
                continue
            # Nothing happened before the campaign began.
            window = None if rule.window is None or rule.window >= self.encoder.campaign_steps else rule.window
            last = first + (1 if window is None else window - 1)
            found.append(Cap(self._group(rule), min(rule.most, np.iinfo(np.int16).max), window, slice(first, last)))
            first = last
        return tuple(found)

    @cached_property
    def conditions(self) -> tuple[tuple[Condition, BoolArray], ...]:
        """The conditions, each with a mask of the actions it applies to, [actions]."""
        return tuple((rule.condition, self._group(rule)) for rule in self.rules if rule.condition is not None)

    @cached_property
    def lasting(self) -> tuple[Leaf, ...]:
        """The parts of conditions whose verdict never changes within a user."""
        asked = dict.fromkeys(leaf for condition, _ in self.conditions for leaf in leaves(condition))
        static = {number.name for number in self.encoder.numbers if number.static}
        static |= {category.name for category in self.encoder.categories if category.static}
        return tuple(leaf for leaf in asked if static.issuperset(columns_of(leaf)))

    @cached_property
    def _decoding(self) -> Decoding:
        return decoding_for(self.encoder, tuple(condition for condition, _ in self.conditions))

    @cached_property
    def texts(self) -> frozenset[str]:
        """The features that are text."""
        return frozenset(category.name for category in self.encoder.categories)

    @property
    def past(self) -> ActionsOnly:
        """What of a user's earlier steps the rules need."""
        return ActionsOnly(self.catalogue.labels, self.catalogue.numeric, self.joins_late)

    @property
    def counters_wide(self) -> int:
        """Number of counter columns in the memory."""
        return int(self._answers.start)

    @property
    def counts(self) -> bool:
        """Whether any rule counts what was given before."""
        return bool(self.caps)

    @cached_property
    def _answers(self) -> slice:
        first = self.caps[-1].columns.stop if self.caps else 0
        return slice(first, first + len(self.lasting))

    @cached_property
    def _now(self) -> slice:
        first = self._answers.stop
        return slice(first, first + (len(self.catalogue) if self.conditions else 0))

    @property
    def remembers(self) -> int:
        """See Constraint."""
        return int(self._now.stop)

    def eligible(self, states: Any, steps_left: Any, memory: Any) -> Any:
        """See Constraint."""
        library = library_of(memory)
        allowed = library.ones((len(states), len(self.catalogue)), dtype=bool)
        if self.conditions:
            now = memory[:, self._now]
            allowed, known = now == _YES, now[:, :1] != 0
            if library is not np or not known.all():
                allowed = library.where(known, allowed, self._by_states(states, memory))
        for cap in self.caps:
            allowed = allowed & ~(cap.used_up(memory)[:, None] & cap.group)
        return allowed

    def after(self, memory: Any, action: NDArray[np.intp]) -> Any:
        """See Constraint."""
        library = library_of(memory)
        parts = [part for cap in self.caps for part in cap.after(memory[:, cap.columns], cap.group[action])]
        unknown = library.zeros_like(memory[:, self._now])
        return library.concatenate([*parts, memory[:, self._answers], unknown], axis=1)

    def remembered(self, rows: RowColumns, counters: Memory) -> Memory:
        """The memory of rows whose features are known, given its counters, [rows, counters]."""
        memory = np.zeros((len(counters), self.remembers), np.int16)
        memory[:, : self._answers.start] = counters
        for column, leaf in enumerate(self.lasting, start=self._answers.start):
            said = leaf.verdict(rows)
            memory[:, column] = np.where(said.true, _TRUE, np.where(said.false, _FALSE, _UNKNOWN))
        if self.conditions:
            allowed = self._judged(lambda leaf: leaf.verdict(rows))
            memory[:, self._now] = np.where(allowed, _YES, _NO)
        return memory

    def told(self, memory: Any) -> Any:
        """See Constraint: for each cap, whether it is used up, and how far. Under a plan that keeps caps, fewer users
        have used them up than in the log, so marginalised ratios of states need these columns too."""
        library = library_of(memory)
        columns = [library.zeros((len(memory), 0), dtype=bool)]
        for cap in self.caps:
            own = memory[:, cap.columns]
            steps = [own[:, :1] >= level for level in range(1, min(cap.most, _TOLD))]
            columns += steps if cap.window is None else [own[:, :_TOLD] > 0]
            columns.append(cap.used_up(memory)[:, None])
        return library.concatenate(columns, axis=1).astype(np.float32)

    def counters(self, starts: NDArray[np.int64], action: NDArray[np.integer]) -> Memory:
        """The counters before every row, [rows, counters]. Rows are sorted by user and step: those of user i are
        `starts[i]:starts[i + 1]`; action is [rows]."""
        found = np.zeros((len(action), self._answers.start), np.int16)
        position = np.arange(len(action)) - np.repeat(starts[:-1], np.diff(starts))
        for cap in self.caps:
            given = cap.group[action]
            if cap.window is None:
                total = np.concatenate([[0], np.cumsum(given)])
                before = total[:-1] - np.repeat(total[starts[:-1]], np.diff(starts))
                found[:, cap.columns.start] = np.minimum(before, cap.most)
                continue
            for back, column in enumerate(range(cap.columns.start, cap.columns.stop), start=1):
                found[back:, column] = given[:-back] & (position[back:] >= back)
        return found

    def counters_after(self, starts: NDArray[np.int64], action: NDArray[np.integer]) -> Memory:
        """The counters after the last of each user's rows, [users, counters]; a user may have none."""
        # One more row for each user, whose own action does not matter.
        lengths = np.diff(starts) + 1
        more = np.concatenate([[0], np.cumsum(lengths)])
        rows = np.zeros(more[-1], dtype=np.intp)
        place = np.ones(len(rows), dtype=bool)
        place[more[1:] - 1] = False
        rows[place] = action
        return np.asarray(self.counters(more, rows)[more[1:] - 1])

    def _by_states(self, states: Any, memory: Any) -> Any:
        """Actions that conditions allow in predicted states, [rows, actions]; lasting verdicts come from memory."""
        library = library_of(memory)
        places = {leaf: column for column, leaf in enumerate(self.lasting, start=self._answers.start)}
        nowhere = library.zeros(len(states), dtype=bool)
        unknown = Verdict(nowhere, nowhere)  # for a column that states do not contain
        shown = self.texts | {number.name for number in self.encoder.numbers} | {STEP}

        def answer(leaf: Leaf) -> Verdict:
            read = self._decoding.said(leaf, states, library) if columns_of(leaf) <= shown else unknown
            if leaf not in places:
                return read
            known = memory[:, places[leaf]]
            asked = known != 0
            true, false = known == _TRUE, known == _FALSE
            return Verdict(library.where(asked, true, read.true), library.where(asked, false, read.false))

        return self._judged(answer)

    def _judged(self, answer: Callable[[Leaf], Verdict]) -> Any:
        """Actions that conditions with these verdicts allow, [rows, actions]."""
        each = [judged(condition, answer).true[:, None] | ~group for condition, group in self.conditions]
        return reduce(and_, each)

    def _group(self, rule: Rule) -> BoolArray:
        group = np.zeros(len(self.catalogue), dtype=bool)
        for label, place in zip(
            rule.actions, places_of(rule.actions, self.catalogue.labels, self.catalogue.numeric), strict=True
        ):
            if place is None:
                raise UsageError(f"a rule is about {label!r}, and there is no such action")
            group[place] = True
        return group
