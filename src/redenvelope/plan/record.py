"""How a plan came about, as typed records: what the report shows, and what an evaluation needs to know again."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.audit import Audit
from redenvelope.campaign.records import Budget
from redenvelope.evaluation.diagnostics import Reason
from redenvelope.log.columns import ColumnMap
from redenvelope.log.log import Log
from redenvelope.models.fidelity import Fidelity
from redenvelope.plan.fixed_sequence_test import Stop
from redenvelope.plan.ladder import MixableSums
from redenvelope.plan.money import Money
from redenvelope.randomness import fraction
from redenvelope.wording import interval, number


@dataclass(frozen=True)
class FoldSize:
    """How large a fold is."""

    users: int
    rows: int


@dataclass(frozen=True)
class Source:
    """The log that a plan was made from."""

    log: str
    date: str
    columns: dict[str, str] = field(default_factory=dict)
    """Role -> the log's own name, where that differs."""
    ignored: tuple[str, ...] = ()
    time: str | None = None
    episode: str | None = None
    missing_cost: float | None = None
    dates: str = "leave-out"
    cluster: str | None = None

    @classmethod
    def of(cls, log: str, date: str, columns: ColumnMap) -> Source:
        """A log of this name, read so, on this day."""
        ignored = tuple(sorted(columns.ignored))
        said = (columns.time, columns.episode, columns.missing_cost, columns.dates, columns.cluster)
        return cls(log, date, dict(columns.names), ignored, *said)

    def column_map(self) -> ColumnMap:
        """The names that the log's columns had, and how it was read."""
        mapping = ColumnMap(self.columns, frozenset(self.ignored))
        return mapping.reading(self.time, self.episode, self.missing_cost, self.dates, self.cluster)


@dataclass(frozen=True)
class LookaheadRecord:
    """How far the plan looks ahead, and what else was tried on tune users, inside the learned model."""

    chosen: str
    """The depth of the trees, and what follows them."""
    loss: dict[str, float]
    """Of each candidate against the best of them, as a share of what planning gains over the cheapest policy."""
    error: float
    """Root mean square error, over users and prices, of the penalised reward that the chosen one predicts for a user's
    whole campaign, against what following it earns in the model, as a share of that gain."""


@dataclass(frozen=True)
class PlannerRecord:
    """Where the planner deviates from its settings, and how far it looks ahead."""

    notes: tuple[str, ...]
    depth: int
    lookahead: LookaheadRecord | None = None
    """None where nothing was to choose."""


@dataclass(frozen=True)
class ExplorationRecord:
    """The share of exploration, what it costs and what it gives."""

    share: float
    """Of the decisions, drawn uniformly among eligible actions."""
    reward_lost: float
    """Reward per user that this costs at the plan's own mean cost, by the model's frontiers with and without it."""
    effective_share: float
    """Of the next log's users: what is left of them to weigh a policy that gives everything evenly, at the least of the
    steps."""


@dataclass(frozen=True)
class ComparedPolicy:
    """A policy's cost and reward per user, and how they differ from the logged behaviour on the same users."""

    policy: str
    cost: float
    cost_error: float
    reward: float
    reward_error: float
    cost_difference: float
    cost_difference_lower: float
    cost_difference_upper: float
    reward_difference: float
    reward_difference_lower: float
    reward_difference_upper: float


@dataclass(frozen=True)
class Untargeted:
    """The best untargeted mixture at the plan's own cost, and what the plan adds to it on the same users.

    Each user draws one action for the whole campaign; where it is not eligible, they get the cheapest eligible one.
    """

    actions: tuple[str, ...]
    shares: tuple[float, ...]
    """Of the users who draw each action."""
    adds: float
    """Reward per user that the plan earns beyond the mixture, at the same cost."""
    lower: float
    """With `upper`, the interval at the plan's confidence, paired by user."""
    upper: float

    def mixture(self) -> str:
        """The mixture in words."""
        (first, share), *others = sorted(zip(self.actions, self.shares, strict=True), key=lambda pair: pair[1])
        if not others:
            return f"giving {first!r} to everybody"
        further = [f"{action!r} to {part:.0%}" for action, part in others[:-1]]
        last = f"{others[-1][0]!r} to the others"
        return f"giving {', '.join([f'{first!r} to a random {share:.0%} of users', *further])} and {last}"

    def sentence(self, confidence: float) -> str:
        """Whether the log shows that targeting pays."""
        known = f"({confidence:.0%} interval {interval(self.lower, self.upper)})"
        verb = f"earns {number(abs(self.adds), 3)} {'more' if self.adds >= 0 else 'less'} reward per user"
        said = f"The plan {verb} {known} than {self.mixture()}, the best untargeted offer at the same cost"
        if self.lower > 0:
            return f"{said}."
        return f"{said}: {'targeting hurts' if self.upper < 0 else 'the log cannot show that targeting helps'}."


@dataclass(frozen=True)
class StepShares:
    """What users get at one step."""

    step: int
    rows: int
    probabilities: tuple[float, ...]
    """Mean probability of each action under the plan, [actions]."""
    logged: tuple[float, ...]
    """Share of each action as logged, [actions]."""
    cost: float
    """Expected cost of the step over all users, not over those still there: the steps add up to a user's total."""
    logged_cost: float | None = None
    """As logged, over all users likewise."""


@dataclass(frozen=True)
class Shares:
    """What the users of one bin of a feature get."""

    label: str
    rows: int
    probabilities: tuple[float, ...]
    """[actions]"""
    cost: float
    """Expected cost per decision."""


@dataclass(frozen=True)
class FeatureShares:
    """What users get, by one feature."""

    feature: str
    strength: float
    """Share of the differences in what users get that the feature explains."""
    bins: tuple[Shares, ...]


@dataclass(frozen=True)
class ActionShares:
    """Who gets what."""

    users: int
    rows: int
    actions: tuple[str, ...]
    by_step: tuple[StepShares, ...]
    by_feature: tuple[FeatureShares, ...]
    groups: tuple[StepGroups, ...] = ()
    """The users of some steps in a few groups each."""
    examples: tuple[Example, ...] = ()
    """A few users of the first step."""


@dataclass(frozen=True)
class MadeWith:
    """The users of the train and tune folds, by hashes of their ids and of their rows."""

    users: str
    """A 32-bit hash of each id and one of the user's rows, as bytes in the order of ids, in base 64."""

    @classmethod
    def of(cls, *folds: Log) -> MadeWith | None:
        """The users of some folds; None where they are too many to be listed."""
        if sum(fold.people for fold in folds) > MOST_LISTED:
            return None
        pairs = np.concatenate([_hashes(fold)[0] for fold in folds])
        return cls(b64encode(pairs[np.argsort(pairs[:, 0], kind="stable")].tobytes()).decode())

    @cached_property
    def pairs(self) -> NDArray[np.uint32]:
        """Hashes of ids, rising, and of rows, [users, 2]."""
        return np.frombuffer(b64decode(self.users, validate=True), np.uint32).reshape(-1, 2)

    def among(self, log: Log) -> tuple[NDArray[np.bool_], bool]:
        """Which entries of a log's users have the id of one of them, [users], and whether those are the same people.

        They are where most have the rows that made the plan. Rows that many users share say nothing.
        """
        pairs, entries = _hashes(log)
        places = np.minimum(np.searchsorted(self.pairs[:, 0], pairs[:, 0]), len(self.pairs) - 1)
        known = self.pairs[places, 0] == pairs[:, 0]
        _, which, counts = np.unique(pairs[:, 1], return_inverse=True, return_counts=True)
        telling = known & (counts[which] <= max(1, _SHARED_ROWS * len(pairs)))
        asked = telling if telling.any() else known
        same = self.pairs[places, 1] == pairs[:, 1]
        return known[entries], bool(asked.any() and same[asked].mean() > 0.5)


MOST_LISTED = 500_000
_SHARED_ROWS = 0.01


def _hashes(log: Log) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
    """Hashes of each person's id and of the rows, [people, 2], and the person of each entry of the log, [users].

    Outcomes count to single precision: a file may have rounded them.
    """
    keys, entries = np.unique(log.user_keys, return_inverse=True)
    outcomes = np.stack([log.reward, log.cost]).astype(np.float32).view(np.uint32).astype(np.uint64)
    rows = (outcomes[0] << np.uint64(32)) | outcomes[1]
    seen = fraction(rows, "rows", 0, log.step.astype(np.int64) * 65_536 + log.action)
    sums = np.bincount(np.repeat(entries, log.lengths), weights=seen, minlength=len(keys))
    hashed = (fraction(keys, "made with", 0), np.mod(sums, 1.0))
    return np.stack([(each * 2.0**32).astype(np.uint32) for each in hashed], axis=1), entries


@dataclass(frozen=True)
class PricedPlan:
    """The plan at a row of prices, and what it earns and costs."""

    prices: tuple[float, ...]
    """[budgets]"""
    mean: tuple[float, ...]
    """What a check user earns and costs, [outcomes]."""
    believed: tuple[float, ...] = ()
    """What it was believed to earn and cost when mixtures were chosen, [outcomes]."""
    reasons: tuple[Reason, ...] = ()
    """Reasons against its estimates."""


@dataclass(frozen=True)
class FitRecord:
    """The record of a fit."""

    audit: Audit
    folds: dict[str, FoldSize]
    """By name: train, tune, check."""
    seed: int
    parts: tuple[float, ...]
    """Shares of the users in each fold."""
    confidence: float
    fidelity: Fidelity
    planner: PlannerRecord
    stop: Stop
    """Where the walk along the ladder ended."""
    comparison: tuple[ComparedPolicy, ...]
    shares: ActionShares | None
    """None where the price was changed since."""
    model: dict[str, Any]
    """How the model was trained, for the reader; no code reads it."""
    settings: dict[str, Any]
    """Everything that was asked for, for the reader; no code reads it."""
    history: str = ""
    """Whether states include the history, and why, in words."""
    targeting: str = ""
    """How far differences between users are believed, and why, in words."""
    sample: str = ""
    """Who of a lake's users the plan was made from and checked on, in words; empty where the log was no lake."""
    objections: tuple[Reason, ...] = ()
    """Objections of audit and fidelity to any plan of this log."""
    exploration: ExplorationRecord | None = None
    """What is left to chance, and what that costs; None where the price was changed since."""
    untargeted: Untargeted | None = None
    """None where the price was changed since."""
    made_with: MadeWith | None = None
    """Who trained and tuned it; None where there are too many to be listed."""
    source: Source | None = None
    budgets: tuple[Budget, ...] = ()
    """What the budgets are of; empty where there is one, of the log's cost."""
    priced: tuple[PricedPlan, ...] = ()
    """With several budgets, the plans that ladder and frontiers mix: pacing and repricing mix them again."""
    sums: MixableSums | None = None
    """Of these plans on the check users; None with one budget."""
    money: Money = field(default_factory=Money)
    """What sums are counted in, and how many users the plan is for."""


@dataclass(frozen=True)
class Condition:
    """One thing that the users of a group have in common."""

    feature: str
    words: str
    """What follows the feature's name: "is cedar or oak", "is 2 or more", "is missing"."""


@dataclass(frozen=True)
class Group:
    """Users of one step who get similar actions."""

    conditions: tuple[Condition, ...]
    """All of them hold; none for everybody."""
    rows: int
    probabilities: tuple[float, ...]
    """Mean probability of each action under the plan, [actions]."""
    cost: float
    """Expected cost per decision."""


@dataclass(frozen=True)
class StepGroups:
    """The users of one step in a few groups, the most expensive first."""

    step: int
    rows: int
    explained: float
    """Share of the differences in what users get that the groups explain."""
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Alternative:
    """One action for one user."""

    action: str
    probability: float
    """With which the plan gives it."""
    reward: float
    """Expected from this step on, as far as the plan looks ahead."""
    cost: float
    """Expected likewise."""
    worth: float
    """The reward less what the cost is worth at the plan's price; minus the cost where the price is infinite."""


@dataclass(frozen=True)
class Example:
    """A user as logged, without a name: what is known of them, and what every action would be worth."""

    step: int
    known: tuple[tuple[str, str], ...]
    """Features that decide much, and their values."""
    alternatives: tuple[Alternative, ...]
    """Every action, by cost as in the catalogue."""
