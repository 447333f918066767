"""The ladder that certifies: by ratios of states where what happened before agrees, else by all earlier steps.

Some rungs are estimated again by estimators that know more of the past than the state shows. Where they differ from the
first by more than noise at the price where the plan would stand, the whole ladder is made again from the estimator that
knows all of the past. Its bounds are wider; where its overlap is too thin, its rungs are refused, and say why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from redenvelope.audit.audit import Audit
from redenvelope.evaluation.agreement import EstimatorChoice, agreement, checking_estimators, choose_estimator
from redenvelope.evaluation.confidence import Concentration
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.evaluate import evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.fitting.holdout import Check
from redenvelope.log.log import Log
from redenvelope.models.fidelity import Fidelity
from redenvelope.plan.fixed_sequence_test import Stop
from redenvelope.plan.ladder import Ladder, Rung
from redenvelope.randomness import fraction

_EVERY = 4  # rungs from one that is estimated again to the next


@dataclass(frozen=True, eq=False)
class Trusted:
    """The check to rely on, and what there is to say about the rungs of its ladder."""

    check: Check
    verdicts: tuple[EstimatorChoice, ...]
    """Of every rung by the first estimator; of the one where the plan would have stood, if the check is another's."""

    def marked(self, ladder: Ladder) -> Ladder:
        """The check's ladder with the reasons that the past gives."""
        if not self.verdicts:
            return ladder
        if len(self.verdicts) == 1:
            return replace(ladder, rungs=tuple(_by_the_past(rung, self.verdicts[0]) for rung in ladder.rungs))
        pairs = zip(ladder.rungs, self.verdicts, strict=True)
        return replace(ladder, rungs=tuple(_by_the_state(rung, own) for rung, own in pairs))


def trusted_check(check: Check, walk: Callable[[Ladder], Stop], users: int, seed: int) -> Trusted:
    """The check itself, or one by the estimator that knows all of the past; `walk` says where the plan would stand.

    At most so many users are asked whether the past agrees: it must differ by more than bounds are wide to matter.
    """
    estimator, steps = check.evaluation.estimator, int(check.log.lengths.max())
    if not isinstance(estimator, Marginalised) or steps < 2:
        return Trusted(check, ())
    ladder = check.ladder("plan")
    verdicts = _verdicts(check, estimator, len(ladder.rungs), users, seed)
    place = walk(ladder).place
    stood = verdicts[place.rung + round(place.share)]
    if stood.rely_on == "first":
        return Trusted(check, verdicts)
    return Trusted(check.evaluated_by(checking_estimators(estimator, steps)[-1]), (stood,))


def _verdicts(check: Check, estimator: Marginalised, rungs: int, users: int, seed: int) -> tuple[EstimatorChoice, ...]:
    """Of every rung: that of the nearest which was estimated again."""
    parts = check.evaluation.partitions
    asked = np.unique(np.append(np.arange(0, rungs, _EVERY), rungs - 1))
    # Of a mixture, what most of its users follow.
    prices = check.places("plan").start + check.contestants["plan"].main_prices()[asked]
    share = users / max(len(check.log.users), 1)
    chosen = ((part, fraction(part.keys, "agreement", seed) < share) for part in parts.parts())
    # Of a small part nobody may be in the sample.
    evidence = [part.at_prices(prices).of_users(own) for part, own in chosen if own.any()]
    told = all(part.past is not None for part in evidence)
    others = checking_estimators(estimator, int(check.log.lengths.max()), told)
    found = evaluate_partitions(evidence, [estimator, *others], engine=parts.engine)
    pairs = [agreement(found[estimator.name], found[other.name]) for other in others]
    sequential = found[others[-1].name]
    known = [
        choose_estimator(
            [outcome[place] for pair in pairs for outcome in pair],
            sequential.reasons(sequential.outcome_names[1], place),
        )
        for place in range(len(asked))
    ]
    return tuple(known[int(np.argmin(np.abs(asked - rung)))] for rung in range(rungs))


def _by_the_state(rung: Rung, own: EstimatorChoice) -> Rung:
    """Nobody may stand where the past disagrees: another budget could lead there."""
    if own.rely_on == "first":
        return rung
    return replace(rung, objections=tuple(Reason(each.rule, Weight.REFUSAL, each.message) for each in own.reasons))


def _by_the_past(rung: Rung, stood: EstimatorChoice) -> Rung:
    """Every rung says why this estimator was needed; one that is refused, for thin overlap, says it first."""
    weight = Weight.REFUSAL if rung.is_unreliable else Weight.WARNING
    return replace(rung, objections=tuple(Reason(each.rule, weight, each.message) for each in stood.reasons))


# What the audit and the model's fidelity say against any plan of a log: reasons that reach its certificate.


def objections(
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


# What all users of a log say, where a fit is given only some of them.


@dataclass(frozen=True, eq=False)
class PopulationSummary:
    """Figures of all users."""

    audit: Audit
    costs: tuple[Concentration, ...]
    """How the costs of each budget are spread over users, [budgets]."""
    sample: str
    """Who of them a fit is given, in words."""


def concentrations(log: Log) -> tuple[Concentration, ...]:
    """How the costs of each budget are spread over the users of a log, [budgets]."""
    return tuple(Concentration.of(log.sums_by_user(cost)) for cost in log.outcomes[1:])


def merge_concentrations(parts: Sequence[tuple[Concentration, ...]]) -> tuple[Concentration, ...]:
    """Those of all parts, in their order."""
    return tuple(reduce(Concentration.merge, costs) for costs in zip(*parts, strict=True))
