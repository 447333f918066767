"""Whether a log tells what a plan decides by: what it does not tell is never taken as missing without a word."""

from __future__ import annotations

from redenvelope.audit.fitness import report_gaps
from redenvelope.errors import LogError
from redenvelope.log.findings import Finding, Findings, Severity
from redenvelope.log.log import Log
from redenvelope.plan.plan import Plan

__all__ = ["lacking_features"]

_LEFT_OUT = ("feature_missing_all", "feature_constant", "feature_like_id")


def lacking_features(plan: Plan, log: Log) -> tuple[Finding, ...]:
    """Features that the plan decides by and that reading left out of the log.

    Raises `LogError` where the log lacks such a column, skips steps, or holds steps that the plan does not know.
    """
    findings = Findings()
    report_gaps(log.gaps, findings)
    first = plan.policy.encoder.first_step
    last = first + plan.policy.specification.steps - 1
    outside = int(((log.step < first) | (log.step > last)).sum())
    if outside:
        findings.add("evaluate_steps", column="step", count=outside, first=first, last=last)
    _report_features(plan, log, findings)
    if findings.refused:
        raise LogError([finding for finding in findings.sorted() if finding.severity is Severity.ERROR])
    return findings.sorted()


def _report_features(plan: Plan, log: Log, findings: Findings) -> None:
    encoder = plan.policy.encoder
    left_out = {finding.column: finding for finding in log.findings if finding.rule in _LEFT_OUT}
    numbers, categories = set(log.features.numeric_names), set(log.features.category_names)
    wanted = [(number.name, number.name in numbers) for number in encoder.numbers]
    wanted += [(category.name, category.name in categories) for category in encoder.categories]
    for name in (name for name, there in wanted if not there):
        if name in left_out:
            findings.add("evaluate_feature_left_out", column=name, count=len(log), why=left_out[name].message)
        elif name in numbers | categories:
            findings.add("evaluate_feature_kind", column=name, count=len(log))
        else:
            findings.add("evaluate_feature_missing", column=name, count=len(log))
