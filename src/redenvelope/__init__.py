"""redenvelope: from a log of past incentives to the best spending plan a budget can buy.

The public names, in the order of the pipeline. Each is imported when it is first used, so that importing the package
loads nothing else.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

# XLA splits its work by the number of processors, and the split decides the order of sums: without a fixed number, the
# same seed would give another plan on another machine. XLA reads the number from here when it is first used.
os.environ.setdefault("NPROC", "4")

if TYPE_CHECKING:
    from redenvelope.audit.audit import Audit, audit_log
    from redenvelope.campaign.campaign import Campaign
    from redenvelope.campaign.items import Catalogue
    from redenvelope.campaign.records import Budget, NewAction, Rule
    from redenvelope.dual.column_generation import solve_budgets
    from redenvelope.dual.frontier import Frontier
    from redenvelope.dual.one_step import allocate_one_step
    from redenvelope.dual.search import DualSolver, solve_dual
    from redenvelope.engine.engine import Engine, LocalEngine
    from redenvelope.engine.ray import RayEngine
    from redenvelope.errors import (
        LedgerError,
        LogError,
        ModelError,
        PlanError,
        ProblemError,
        RedenvelopeError,
        UsageError,
    )
    from redenvelope.evaluation.estimators import Estimator
    from redenvelope.evaluation.evaluate import evaluate_log
    from redenvelope.finite.linear_program import linear_program
    from redenvelope.finite.problem import FiniteProblem
    from redenvelope.fitting.evaluate import evaluate_plan
    from redenvelope.fitting.fit import fit
    from redenvelope.fitting.lake import SampleSettings, fit_lake
    from redenvelope.fitting.settings import FitSettings, SearchSettings
    from redenvelope.fitting.stage_cache import Cache
    from redenvelope.lake.reading import LakeLog, open_lake
    from redenvelope.ledger.ledger import Ledger, open_ledger
    from redenvelope.log.columns import ColumnMap
    from redenvelope.log.encoding.encoder import Encoder
    from redenvelope.log.findings import Finding
    from redenvelope.log.log import Log, split
    from redenvelope.log.read import inspect_log, log_from_frame, read_log
    from redenvelope.models.environment import EnvironmentModel
    from redenvelope.plan.certificate import Certificate
    from redenvelope.plan.decide import Decider, Decision
    from redenvelope.plan.lake import allocate_folder
    from redenvelope.plan.plan import Plan
    from redenvelope.policies.policy import Constraint, Policy
    from redenvelope.policies.pricing import Pricing
    from redenvelope.progress import Event
    from redenvelope.report.drawing import plot_frontier
    from redenvelope.report.page import render_report
    from redenvelope.simulate.envelopes import EnvelopeCampaign
    from redenvelope.simulate.finite import FiniteCampaign, two_step

_NAMES = {
    "log.columns": ("ColumnMap",),
    "campaign.campaign": ("Campaign",),
    "campaign.items": ("Catalogue",),
    "campaign.records": ("Budget", "NewAction", "Rule"),
    "log.read": ("read_log", "inspect_log", "log_from_frame"),
    "log.log": ("Log", "split"),
    "log.findings": ("Finding",),
    "log.encoding.encoder": ("Encoder",),
    "audit.audit": ("audit_log", "Audit"),
    "models.environment": ("EnvironmentModel",),
    "policies.policy": ("Policy", "Constraint"),
    "policies.pricing": ("Pricing",),
    "dual.column_generation": ("solve_budgets",),
    "dual.search": ("solve_dual", "DualSolver"),
    "dual.frontier": ("Frontier",),
    "dual.one_step": ("allocate_one_step",),
    "evaluation.estimators": ("Estimator",),
    "evaluation.evaluate": ("evaluate_log",),
    "engine.engine": ("Engine", "LocalEngine"),
    "engine.ray": ("RayEngine",),
    "fitting.fit": ("fit",),
    "fitting.lake": ("fit_lake", "SampleSettings"),
    "lake.reading": ("open_lake", "LakeLog"),
    "plan.lake": ("allocate_folder",),
    "fitting.stage_cache": ("Cache",),
    "fitting.evaluate": ("evaluate_plan",),
    "report.page": ("render_report",),
    "report.drawing": ("plot_frontier",),
    "fitting.settings": ("FitSettings", "SearchSettings"),
    "progress": ("Event",),
    "plan.plan": ("Plan",),
    "plan.certificate": ("Certificate",),
    "plan.decide": ("Decider", "Decision"),
    "ledger.ledger": ("open_ledger", "Ledger"),
    "simulate.envelopes": ("EnvelopeCampaign",),
    "simulate.finite": ("FiniteCampaign", "two_step"),
    "finite.problem": ("FiniteProblem",),
    "finite.linear_program": ("linear_program",),
    "errors": ("RedenvelopeError", "UsageError", "LogError", "ProblemError", "ModelError", "PlanError", "LedgerError"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "Audit",
    "Budget",
    "Cache",
    "Campaign",
    "Catalogue",
    "Certificate",
    "ColumnMap",
    "Constraint",
    "Decider",
    "Decision",
    "DualSolver",
    "Encoder",
    "Engine",
    "EnvelopeCampaign",
    "EnvironmentModel",
    "Estimator",
    "Event",
    "Finding",
    "FiniteCampaign",
    "FiniteProblem",
    "FitSettings",
    "Frontier",
    "LakeLog",
    "Ledger",
    "LedgerError",
    "LocalEngine",
    "Log",
    "LogError",
    "ModelError",
    "NewAction",
    "Plan",
    "PlanError",
    "Policy",
    "Pricing",
    "ProblemError",
    "RayEngine",
    "RedenvelopeError",
    "Rule",
    "SampleSettings",
    "SearchSettings",
    "UsageError",
    "allocate_folder",
    "allocate_one_step",
    "audit_log",
    "evaluate_log",
    "evaluate_plan",
    "fit",
    "fit_lake",
    "inspect_log",
    "linear_program",
    "log_from_frame",
    "open_lake",
    "open_ledger",
    "plot_frontier",
    "read_log",
    "render_report",
    "solve_budgets",
    "solve_dual",
    "split",
    "two_step",
]

__version__ = version("redenvelope")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'redenvelope' has no attribute {name!r}")
    return getattr(import_module(f"redenvelope.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
