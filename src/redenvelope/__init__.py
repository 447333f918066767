"""redenvelope: from a log of past incentives to the best spending plan a budget can buy.

The public names, in the order of the pipeline. They are imported when first used, so that importing the package
costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redenvelope.audit.audit import Audit, audit_log
    from redenvelope.dual.allocation import allocate_one_step
    from redenvelope.dual.frontier import Frontier
    from redenvelope.dual.solve import solve_dual
    from redenvelope.errors import LogError, ModelError, PlanError, ProblemError, RedenvelopeError, UsageError
    from redenvelope.evaluation.estimator import Estimator
    from redenvelope.finite.linear_program import linear_program
    from redenvelope.finite.problem import FiniteProblem
    from redenvelope.fitting.fit import fit
    from redenvelope.fitting.settings import FitSettings
    from redenvelope.log.columns import ColumnMap
    from redenvelope.log.encoding import Encoder
    from redenvelope.log.findings import Finding
    from redenvelope.log.log import Log
    from redenvelope.log.read import inspect_log, log_from_frame, read_log
    from redenvelope.log.split import split
    from redenvelope.plan.certificate import Certificate
    from redenvelope.plan.plan import Plan
    from redenvelope.simulate.envelopes import EnvelopeCampaign
    from redenvelope.simulate.finite import FiniteCampaign
    from redenvelope.simulate.two_step import two_step

_HOMES = {
    "ColumnMap": "log.columns",
    "read_log": "log.read",
    "inspect_log": "log.read",
    "log_from_frame": "log.read",
    "Log": "log.log",
    "Finding": "log.findings",
    "split": "log.split",
    "Encoder": "log.encoding",
    "audit_log": "audit.audit",
    "Audit": "audit.audit",
    "fit": "fitting.fit",
    "FitSettings": "fitting.settings",
    "Plan": "plan.plan",
    "Certificate": "plan.certificate",
    "solve_dual": "dual.solve",
    "Frontier": "dual.frontier",
    "allocate_one_step": "dual.allocation",
    "Estimator": "evaluation.estimator",
    "EnvelopeCampaign": "simulate.envelopes",
    "FiniteCampaign": "simulate.finite",
    "two_step": "simulate.two_step",
    "FiniteProblem": "finite.problem",
    "linear_program": "finite.linear_program",
    "RedenvelopeError": "errors",
    "UsageError": "errors",
    "LogError": "errors",
    "ProblemError": "errors",
    "ModelError": "errors",
    "PlanError": "errors",
}

__all__ = [
    "Audit",
    "Certificate",
    "ColumnMap",
    "Encoder",
    "EnvelopeCampaign",
    "Estimator",
    "Finding",
    "FiniteCampaign",
    "FiniteProblem",
    "FitSettings",
    "Frontier",
    "Log",
    "LogError",
    "ModelError",
    "Plan",
    "PlanError",
    "ProblemError",
    "RedenvelopeError",
    "UsageError",
    "allocate_one_step",
    "audit_log",
    "fit",
    "inspect_log",
    "linear_program",
    "log_from_frame",
    "read_log",
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
