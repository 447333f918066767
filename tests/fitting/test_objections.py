"""What the audit and the model's fidelity doubt reaches the certificate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from redenvelope import Audit, FitSettings, Log, Plan, fit
from redenvelope.audit.leakage import Leak
from redenvelope.audit.randomization import SharedDraws
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.fitting.certify import PopulationSummary, objections_to
from redenvelope.fitting.holdout import concentrations
from redenvelope.models.fidelity import Fidelity
from tests.two_step_plan import BUDGET, QUICK


def objections(log: Log, audit: Audit, fidelity: Fidelity) -> tuple[Reason, ...]:
    return objections_to(PopulationSummary(audit, concentrations(log)), fidelity)


def test_a_log_without_fault_gives_no_reason(plan: Plan, log: Log) -> None:
    assert objections(log, plan.record.audit, plan.record.fidelity) == ()
    assert plan.record.objections == ()


def test_propensities_that_were_not_used_are_refused(log: Log) -> None:
    # The dearest action was given as often as the others, and is said to have been given twice as often.
    off = replace(log, propensity=np.where(log.action == 3, 0.5, log.propensity))
    plan = fit(off, budget=BUDGET, settings=FitSettings(neural=QUICK))
    assert plan.certificate.status == "refused"
    refused = {reason.rule for reason in plan.certificate.reasons if reason.weight is Weight.REFUSAL}
    assert "propensity_miscalibrated" in refused
    (reason,) = (each for each in plan.record.objections if each.rule == "propensity_miscalibrated")
    assert f"action {log.catalogue.labels[3]!r}" in reason.message


def test_draws_that_users_share_are_refused_until_they_are_named(plan: Plan, log: Log) -> None:
    shared = SharedDraws("village", 40, 1.0, 6.2)
    (reason,) = objections(log, replace(plan.record.audit, shared=shared), plan.record.fidelity)
    assert (reason.rule, reason.weight) == ("assigned_by_cluster", Weight.REFUSAL)
    assert "--cluster village" in reason.message


def test_a_column_that_was_perhaps_not_known_is_refused_until_it_is_said_to_be_known(plan: Plan, log: Log) -> None:
    leak = Leak("tier", "same row", "reward", now=0.83, before=0.12, z=0.0)
    (asked,) = objections(log, replace(plan.record.audit, leaks=(leak,)), plan.record.fidelity)
    assert (asked.rule, asked.weight) == ("suspected_leak", Weight.REFUSAL)
    for word in ("'tier'", "83%", "12%", "--ignore tier", "--known-before tier"):
        assert word in asked.message
    known = replace(leak, known=True)
    (said,) = objections(log, replace(plan.record.audit, leaks=(known,)), plan.record.fidelity)
    assert (said.rule, said.weight) == ("said_known", Weight.WARNING)
    assert "'tier'" in said.message


def test_a_model_that_is_not_trusted_is_told_but_refuses_nothing(plan: Plan, log: Log) -> None:
    doubted = replace(plan.record.fidelity, reasons=("the mean of rewards is off",))
    (reason,) = objections(log, plan.record.audit, doubted)
    assert (reason.rule, reason.weight) == ("model_not_trusted", Weight.WARNING)
    assert "the mean of rewards is off" in reason.message
