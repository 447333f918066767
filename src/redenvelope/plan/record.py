"""The record of a fit: how a plan was made, in typed dataclasses.

`FitRecord` is stored in the plan folder. The report shows it, and repricing, evaluation and comparison read from it
what they need of the fit: who trained the plan, the logged figures, and the plans that can be mixed.
"""

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
    """Size of a fold."""

    users: int
    rows: int


@dataclass(frozen=True)
class Source:
    """The log that a plan was made from, and how it was read."""

    log: str
    date: str
    columns: dict[str, str] = field(default_factory=dict)
    """Role -> the log's column name, where that differs."""
    ignored: tuple[str, ...] = ()
    time: str | None = None
    episode: str | None = None
    missing_cost: float | None = None
    dates: str = "leave-out"
    cluster: str | None = None

    @classmethod
    def of(cls, log: str, date: str, columns: ColumnMap) -> Source:
        """The source with this name and date, read with these columns."""
        ignored = tuple(sorted(columns.ignored))
        said = (columns.time, columns.episode, columns.missing_cost, columns.dates, columns.cluster)
        return cls(log, date, dict(columns.names), ignored, *said)

    def column_map(self) -> ColumnMap:
        """The log's column names and reading options."""
        mapping = ColumnMap(self.columns, frozenset(self.ignored))
        return mapping.reading(self.time, self.episode, self.missing_cost, self.dates, self.cluster)


@dataclass(frozen=True)
class LookaheadRecord:
    """How far the plan looks ahead, and the candidates that were compared on tune users inside the learned model."""

    chosen: str
    """The depth of the trees, and what is at their leaves."""
    loss: dict[str, float]
    """Loss of each candidate against the best, as a share of what planning gains over the cheapest policy."""
    error: float
    """Root mean square error, over users and prices, of the penalised reward that the chosen candidate predicts for a
    whole campaign, against a rollout of it in the model; as a share of the same gain."""


@dataclass(frozen=True)
class PlannerRecord:
    """Where the planner deviates from its settings, and how far it looks ahead."""

    notes: tuple[str, ...]
    depth: int
    lookahead: LookaheadRecord | None = None
    """None if there was nothing to choose."""


@dataclass(frozen=True)
class ExplorationRecord:
    """The exploration share, what it costs, and the overlap it gives."""

    share: float
    """Share of decisions drawn uniformly from the eligible actions."""
    reward_lost: float
    """Reward per user lost to exploration at the plan's own mean cost, by the model's frontiers with and without it."""
    effective_share: float
    """Effective sample size of the next log, as a share of its users, for evaluating a policy that gives all actions
    evenly; at the step where it is lowest."""


@dataclass(frozen=True)
class ComparedPolicy:
    """A policy's cost and reward per user, and the differences from the logged behaviour on the same users."""

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

    Each user draws one action for the whole campaign, or gets the cheapest eligible one where it is not eligible.
    """

    actions: tuple[str, ...]
    shares: tuple[float, ...]
    """Share of users who draw each action."""
    adds: float
    """Reward per user that the plan earns beyond the mixture, at the same cost."""
    lower: float
    """With `upper`, the interval at the plan's confidence, from differences paired by user."""
    upper: float

    def mixture(self) -> str:
        """The mixture in words."""
        # Shares that would be shown as 0% are left out.
        given = [pair for pair in zip(self.actions, self.shares, strict=True) if pair[1] >= 0.005]
        (first, share), *others = sorted(given, key=lambda pair: pair[1])
        if not others:
            return f"giving {first!r} to everybody"
        further = [f"{action!r} to {part:.0%}" for action, part in others[:-1]]
        last = f"{others[-1][0]!r} to the others"
        return f"giving {', '.join([f'{first!r} to a random {share:.0%} of users', *further])} and {last}"

    def sentence(self, confidence: float) -> str:
        """What the plan adds to the mixture, and whether the log shows that targeting pays, in words."""
        known = f"({confidence:.0%} interval {interval(self.lower, self.upper)})"
        verb = f"earns {number(abs(self.adds), 3)} {'more' if self.adds >= 0 else 'less'} reward per user"
        said = f"The plan {verb} {known} than {self.mixture()}, the best untargeted offer at the same cost"
        if self.lower > 0:
            return f"{said}."
        if self.upper < 0:
            return f"{said}: targeting and exploration cost more than they bring."
        return f"{said}: the log cannot show that targeting helps."


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
    """Expected cost of the step per user of the campaign, not per user still there: the steps add up to the total."""
    logged_cost: float | None = None
    """Logged cost, averaged likewise."""


@dataclass(frozen=True)
class Shares:
    """What users in one bin of a feature get."""

    label: str
    rows: int
    probabilities: tuple[float, ...]
    """[actions]"""
    cost: float
    """Expected cost per decision."""


@dataclass(frozen=True)
class FeatureShares:
    """What users get, by the values of one feature."""

    feature: str
    strength: float
    """Share of the variation in what users get that the feature explains."""
    bins: tuple[Shares, ...]


@dataclass(frozen=True)
class ActionShares:
    """What users get, by step, by feature and by group."""

    users: int
    rows: int
    actions: tuple[str, ...]
    by_step: tuple[StepShares, ...]
    by_feature: tuple[FeatureShares, ...]
    groups: tuple[StepGroups, ...] = ()
    """The users of some steps, each divided into a few groups."""
    examples: tuple[Example, ...] = ()
    """Examples of users at the first step."""


@dataclass(frozen=True)
class MadeWith:
    """Identifies the users of the train and tune folds by hashes of their ids and rows."""

    users: str
    """A 32-bit hash of each id and one of the user's rows, as bytes in the order of the id hashes, in base 64."""

    @classmethod
    def of(cls, *folds: Log) -> MadeWith | None:
        """Hash the users of some folds; None if there are more than `MOST_LISTED`."""
        if sum(fold.people for fold in folds) > MOST_LISTED:
            return None
        pairs = np.concatenate([_hashes(fold)[0] for fold in folds])
        return cls(b64encode(pairs[np.argsort(pairs[:, 0], kind="stable")].tobytes()).decode())

    @cached_property
    def pairs(self) -> NDArray[np.uint32]:
        """Hashes of ids, ascending, and of rows, [users, 2]."""
        return np.frombuffer(b64decode(self.users, validate=True), np.uint32).reshape(-1, 2)

    def among(self, log: Log) -> tuple[NDArray[np.bool_], bool]:
        """Which entries of a log have an id of these users, [users], and whether they are the same people.

        They are the same if most of them also have the same rows. Rows shared by many users are not evidence.
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
    """Hashes of each person's id and of their rows, [people, 2], and the person of each entry of the log, [users].

    Outcomes are rounded to single precision first, because a file may have rounded them.
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
    """The plan at one row of prices, with its reward and costs."""

    prices: tuple[float, ...]
    """[budgets]"""
    mean: tuple[float, ...]
    """Estimated reward and costs per check user, [outcomes]."""
    believed: tuple[float, ...] = ()
    """Reward and costs predicted when mixtures were chosen, [outcomes]."""
    reasons: tuple[Reason, ...] = ()
    """Reasons against the estimates."""


@dataclass(frozen=True)
class FitRecord:
    """The record of a fit."""

    audit: Audit
    folds: dict[str, FoldSize]
    """By fold name: train, tune, check."""
    seed: int
    parts: tuple[float, ...]
    """Share of users in each fold."""
    confidence: float
    fidelity: Fidelity
    planner: PlannerRecord
    stop: Stop
    """Where the walk along the ladder ended."""
    comparison: tuple[ComparedPolicy, ...]
    shares: ActionShares | None
    """None if the plan was repriced."""
    model: dict[str, Any]
    """How the model was trained; for the reader only, not read by code."""
    settings: dict[str, Any]
    """All settings of the fit; for the reader only, not read by code."""
    history: str = ""
    """Whether states include the history, and why, in words."""
    targeting: str = ""
    """How far predicted differences between users are shrunk, and why, in words."""
    sample: str = ""
    """Which of a lake's users made and checked the plan, in words; empty if the log was not a lake."""
    objections: tuple[Reason, ...] = ()
    """Objections of the audit and of the model's fidelity to any plan from this log."""
    exploration: ExplorationRecord | None = None
    """None if the plan was repriced."""
    untargeted: Untargeted | None = None
    """None if the plan was repriced."""
    made_with: MadeWith | None = None
    """Who trained and tuned the plan; None if there are too many to list."""
    source: Source | None = None
    budgets: tuple[Budget, ...] = ()
    """What the budgets are of; empty for a single budget of the log's cost."""
    priced: tuple[PricedPlan, ...] = ()
    """With several budgets, the plans that the ladder and the frontiers mix; pacing and repricing mix them again."""
    sums: MixableSums | None = None
    """Moments of these plans on the check users; None with one budget."""
    money: Money = field(default_factory=Money)
    """Currency, audience and value of reward."""


@dataclass(frozen=True)
class Condition:
    """A condition that all users of a group meet."""

    feature: str
    words: str
    """What follows the feature's name: "is cedar or oak", "is 2 or more", "is missing"."""


@dataclass(frozen=True)
class Group:
    """Users at one step who get similar actions."""

    conditions: tuple[Condition, ...]
    """Combined with "and"; empty for all users."""
    rows: int
    probabilities: tuple[float, ...]
    """Mean probability of each action under the plan, [actions]."""
    cost: float
    """Expected cost per decision."""


@dataclass(frozen=True)
class StepGroups:
    """The users of one step in a few groups, most expensive first."""

    step: int
    rows: int
    explained: float
    """Share of the variation in what users get that the groups explain."""
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Alternative:
    """One action for one user."""

    action: str
    probability: float
    """Probability under the plan."""
    reward: float
    """Expected from this step on, as far as the plan looks ahead."""
    cost: float
    """Expected over the same steps."""
    worth: float
    """The reward minus the cost times the plan's price; minus the cost if the price is infinite."""


@dataclass(frozen=True)
class Example:
    """A user as logged, without the id: known features, and what every action would be worth."""

    step: int
    known: tuple[tuple[str, str], ...]
    """The most influential features, and their values."""
    alternatives: tuple[Alternative, ...]
    """Every action, in the order of the catalogue."""
