"""The audit of a log before anything is learned from it: effects, overlap, carry-over, leaks, findings and verdicts.

`audit_log` makes two passes over a log (`audit_partitions` over its parts): statistics of the parts merge, so the
figures do not depend on the partition. `verdicts` puts an `Audit` into sentences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.effects import (
    ActionEffect,
    CarryOver,
    CarrySums,
    Mean,
    Reversal,
    action_effects,
    carry_overs,
    carry_squares,
    carry_sums,
    counted_reversals,
    effect_squares,
    effect_sums,
    latest,
    reversals,
    rises,
)
from redenvelope.audit.leakage import Leak, leak_sample, report_leaks, suspected_leaks
from redenvelope.audit.overlap import (
    LEAST_EFFECTIVE_USERS,
    MOST_STEPS,
    Calibration,
    NeverGiven,
    QuantileSums,
    StepOverlap,
    calibration,
    calibration_sums,
    given_counts,
    never_given,
    overlap_by_step,
    overlap_sums,
    quantile_sums,
    quantiles,
    steps_alive,
)
from redenvelope.audit.randomization import (
    AssignmentEvidence,
    PastDependence,
    SharedDraws,
    assignment_evidence,
    evidence_sample,
    past_dependence,
    shared_draws,
)
from redenvelope.audit.statistics import GroupSums, UserMoments
from redenvelope.engine.engine import Engine, LocalEngine
from redenvelope.log.findings import Finding, Findings, merge
from redenvelope.log.log import SHARES, Log, join_logs, split_fold
from redenvelope.log.read import Columns, as_log
from redenvelope.merging import MAXIMUM, MINIMUM, SAME, FieldwiseSums, merged
from redenvelope.wording import Count, counted, for_reader, html_block, number

_QUANTILES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
_FOLD_NAMES = ("train", "tune", "check")
_CHECK_SHARE = SHARES[-1]  # share of users, by default


@dataclass(frozen=True)
class Fold:
    """The size of a fold."""

    name: str
    users: int
    rows: int


@dataclass(frozen=True)
class Audit:
    """The figures that show whether a log supports planning."""

    users: int
    rows: int
    steps: int
    features: int
    static_features: int
    propensity_source: str
    logged_reward: Mean
    """Mean per user, summed over steps."""
    logged_cost: Mean
    actions: tuple[ActionEffect, ...]
    reversals: tuple[Reversal, ...]
    propensity_quantiles: dict[str, float]
    calibration: tuple[Calibration, ...]
    assignment: AssignmentEvidence
    overlap: tuple[StepOverlap, ...]
    steps_alive: int
    carry_over: tuple[CarryOver, ...]
    cheapest_cost: float
    """Mean cost per user if all users always get the cheapest action."""
    dearest_cost: float
    folds: tuple[Fold, ...]
    findings: tuple[Finding, ...]
    leaks: tuple[Leak, ...] = ()
    """Columns that may have been unknown when the action was chosen."""
    clusters: int | None = None
    """Number of clusters, if users are not independent (--cluster)."""
    shared: SharedDraws | None = None
    """A column whose users share draws of actions, if one was found."""
    past: tuple[PastDependence, ...] = ()
    """Whether draws depend on the previous step."""
    never_given: tuple[NeverGiven, ...] = ()
    """Groups of rows that never got some action."""
    budget: float | None = None
    """The budget to judge, as mean cost per user."""

    @property
    def check_share(self) -> float:
        """Share of users in the check fold, for which overlap is judged, because certificates are computed there."""
        return _check_share(self.folds)

    def __str__(self) -> str:
        listed = "".join(f"\n• {for_reader(sentence)}" for sentence in verdicts(self))
        return f"{self._title}{listed}" + "".join(f"\n{finding}" for finding in self.findings)

    def _repr_html_(self) -> str:
        return html_block(self._title, [*map(for_reader, verdicts(self)), *map(str, self.findings)])

    @property
    def _title(self) -> str:
        return (
            f"{counted(self.users, 'user')}, {counted(self.rows, 'row')}, {counted(self.steps, 'step')}, "
            f"{counted(len(self.actions), 'action')}, {counted(self.features, 'feature')} ({self.static_features} "
            f"static), propensities {self.propensity_source}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with the sentences of `verdicts`."""

        content = asdict(self)
        content["findings"] = [finding.as_dict() for finding in self.findings]
        content["assignment"]["looks_random"] = self.assignment.looks_random
        for plain, effect in zip(content["carry_over"], self.carry_over, strict=True):
            plain |= {"share": effect.share, "strength": effect.strength}
        content["reversals"] = [{"cheap": pair.cheap.label, "dear": pair.dear.label} for pair in self.reversals]
        for plain, leak in zip(content["leaks"], self.leaks, strict=True):
            plain["evidence"] = leak.evidence
        content["verdicts"] = list(verdicts(self))
        return content


@dataclass(frozen=True)
class AuditSample:
    """Sample sizes for the expensive tests of a large log."""

    users: int = 10_000
    """Users on whom features predict actions: enough to detect a gain of a thousandth of a nat."""
    rows: int = 100_000
    """Approximate number of rows tested for leakage: a leak shows in far fewer, and a million rows take seconds."""


def audit_log(
    log: Any,
    budget: float | None = None,
    *,
    known_before: Collection[str] = (),
    sample: AuditSample = AuditSample(),
    columns: Columns = None,
    estimate_propensity: bool = False,
) -> Audit:
    """Audit a log and, if a budget is given, whether the budget suits the log.

    The `log` is a `Log`, or any dataframe or the path of a file or a folder, whose columns `columns` names by role.
    `known_before` are features that you confirm were known when the action was chosen.
    """
    log = as_log(log, columns, estimate_propensity=estimate_propensity)
    return audit_partitions([log], budget, known_before=known_before, sample=sample)


def audit_partitions(
    parts: Iterable[Any],
    budget: float | None = None,
    engine: Engine | None = None,
    *,
    known_before: Collection[str] = (),
    sample: AuditSample = AuditSample(),
) -> Audit:
    """As `audit_log`, for a log in parts of complete users, in two passes; the figures do not depend on the partition.

    Parts are logs, or what the engine opens as logs.
    """
    runs = engine or LocalEngine()
    first = merged(runs.map(first_sums, parts))
    second = merged(runs.map(partial(second_sums, first=first, most=sample), parts))
    fitness = Findings()
    report_gaps(first.gaps, fitness)
    report_few_users(first.fold_users.tolist(), fitness)
    if first.header.clusters is not None:
        report_few_clusters(first.header.clusters, first.fold_independent.tolist(), fitness)
    known = merge(first.header.findings, fitness.sorted())
    figures = replace(_figures(first, second, known_before), budget=budget)
    return _with_findings(figures, known, budget)


def _figures(first: FirstSums, second: SecondSums, known_before: Collection[str]) -> Audit:
    header, sample = first.header, join_logs(second.sample)
    effects = action_effects(header.labels, first.action_rows, first.effects, second.effects)
    overlap, folds = overlap_by_step(second.overlap), _folds(first)
    costs = (first.given @ [effect.cost.estimate for effect in effects] / first.users).tolist()
    reward, cost = map(Mean.of, first.logged.mean.tolist(), first.logged.errors.tolist())
    levels = [f"{level:g}" for level in _QUANTILES]
    leaks = suspected_leaks(second.leak_sample, known_before)
    after = {leak.column for leak in leaks if leak.kind != "action"}
    shared = shared_draws(join_logs(second.leak_sample), after) if second.leak_sample else None
    if shared is not None:
        # Where draws are shared, every column that is constant within them seems to predict the action.
        leaks = tuple(leak for leak in leaks if leak.kind != "action")
    return Audit(
        users=first.people,
        rows=first.rows,
        steps=first.last_step - first.first_step + 1,
        features=header.features,
        static_features=header.static_features,
        propensity_source=header.propensity_source,
        logged_reward=reward,
        logged_cost=cost,
        actions=effects,
        reversals=reversals(effects),
        propensity_quantiles=dict(zip(levels, quantiles(first.propensities, _QUANTILES), strict=True)),
        calibration=calibration(header.labels, first.calibration, first.rows),
        assignment=assignment_evidence(sample),
        overlap=overlap,
        steps_alive=steps_alive(overlap, _check_share(folds)),
        carry_over=carry_overs(first.carry, second.carry),
        cheapest_cost=min(costs),
        dearest_cost=max(costs),
        folds=folds,
        findings=(),
        leaks=leaks,
        clusters=None if header.clusters is None else int(first.fold_independent.sum()),
        shared=shared,
        past=past_dependence(sample),
        never_given=never_given(sample),
    )


def propensity_remedy(audit: Audit) -> str:
    """The remedy for miscalibrated propensities, given what was already done."""
    lists = "list what each user could get (--columns eligible=YOUR_COLUMN, or a rule) where that was not everything"
    if audit.propensity_source == "estimated":
        return f"bring the probabilities that were used, or the features that decided; {lists}"
    return f"correct the column: it is of the logged action at that step; {lists}; or use --estimate-propensity"


def past_remedy(audit: Audit) -> str:
    """The remedy for draws that depend on the previous step."""
    if audit.propensity_source == "estimated":
        return "bring the probabilities that were used, or columns that tell what the choice depended on"
    return "log the probability of the draw as it was made, given all that it depended on"


def _folds(first: FirstSums) -> tuple[Fold, ...]:
    if not first.fold_users.all():  # too few users for three folds; a finding of the log says so
        return ()
    return tuple(
        Fold(name, int(users), int(rows))
        for name, users, rows in zip(_FOLD_NAMES, first.fold_users, first.fold_rows, strict=True)
    )


def _check_share(folds: tuple[Fold, ...]) -> float:
    users = sum(fold.users for fold in folds)
    return folds[-1].users / users if users and folds[-1].users else _CHECK_SHARE


def _with_findings(result: Audit, known: tuple[Finding, ...], budget: float | None) -> Audit:
    """The audit with its own findings added to those of reading the log."""
    findings = Findings()
    report_leaks(result.leaks, findings)
    _report_assignment(result, findings)
    _report_effects(result, findings)
    if budget is not None:
        if budget < result.cheapest_cost:
            findings.add("budget_infeasible", column="cost", budget=budget, least=result.cheapest_cost)
        elif budget > result.dearest_cost:
            findings.add("budget_slack", column="cost", budget=budget, most=result.dearest_cost)
    return replace(result, findings=merge(known, findings.sorted()))


def _report_assignment(result: Audit, findings: Findings) -> None:
    """Report what contradicts the propensities, and thin overlap."""
    if (own := result.shared) is not None:
        share = "constant" if own.share > 0.99 else f"{own.share:.0%} of the way from independent draws to one draw"
        findings.add("assigned_by_cluster", column=own.column, count=own.groups, share=share, z=own.z)
    for entry in result.calibration:
        if entry.is_off:
            findings.add(
                "propensity_miscalibrated",
                column="propensity",
                label=entry.label,
                ratio=entry.ratio,
                z=entry.z,
                remedy=propensity_remedy(result),
            )
    for found in result.past:
        if found.is_beyond_chance:
            findings.add(
                "draws_depend_on_past",
                column="propensity",
                count=result.rows,
                before=found.column,
                size=f"{found.size:.0%}",
                z=found.z,
                remedy=past_remedy(result),
            )
    for group in result.never_given:
        findings.add(
            "action_never_given",
            column="action",
            count=group.rows,
            label=group.label,
            group=group.group,
            expected=f"{group.expected:,.0f}",
            rule_to_add=group.rule,
        )
    if result.steps_alive < len(result.overlap):
        dead = result.overlap[result.steps_alive]
        findings.add(
            "overlap_thin",
            column="propensity",
            count=dead.users - dead.matching,
            when=_thin_from(result.steps_alive),
            users=Count(dead.users),
            effective=dead.greedy,
            at_step=dead.step,
            needed=LEAST_EFFECTIVE_USERS,
            share=f"{result.check_share:.0%}",
        )


def _report_effects(result: Audit, findings: Findings) -> None:
    """Report costs that earn nothing, and costs booked late."""
    if result.reversals:
        worst = result.reversals[0]
        findings.add(
            "reward_not_monotone",
            column="action",
            count=len(result.reversals),
            cheap=worst.cheap.label,
            dear=worst.dear.label,
            cheap_cost=worst.cheap.cost.estimate,
            dear_cost=worst.dear.cost.estimate,
            cheap_reward=worst.cheap.reward.estimate,
            dear_reward=worst.dear.reward.estimate,
        )
    late = latest(tuple(effect for effect in result.carry_over if effect.outcome == "cost"))
    if late is not None:
        later = f"{counted(late.lag, 'step')} later"
        findings.add("cost_booked_later", column="cost", count=result.rows, share=f"{late.late_share:.0%}", later=later)


# The two passes of an audit: statistics of each part, which merge into those of the whole log.


@dataclass(frozen=True)
class Header:
    """Properties that all parts of a log share."""

    labels: tuple[str, ...]
    """Labels of the actions."""
    features: int
    static_features: int
    propensity_source: str
    findings: tuple[Finding, ...]
    clusters: str | None = None
    """The column of clusters, if there is one."""


@dataclass(frozen=True, eq=False)
class FirstSums(FieldwiseSums):
    """Statistics of the first pass."""

    header: Header = field(metadata=SAME)
    rows: int
    first_step: int = field(metadata=MINIMUM)
    last_step: int = field(metadata=MAXIMUM)
    longest: int = field(metadata=MAXIMUM)
    """Number of steps of the longest user."""
    gaps: int
    """Number of rows that skip a step of their user."""
    people: int
    """Number of distinct users; fewer than sequences if some have several episodes."""
    fold_users: NDArray[np.int64]
    """Users in each fold, [folds]."""
    fold_independent: NDArray[np.int64]
    """Clusters in each fold, or users if there are none, [folds]."""
    fold_rows: NDArray[np.int64]
    """Rows in each fold, [folds]."""
    logged: UserMoments
    """Outcomes of each user, summed over steps."""
    calibration: UserMoments
    action_rows: NDArray[np.int64]
    """Rows of each action, [actions]."""
    given: NDArray[np.int64]
    """Rows that would get each action if one action is given to everybody, [fixed actions, actions]."""
    effects: GroupSums
    carry: CarrySums
    propensities: QuantileSums

    @property
    def users(self) -> int:
        """Number of users."""
        return self.logged.users

    @property
    def greedy_action(self) -> int:
        """The action with the highest mean reward."""
        return int(np.nanargmax(self.effects.means[0]))

    @property
    def steps(self) -> int:
        """Number of steps whose overlap is computed."""
        return min(self.longest, MOST_STEPS)


@dataclass(frozen=True, eq=False)
class SecondSums(FieldwiseSums):
    """Statistics of the second pass, which depend on those of the first."""

    effects: NDArray[np.float64]
    """Squares for the standard errors of action effects, [outcomes, actions]."""
    carry: NDArray[np.float64]
    """Squares for the standard errors of carried means, [outcomes, actions]."""
    overlap: NDArray[np.float64]
    """The sums of `overlap_sums`, [steps, 8]."""
    sample: tuple[Log, ...]
    """Users on whom the assignment is tested."""
    leak_sample: tuple[Log, ...]
    """Users on whom columns are tested for leakage."""


def first_sums(log: Log) -> FirstSums:
    """The first pass over a part of at least one user."""
    fold, folds = split_fold(log.keys), len(SHARES)
    return FirstSums(
        header=Header(
            log.catalogue.labels,
            len(log.features.names),
            len(log.features.static),
            log.propensity_source,
            log.findings,
            None if log.clusters is None else log.columns.cluster or "cluster",
        ),
        rows=len(log),
        first_step=log.first_step,
        last_step=log.first_step + log.campaign_steps - 1,
        longest=int(log.lengths.max()),
        gaps=log.gaps,
        people=log.people,
        fold_users=np.bincount(fold[log.first_episodes], minlength=folds),
        fold_independent=np.bincount(fold[log.begins], minlength=folds),
        fold_rows=np.array([int(log.lengths[fold == number].sum()) for number in range(folds)]),
        logged=UserMoments.of(np.stack([log.sums_by_user(values) for values in log.outcomes], axis=1), log.begins),
        calibration=calibration_sums(log),
        action_rows=np.bincount(log.action, minlength=len(log.catalogue)),
        given=given_counts(log),
        effects=effect_sums(log),
        carry=carry_sums(log),
        propensities=quantile_sums(log.propensity),
    )


def second_sums(log: Log, first: FirstSums, most: AuditSample) -> SecondSums:
    """The second pass over a part, given the first pass over all parts."""
    sample, leaks = evidence_sample(log, first.users, most.users), leak_sample(log, first.rows, most.rows)
    return SecondSums(
        effects=effect_squares(log, np.nan_to_num(first.effects.means)),
        carry=carry_squares(log, first.carry),
        overlap=overlap_sums(log, first.greedy_action, first.steps),
        sample=() if sample is None else (sample,),
        leak_sample=() if leaks is None else (leaks,),
    )


# Reasons why a readable log cannot be fitted, reported by the audit and, in the same words, by a fit.


LEAST_USERS = 50
"""Fewest users in the tune and check folds; a certificate refuses fewer effective users."""


def report_gaps(rows: int, findings: Findings) -> None:
    """Report the number of rows that skip a step of their user, if any."""
    if rows:
        findings.add("fit_step_gap", column="step", count=rows)


def report_few_users(folds: Sequence[int], findings: Findings) -> None:
    """Report folds (train, tune, check) too small to choose or check a plan."""
    users, fewest = sum(folds), min(folds[1:])
    if fewest < LEAST_USERS:
        # A fold that is small by chance would stay about as small, so a fifth more, rounded up. One in ten users tunes.
        enough = ceil(LEAST_USERS * max(users / max(fewest, 1), 10) * 1.2 / 50) * 50
        findings.add(
            "fit_few_users", column="user", count=users, fewest=fewest, needed=LEAST_USERS, enough=f"{enough:,}"
        )


LEAST_CLUSTERS = 50
"""Fewest clusters in the check fold. Measured on stores whose shocks are log-normal with a spread of 0.6: with 50, a
one-sided 95 % bound fails in 6 % of samples, with 30 in 8 %; if stores differ much in size, the rule about few users
who dominate an estimate applies."""


def report_few_clusters(column: str, folds: Sequence[int], findings: Findings) -> None:
    """Report folds (train, tune, check) with too few clusters to check a plan on; `column` names them."""
    clusters, checking = sum(folds), folds[-1]
    if checking < LEAST_CLUSTERS:
        enough = ceil(LEAST_CLUSTERS * clusters / max(checking, 1) * 1.2 / 10) * 10
        findings.add(
            "fit_few_clusters", column=column, count=clusters, checking=checking, needed=LEAST_CLUSTERS, enough=enough
        )


# The audit in words.


def verdicts(audit: Audit) -> Iterator[str]:
    """The conclusions, one sentence each."""
    yield _assignment(audit)
    yield from _columns(audit)
    yield _monotonicity(audit)
    yield _carry_over(audit)
    yield _overlap(audit)
    yield _budget(audit)


def _assignment(audit: Audit) -> str:
    evidence = audit.assignment
    if audit.propensity_source == "estimated":
        return "Propensities are estimated, not logged: an unobserved cause of assignment can bias every figure."
    if evidence.looks_random and any(finding.rule == "few_users" for finding in audit.findings):
        return "There are too few users to say whether assignment depends on the features."
    if evidence.looks_random:
        return "Assignment looks random: on held-out users, the features do not predict which action was logged."
    return (
        f"Assignment depends on the features ({evidence.gain:.3f} nats per row over plain frequencies): "
        "raw averages mislead, and the figures here are weighted by 1/propensity."
    )


def _columns(audit: Audit) -> Iterator[str]:
    if audit.shared is not None:
        name, values = audit.shared.column, audit.shared.groups
        yield (
            f"Assignment by {name!r}: users who share a value got the same action, so they count as one observation; "
            f"--cluster {name} makes folds and errors count its values ({values:,} with several users)."
        )
    suspected = [repr(leak.column) for leak in audit.leaks if not leak.known]
    if suspected:
        yield (
            f"Perhaps not known when the action was chosen: {', '.join(suspected)}. Such a column makes plans look "
            "better than they are, so none is certified until it is left out or confirmed with --known-before."
        )


def _monotonicity(audit: Audit) -> str:
    if not audit.reversals and not rises(audit.actions):
        return "The log does not show whether a higher cost earns more: no action clearly beats a cheaper one."
    if not audit.reversals:
        return "A higher cost earns more, as far as the log shows: no action earns clearly less than a cheaper one."
    worst = audit.reversals[0]
    dear, cheap = worst.dear, worst.cheap
    return (
        f"A higher cost does not always earn more: {dear.label!r} costs {number(dear.cost.estimate)} and earns "
        f"{number(dear.reward.estimate)}, {cheap.label!r} costs {number(cheap.cost.estimate)} and earns "
        f"{number(cheap.reward.estimate)} ({counted_reversals(audit.reversals)})."
    )


_CARRY_OVER = {
    "none": "Carry-over between steps is not significant",
    "weak": "Carry-over between steps is weak",
    "moderate": "Carry-over between steps is moderate",
    "strong": "Carry-over between steps is strong",
}


def _carry_over(audit: Audit) -> str:
    if not audit.carry_over and audit.steps > 1:
        return "There are too few users to say whether effects carry over from one step to the next."
    if not audit.carry_over:
        return "No user has two steps: there is no sequence to plan, and a one-step allocation suffices."
    shares = ", ".join(f"{effect.outcome} {_share(effect)}" for effect in audit.carry_over if effect.lag == 1)
    strongest = max((effect.strength for effect in audit.carry_over), key=list(_CARRY_OVER).index)
    gain = "little" if strongest in ("none", "weak") else "something"
    return (
        f"{_CARRY_OVER[strongest]} (the previous action's effect relative to the current one's: {shares}): "
        f"planning ahead has {gain} to gain."
    )


def _share(effect: CarryOver) -> str:
    """The share in words; relative to an action with hardly any effect at its own step, a number would be arbitrary."""
    return f"{effect.share:.0%}" if effect.share <= 1 else "more than at its own step"


def _overlap(audit: Audit) -> str:
    """Overlap in the check fold; complete histories of one fixed action are the worst case, single steps the best."""
    alive, last, share = audit.steps_alive, audit.overlap[-1], audit.check_share
    left = f"one fixed action keeps {last.greedy:,.0f} effective users of {last.users:,} by the last step"
    if alive == len(audit.overlap):
        return (
            f"Overlap is good: {left}, about {share * last.greedy:,.0f} of them in the check fold ({share:.0%}), "
            f"and a certificate needs {LEAST_EFFECTIVE_USERS}."
        )
    narrowest = min(audit.overlap, key=lambda overlap: overlap.alone)
    at_most = share * narrowest.alone
    thin = f"Too few effective users {_thin_from(alive)}: {left}."
    certificate = (
        f"A certificate weights step by step, which leaves at most about {at_most:,.0f} effective users in the check "
        f"fold ({share:.0%}), and needs {LEAST_EFFECTIVE_USERS}"
    )
    if at_most >= LEAST_EFFECTIVE_USERS:
        return f"{thin} {certificate}: plans near the logged behaviour can be checked, long ones far from it cannot."
    needed = audit.users * LEAST_EFFECTIVE_USERS / at_most if at_most else inf
    enough = f"a log of about {_rounded(needed)} users" if needed < inf else "a log with that action at every step"
    return f"{thin} {certificate}: {enough} would be enough."


def _thin_from(alive: int) -> str:
    """From where on there are too few effective users, given the number of steps with enough."""
    return f"after {counted(alive, 'step')}" if alive else "at every step"


def _rounded(users: float) -> str:
    """Two significant digits, because an extrapolation has no more."""
    return f"{float(f'{users:.1e}'):,.0f}"


def _budget(audit: Audit) -> str:
    cost, reward = number(audit.logged_cost.estimate), number(audit.logged_reward.estimate)
    least, most = number(audit.cheapest_cost), number(audit.dearest_cost)
    return (
        f"As logged, users cost {cost} and earned {reward} each; one fixed action for all users would cost from "
        f"{least} to {most}: sensible budgets lie in between."
        + ("" if audit.budget is None else f" {_asked_budget(audit, audit.budget)}")
    )


def _asked_budget(audit: Audit, budget: float) -> str:
    """A budget compared with what was logged and with fixed actions, in words."""
    logged = audit.logged_cost.estimate
    beside = f", {budget / logged:.0%} of what users cost as logged" if logged > 0 else ""
    affordable = [effect for effect in audit.actions if effect.cost.estimate * audit.steps <= budget]
    if not affordable:
        return f"A budget of {number(budget)} per user{beside and f'{beside},'} is less than any fixed action costs."
    most = max(affordable, key=lambda effect: effect.cost.estimate)
    everything = "it pays for any action for all users, and more would buy nothing"
    costs = number(most.cost.estimate * audit.steps)
    buys = f"the most expensive fixed offer that it pays for is {most.label!r} for all users at every step, for {costs}"
    dearest = len(affordable) == len(audit.actions)
    return f"A budget of {number(budget)} per user{beside}: {everything if dearest else buys}."
