"""What the audit and the model's fidelity say against any plan of a log: reasons that reach its certificate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redenvelope.audit.audit import Audit
from redenvelope.evaluation.concentration import Concentration
from redenvelope.evaluation.reasons import Reason, Weight
from redenvelope.fitting.whole import concentrations
from redenvelope.log.log import Log
from redenvelope.models.fidelity import Fidelity

__all__ = ["doubts"]


def doubts(
    log: Log, audited: Audit, fidelity: Fidelity, costs: Sequence[Concentration] | None = None
) -> tuple[Reason, ...]:
    """Refusals where an assumption of the certificate fails, warnings where only the plan's quality is in doubt.

    `costs` are how the costs of each budget are spread over all users, where the log holds only some of them.
    """
    # Of all users: a fold that happens to hold none of the few who carry the cost looks tame.
    spread = concentrations(log) if costs is None else costs
    concentrated = (cost.reason(name) for name, cost in zip(log.outcome_names[1:], spread, strict=True))
    found = [reason for reason in concentrated if reason is not None]
    return (*_about_propensities(audited), *_about_columns(audited), *found, *_about_the_model(fidelity))


def _about_propensities(audited: Audit) -> Iterator[Reason]:
    """Every estimate divides by propensities: nothing can be certified where they contradict the log."""
    for entry in audited.calibration:
        if entry.is_off:
            yield Reason(
                "propensity_miscalibrated",
                Weight.REFUSAL,
                f"the propensities of action {entry.label!r} are not those it was given with: 1/propensity adds up to "
                f"{entry.ratio:.3f} of the rows where it should be 1 (z = {entry.z:+.1f}), and every estimate rests on "
                "them; repair the column, or use --estimate-propensity",
            )


def _about_columns(audited: Audit) -> Iterator[Reason]:
    """A plan that decides by what is known only afterwards is checked with the answer in hand, and cannot be deployed:
    estimates say nothing of it."""
    for leak in audited.leaks:
        said = f"column {leak.column!r} {leak.evidence}"
        if leak.known:
            yield Reason(
                "said_known",
                Weight.WARNING,
                f"{said}; the certificate rests on its being known when the action is chosen, as --known-before says",
            )
        else:
            yield Reason(
                "suspected_leak",
                Weight.REFUSAL,
                f"{said}; if it is known only afterwards, no plan that decides by it can be trusted: leave it out with "
                f"--ignore {leak.column}, or, if it was known when the action was chosen, say so with "
                f"--known-before {leak.column}",
            )


def _about_the_model(fidelity: Fidelity) -> Iterator[Reason]:
    """The certificate does not rest on the model; how good the plan is does."""
    if not fidelity.trusted:
        yield Reason(
            "model_not_trusted",
            Weight.WARNING,
            f"the model was not trusted to plan ahead: {fidelity.reasons[0]}; the bounds do not rest on it, but a plan "
            "made without it may earn less",
        )
