"""The ladder that certifies: by ratios of states where what happened before agrees, else by all earlier steps.

Some rungs are estimated again by estimators that know more of the past than the state shows. Where they differ from the
first by more than noise at the price where the plan would stand, the whole ladder is made again from the estimator that
knows all of the past. Its bounds are wider; where its overlap is too thin, its rungs are refused, and say why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from redenvelope.chance import fraction
from redenvelope.evaluation.agreement import Verdict, agreement, checking_estimators, verdict
from redenvelope.evaluation.evaluate import evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.evaluation.reasons import Reason, Weight
from redenvelope.fitting.check import Check
from redenvelope.plan.climb import Stop
from redenvelope.plan.ladder import Ladder, Rung

__all__ = ["Trusted", "trusted_check"]

_EVERY = 4  # rungs from one that is estimated again to the next


@dataclass(frozen=True, eq=False)
class Trusted:
    """The check to rely on, and what there is to say about the rungs of its ladder."""

    check: Check
    verdicts: tuple[Verdict, ...]
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


def _verdicts(check: Check, estimator: Marginalised, rungs: int, users: int, seed: int) -> tuple[Verdict, ...]:
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
        verdict(
            [outcome[place] for pair in pairs for outcome in pair],
            sequential.reasons(sequential.outcome_names[1], place),
        )
        for place in range(len(asked))
    ]
    return tuple(known[int(np.argmin(np.abs(asked - rung)))] for rung in range(rungs))


def _by_the_state(rung: Rung, own: Verdict) -> Rung:
    """Nobody may stand where the past disagrees: another budget could lead there."""
    if own.rely_on == "first":
        return rung
    return replace(rung, objections=tuple(Reason(each.rule, Weight.REFUSAL, each.message) for each in own.reasons))


def _by_the_past(rung: Rung, stood: Verdict) -> Rung:
    """Every rung says why this estimator was needed; one that is refused, for thin overlap, says it first."""
    weight = Weight.REFUSAL if rung.is_doubted else Weight.WARNING
    return replace(rung, objections=tuple(Reason(each.rule, weight, each.message) for each in stood.reasons))
