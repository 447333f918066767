"""Fitting from a lake: all users are audited, and a sample of them trains, tunes and checks.

Beyond some number of users, models hardly improve and bounds hardly narrow; `SampleSettings` has both numbers. A user
is sampled by the hash of the id and the seed alone, and sums are reduced bucket by bucket in a fixed order, so the plan
is the same to the last bit for any number of parts and any engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.audit import Audit, audit_partitions
from redenvelope.campaign.campaign import Campaign
from redenvelope.campaign.costs import capped_log, charged_log, without_costs
from redenvelope.campaign.records import Budget
from redenvelope.engine.engine import Engine, LocalEngine, Opened
from redenvelope.errors import UsageError
from redenvelope.fitting.certify import PopulationSummary, merge_concentrations
from redenvelope.fitting.fit import fit
from redenvelope.fitting.holdout import concentrations
from redenvelope.fitting.objective import objective_of
from redenvelope.fitting.settings import FitSettings
from redenvelope.fitting.stage_cache import Cache
from redenvelope.lake.lake import LakePart, paced
from redenvelope.lake.reading import LakeLog
from redenvelope.log.log import Log, join_logs, split_fold
from redenvelope.plan.plan import Plan
from redenvelope.progress import Progress, Stages
from redenvelope.randomness import fraction

TRAIN_USERS = 200_000
CHECK_USERS = 200_000


@dataclass(frozen=True)
class SampleSettings:
    """Number of users to sample from a lake; all if it has fewer."""

    train_users: int = TRAIN_USERS
    """Approximate number of users in the train fold; the tune fold is sampled at the same rate."""
    check_users: int = CHECK_USERS
    """Approximate number of users in the check fold."""

    def __post_init__(self) -> None:
        if self.train_users < 1 or self.check_users < 1:
            raise UsageError("train_users and check_users must be at least 1")

    def shares(self, users: int, settings: FitSettings) -> NDArray[np.float64]:
        """Share of users sampled in each fold, [folds]."""
        train, tune, check = settings.parts
        wanted = np.array([self.train_users, self.train_users * tune / train, self.check_users])
        return np.asarray(np.minimum(wanted / (users * np.array([train, tune, check])), 1.0))


def fit_lake(
    lake: LakeLog,
    *,
    engine: Engine | None = None,
    budget: float | None = None,
    target_reward: float | None = None,
    campaign: Campaign | None = None,
    audience: int | None = None,
    settings: FitSettings | None = None,
    sample: SampleSettings | None = None,
    progress: Progress | None = None,
    cache: Cache | None = None,
) -> Plan:
    """The best plan for a budget, from a log that does not fit in memory; arguments are as in `fit`.

    All users are audited; `sample` sets how many train and check.
    """
    engine, settings, sample = engine or LocalEngine(), settings or FitSettings(), sample or SampleSettings()
    stages, campaign = Stages(progress), campaign or Campaign()
    if settings.cross_fit > 1:
        raise UsageError("--cross-fit: it needs the whole log in memory, so not with a lake; leave it out")
    users = lake.schema.users
    shares = sample.shares(users, settings)
    stages.begin("sample")
    chosen = _Chosen(settings, tuple(shares.tolist()))
    results = engine.map(_Sampled(lake.logs, chosen), lake.parts)
    found = paced(stages, "sample", results, len(lake.parts), lambda log: 0 if log is None else len(log))
    log = join_logs([part for part in found if part is not None])
    sampled = _describe(log, users, shares)
    stages.finish("sample", sampled)
    campaign.check(log)
    objective = objective_of(budget, target_reward, campaign, settings.confidence, audience)
    audit = audit_lake(lake, engine, campaign, objective.audited, settings.known_before, stages)
    charged = _Charged(lake.logs, objective.budgets, settings.most_per_user)
    costs = merge_concentrations(list(Opened(engine, charged).map(concentrations, lake.parts)))
    return fit(
        log,
        budget=budget,
        target_reward=target_reward,
        campaign=campaign,
        audience=audience,
        settings=settings,
        progress=progress,
        cache=cache,
        population=PopulationSummary(audit, costs, sampled),
    )


def audit_lake(
    lake: LakeLog,
    engine: Engine,
    campaign: Campaign,
    budget: float | None,
    known_before: Collection[str],
    stages: Stages,
) -> Audit:
    """Audit all users of a lake, in two passes."""
    stages.begin("audit of all")
    opened = Opened(engine, _Measured(_Charged(lake.logs, campaign.budgets)))
    audit = audit_partitions(lake.parts, budget, opened, known_before=known_before)
    stages.finish("audit of all", f"{audit.users:,} users, {audit.rows:,} rows")
    return audit


@dataclass(frozen=True)
class _Chosen:
    """Selects the users of the sample."""

    settings: FitSettings
    shares: tuple[float, ...]

    def of(self, log: Log) -> NDArray[np.bool_]:
        """Whether each user is in the sample, [users]."""
        fold = split_fold(log.keys, self.settings.parts, self.settings.seed)
        return np.asarray(fraction(log.keys, "lake", self.settings.seed) < np.array(self.shares)[fold])


@dataclass(frozen=True)
class _Sampled:
    """Reads the sampled users of a part."""

    logs: Callable[[LakePart], Iterable[Log]]
    chosen: _Chosen

    def __call__(self, part: LakePart) -> Log | None:
        """The sampled users as one log; None if there are none."""
        picked = [(log, self.chosen.of(log)) for log in self.logs(part)]
        logs = [log.select(own) for log, own in picked if own.any()]
        return join_logs(logs) if logs else None


@dataclass(frozen=True)
class _Charged:
    """Reads the logs of a part with the budgets' costs."""

    logs: Callable[[LakePart], Iterable[Log]]
    budgets: tuple[Budget, ...]
    most_per_user: float | None = None

    def __call__(self, part: LakePart) -> Iterator[Log]:
        """Yield the logs bucket by bucket."""
        return (capped_log(charged_log(log, self.budgets), self.most_per_user) for log in self.logs(part))


@dataclass(frozen=True)
class _Measured:
    """Reads the logs of a part with costs as measured, for the audit."""

    charged: _Charged

    def __call__(self, part: LakePart) -> Iterator[Log]:
        """Yield the logs bucket by bucket."""
        return (without_costs(log, ()) for log in self.charged(part))


def _describe(log: Log, users: int, shares: NDArray[np.float64]) -> str:
    if (shares >= 1).all():
        return f"all {users:,} users train, tune or check"
    return f"{log.people:,} of {users:,} users, selected by their ids, train, tune or check; all are audited"
