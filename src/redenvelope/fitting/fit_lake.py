"""From a lake and a budget to a plan: all users are audited; it is made and checked on users chosen by their ids.

Models do not get better beyond a number of users, nor bounds much narrower; both numbers can be objective for. Who is
chosen follows from a user's id and the seed alone, and all sums are taken bucket by bucket in their order, so that no
number of parts, and no engine, changes a bit of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.audit.audit import Audit, audit_partitions
from redenvelope.campaign.campaign import Campaign
from redenvelope.campaign.costs import charged_log, without_costs
from redenvelope.campaign.records import Budget
from redenvelope.engine.engine import Engine, LocalEngine, Opened
from redenvelope.errors import UsageError
from redenvelope.fitting.certify import PopulationSummary, concentrations, merge_concentrations
from redenvelope.fitting.fit import fit
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
    """How many users of a lake a plan is made from; fewer where there are fewer."""

    train_users: int = TRAIN_USERS
    """Who train, about; those who tune are as many fewer as their share says."""
    check_users: int = CHECK_USERS
    """Who check the plan, about."""

    def __post_init__(self) -> None:
        if self.train_users < 1 or self.check_users < 1:
            raise UsageError("a plan needs users who train and users who check: ask for at least 1 of each")

    def shares(self, users: int, settings: FitSettings) -> NDArray[np.float64]:
        """Of the users of each fold, the share who are chosen, [folds]."""
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
    """The best plan for a budget, from a log that no memory holds; arguments are as in `fit`.

    Audited are all users. `sample` says how many of them train and check.
    """
    engine, settings, sample = engine or LocalEngine(), settings or FitSettings(), sample or SampleSettings()
    stages, campaign = Stages(progress), campaign or Campaign()
    users = lake.schema.users
    shares = sample.shares(users, settings)
    stages.begin("sample")
    chosen = _Chosen(settings, tuple(shares.tolist()))
    results = engine.map(_Sampled(lake.logs, chosen), lake.parts)
    found = paced(stages, "sample", results, len(lake.parts), lambda log: 0 if log is None else len(log))
    log = join_logs([part for part in found if part is not None])
    words = _words(log, users, shares)
    stages.finish("sample", words)
    campaign.check(log)
    objective = objective_of(budget, target_reward, campaign, settings.confidence, audience)
    audit = audit_lake(lake, engine, campaign, objective.audited, settings.known_before, stages)
    costs = merge_concentrations(
        list(Opened(engine, _Charged(lake.logs, objective.budgets)).map(concentrations, lake.parts))
    )
    return fit(
        log,
        budget=budget,
        target_reward=target_reward,
        campaign=campaign,
        audience=audience,
        settings=settings,
        progress=progress,
        cache=cache,
        population=PopulationSummary(audit, costs, words),
    )


def audit_lake(
    lake: LakeLog,
    engine: Engine,
    campaign: Campaign,
    budget: float | None,
    known_before: Collection[str],
    stages: Stages,
) -> Audit:
    """The audit of all users of a lake, in two passes."""
    stages.begin("audit of all")
    opened = Opened(engine, _Measured(_Charged(lake.logs, campaign.budgets)))
    audit = audit_partitions(lake.parts, budget, opened, known_before=known_before)
    stages.finish("audit of all", f"{audit.users:,} users, {audit.rows:,} rows")
    return audit


@dataclass(frozen=True)
class _Chosen:
    """Which users a plan is made from and checked on."""

    settings: FitSettings
    shares: tuple[float, ...]

    def of(self, log: Log) -> NDArray[np.bool_]:
        """By their ids alone, [users]."""
        fold = split_fold(log.keys, self.settings.parts, self.settings.seed)
        return np.asarray(fraction(log.keys, "lake", self.settings.seed) < np.array(self.shares)[fold])


@dataclass(frozen=True)
class _Sampled:
    """The chosen users of a part."""

    logs: Callable[[LakePart], Iterable[Log]]
    chosen: _Chosen

    def __call__(self, part: LakePart) -> Log | None:
        """As one log; None where nobody is chosen."""
        picked = [(log, self.chosen.of(log)) for log in self.logs(part)]
        kept = [log.select(own) for log, own in picked if own.any()]
        return join_logs(kept) if kept else None


@dataclass(frozen=True)
class _Charged:
    """The logs of a part with what counts against each budget."""

    logs: Callable[[LakePart], Iterable[Log]]
    budgets: tuple[Budget, ...]

    def __call__(self, part: LakePart) -> Iterator[Log]:
        """Bucket by bucket."""
        return (charged_log(log, self.budgets) for log in self.logs(part))


@dataclass(frozen=True)
class _Measured:
    """The same, as it was measured: what an audit looks at."""

    charged: _Charged

    def __call__(self, part: LakePart) -> Iterator[Log]:
        """Bucket by bucket."""
        return (without_costs(log, ()) for log in self.charged(part))


def _words(log: Log, users: int, shares: NDArray[np.float64]) -> str:
    if (shares >= 1).all():
        return f"all {users:,} users train, tune or check"
    return f"{log.people:,} of {users:,} users, chosen by their ids, train, tune or check; the audit is of all"
