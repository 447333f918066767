"""The ladder that certifies: by the state where the past agrees, by all earlier steps where it does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.evaluate import EstimatorChoice
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.evaluation.partitions import as_partitions
from redenvelope.fitting import certify as trusted
from redenvelope.fitting.certify import trusted_check
from redenvelope.fitting.encoded import encode
from redenvelope.fitting.holdout import CandidatePolicy, Check, check_policies
from redenvelope.log.log import Log, split
from redenvelope.plan.fixed_sequence_test import climb
from redenvelope.plan.ladder import Ladder, Place
from redenvelope.plan.plan import Plan
from tests.two_step_plan import BUDGET

AGREED = EstimatorChoice("first", (), ())
WARNED = EstimatorChoice("sequential", (), (Reason("hidden_past", Weight.WARNING, "the past matters"),))
REFUSED = EstimatorChoice("neither", (), (Reason("hidden_past", Weight.REFUSAL, "the past matters, and is too long"),))


@pytest.fixture(scope="module")
def check(plan: Plan, log: Log) -> Check:
    encoded = encode(split(log)[2], plan.policy.encoder, plan.policy.specification.steps)
    own = {"plan": CandidatePolicy(plan.policy, plan.ladder.prices)}
    return check_policies(own, encoded, encoded, Marginalised(seed=0), 0, seed=0)


def walk(ladder: Ladder):
    return climb(ladder, [BUDGET], 0.95)


def test_a_state_that_tells_all_is_trusted(plan: Plan, check: Check) -> None:
    found = trusted_check(check, walk, 10_000, 0)
    assert found.check is check
    assert len(found.verdicts) == len(plan.ladder.rungs)
    ladder = found.marked(check.ladder("plan"))
    assert walk(ladder).place == plan.record.stop.place
    assert plan.certificate.cost.estimator == "marginalised"


def test_where_the_past_disagrees_all_earlier_steps_certify(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted, "_verdicts", lambda check, estimator, rungs, users, seed: (WARNED,) * rungs)
    found = trusted_check(check, walk, 10_000, 0)
    ladder = found.marked(found.check.ladder("plan"))
    assert ladder.estimator == "doubly_robust"
    by_state, place = check.ladder("plan"), walk(ladder).place
    assert walk(ladder).holds
    assert ladder.reasons(place)[0].rule == "hidden_past"
    assert all(reason.weight is Weight.WARNING for reason in ladder.reasons(place))
    # Two steps: both estimate the same, the one by products of ratios with more noise.
    errors = [each.figures(place, 0.95)[1].standard_error for each in (ladder, by_state)]
    assert errors[0] > errors[1] / Marginalised().caution
    gap = abs(ladder.means[1] - by_state.means[1]).max()
    assert gap < 4 * max(errors)


def test_a_rung_that_cannot_be_relied_on_either_way_says_why_first(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trusted, "_verdicts", lambda check, estimator, rungs, users, seed: (REFUSED,) * rungs)
    found = trusted_check(check, walk, 10_000, 0)
    thin = Reason("thin_overlap", Weight.REFUSAL, "too few")
    ladder = found.check.ladder("plan")
    doubted = replace(ladder, rungs=tuple(replace(rung, reasons=(thin,)) for rung in ladder.rungs))
    marked = found.marked(doubted)
    assert marked.unreliable.all()
    assert not walk(marked).holds
    assert [reason.rule for reason in marked.reasons(Place(0))] == ["hidden_past", "thin_overlap"]


def test_a_price_that_disagrees_elsewhere_is_not_stood_on_later(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    rung = walk(check.ladder("plan")).place.rung

    def some(check: Check, estimator: Marginalised, rungs: int, users: int, seed: int) -> tuple[EstimatorChoice, ...]:
        return tuple(AGREED if place <= rung + 1 else WARNED for place in range(rungs))

    monkeypatch.setattr(trusted, "_verdicts", some)
    found = trusted_check(check, walk, 10_000, 0)
    ladder = found.marked(check.ladder("plan"))
    assert found.check is check
    assert not ladder.unreliable.any(), "the walk goes on"
    far = climb(ladder, [100.0], 0.95).place
    assert far.rung == len(ladder.rungs) - 1
    assert [reason.rule for reason in ladder.reasons(far) if reason.weight is Weight.REFUSAL] == ["hidden_past"]
    assert not ladder.reasons(walk(ladder).place)


def test_other_estimators_are_taken_at_their_word(check: Check) -> None:
    sequential = check.evaluated_by(trusted.checking_estimators(Marginalised(seed=0), 2)[-1])
    assert trusted_check(sequential, walk, 10_000, 0).verdicts == ()


def test_a_part_of_whom_nobody_is_asked_is_left_out(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    (*_, last) = check.evaluation.partitions.parts()
    alone = set(last.keys[:1].tolist())
    held = [*last.batches(1)][:1] + list(check.evaluation.partitions.parts())
    parted = replace(check.evaluation, partitions=as_partitions(held))
    asked = trusted.fraction

    def without(keys: np.ndarray, stream: str, seed: int) -> np.ndarray:
        return np.where([key in alone for key in keys.tolist()], 1.0, asked(keys, stream, seed))

    monkeypatch.setattr(trusted, "fraction", without)
    found = trusted_check(replace(check, evaluation=parted), walk, len(check.log.users), 0)
    assert len(found.verdicts) == len(check.candidates["plan"].prices)
