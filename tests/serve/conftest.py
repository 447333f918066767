"""One small plan of a campaign with coupons, made once for all workers, and services on it."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import redenvelope
from redenvelope import Budget, Campaign, Plan
from redenvelope.serve.active_plan import LoadedPlan
from tests.ledger.conftest import postgres, url
from tests.quick_programs import quick_programs
from tests.serve.coupons import Coupons

__all__ = ["postgres", "url"]

BUDGET = 0.5
"""Mean cost per user."""


LIMITS = {"coupons": 0.5, "messages": 0.8}
"""Mean cost per user of a plan with two budgets: the second counts the coupons that are sent."""


@pytest.fixture(scope="package", autouse=True)
def compiled_quickly() -> Iterator[None]:
    """Programs of services that decide for some users only."""
    with quick_programs():
        yield


@pytest.fixture(scope="session")
def folder(request: pytest.FixtureRequest) -> Path:
    """The folder of the plan; made anew when the code that makes plans has changed."""
    return _kept(request, "coupons", make_plan)


@pytest.fixture(scope="session")
def two_budgets(request: pytest.FixtureRequest) -> Path:
    """The folder of a plan that keeps two budgets."""
    budgets = (
        Budget("coupons", per_user=LIMITS["coupons"]),
        Budget("messages", count=("1 €", "3 €"), per_user=LIMITS["messages"]),
    )
    return _kept(request, "coupons-and-counts", partial(make_plan, campaign=Campaign(budgets=budgets)))


def _kept(request: pytest.FixtureRequest, name: str, make: Callable[[Path], object]) -> Path:
    kept = request.config.cache.mkdir(name)
    folder = kept / _made_by()
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers may want it at once
        if not folder.exists():
            for old in kept.glob("*-plan"):
                shutil.rmtree(old)
            make(kept / "unfinished")
            (kept / "unfinished").rename(folder)
    return folder


def _made_by() -> str:
    """A name for the code that makes the plan."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    source = Path(redenvelope.__file__).parent
    for path in sorted(source.rglob("*.py")):
        if path.relative_to(source).parts[0] not in ("serve", "ledger", "cli", "report"):
            digest.update(path.read_bytes())
    return f"{digest.hexdigest()[:16]}-plan"


def make_plan(folder: Path, explore: float | None = None, campaign: Campaign | None = None) -> Plan:
    """Fit it, in seconds; `explore` is the share of decisions that are drawn evenly."""
    from redenvelope.fitting.fit import fit
    from redenvelope.fitting.settings import FitSettings
    from redenvelope.log.read import log_from_frame
    from redenvelope.models.training import NeuralSettings, TrainingSettings

    neural = NeuralSettings(
        outcome_hidden=(16,),
        transition_hidden=(8,),
        members=1,
        reward_structure="dose",
        cost_structure="dose",
        training=TrainingSettings(steps=400, batch_rows=256),
    )
    settings = FitSettings(method="planned", temperature=0.002, history="none", neural=neural, explore=explore)
    with quick_programs():
        log = log_from_frame(Coupons().log(6_000, seed=1))
        asked = {"budget": BUDGET} if campaign is None else {"campaign": campaign}
        plan = fit(log, settings=settings, **asked)  # type: ignore[arg-type]
    plan.save(folder, {})
    return plan


@pytest.fixture(scope="session")
def plan(folder: Path) -> Plan:
    return Plan.load(folder)


@pytest.fixture(scope="session")
def in_use(plan: Plan) -> Iterator[LoadedPlan]:
    yield LoadedPlan(plan).warm()
