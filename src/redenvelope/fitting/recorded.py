"""What is remembered of a fit: policies side by side on the check users, and all that the report tells."""

from __future__ import annotations

from redenvelope.audit.audit import Audit
from redenvelope.evaluation.reasons import Reason
from redenvelope.fitting.asked import Asked
from redenvelope.fitting.check import Check
from redenvelope.fitting.comparison import compare, logged_by_user
from redenvelope.fitting.method import Lessons
from redenvelope.fitting.settings import FitSettings
from redenvelope.fitting.shares import who_gets_what
from redenvelope.log.columns import ColumnMap
from redenvelope.models.fidelity import Fidelity
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.climb import Stop, climb
from redenvelope.plan.ladder import Place
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.record import ComparedPolicy, FitRecord, FoldSize, PlannerRecord, Source

__all__ = ["compared_policies", "fit_record"]


def compared_policies(check: Check, place: Place, certificate: Certificate) -> tuple[ComparedPolicy, ...]:
    """What was logged, chance, the bandit where it is another policy, and the plan: the bandit climbs a ladder of its
    own to the same budget."""
    added = {"logged": logged_by_user(check.log), "uniform": check.added("uniform", Place(0))}
    if "bandit" in check.contestants:
        limits = [own.budget for own in certificate.budgets]
        reached = climb(check.ladder("bandit"), limits, certificate.confidence)
        added["bandit"] = check.added("bandit", reached.place)
    return compare(added | {"plan": check.added("plan", place)}, certificate.confidence)


def fit_record(
    audited: Audit,
    sizes: dict[str, FoldSize],
    settings: FitSettings,
    lessons: Lessons,
    fidelity: Fidelity,
    policy: DeployedPolicy,
    compared: tuple[ComparedPolicy, ...],
    check: Check,
    stop: Stop,
    against: tuple[Reason, ...],
    asked: Asked,
) -> FitRecord:
    """All that is remembered, of a plan that stopped at a place of its ladder."""
    return FitRecord(
        audit=audited,
        folds=sizes,
        seed=settings.seed,
        parts=settings.parts,
        confidence=settings.confidence,
        fidelity=fidelity,
        planner=PlannerRecord(policy.valuer.notes, policy.valuer.depth),
        stop=stop,
        comparison=compared,
        shares=who_gets_what(check.shown, policy, stop.place),
        model=lessons.neural.as_dict(),
        settings=settings.as_dict(),
        history="" if lessons.history is None else lessons.history.reason,
        doubts=against,
        budgets=asked.budgets,
        source=None if check.log.columns == ColumnMap() else Source.of("", "", check.log.columns),
    )
