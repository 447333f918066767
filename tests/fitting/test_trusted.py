"""The ladder that certifies: by the state where the past agrees, by all earlier steps where it does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.evaluation.evaluate import EstimatorChoice, checking_estimators, evaluate_partitions
from redenvelope.evaluation.marginalised import Marginalised
from redenvelope.evaluation.partitions import as_partitions
from redenvelope.fitting.certify import Trusted, over_groups_if_agreed, relied_on, trusted_check
from redenvelope.fitting.encoded import encode, past_effects
from redenvelope.fitting.holdout import CandidatePolicy, Check, check_policies
from redenvelope.log.log import Log, split
from redenvelope.models.past_effects import PastEffects
from redenvelope.plan.fixed_sequence_test import Question, climb
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
    return check_policies(own, encoded, Marginalised(seed=0), 0, seed=0)


@pytest.fixture(scope="module")
def past(plan: Plan, log: Log) -> PastEffects | None:
    return past_effects(log, plan.policy.encoder, 10_000, 0)


def walk(ladder: Ladder):
    return climb(ladder, [BUDGET], 0.95)


def judged(check: Check, *verdicts: EstimatorChoice) -> Trusted:
    """The check as these verdicts leave it, one for every rung, or one for all."""
    ladder = check.ladder("plan")
    every = verdicts * (len(ladder.rungs) // len(verdicts))
    return relied_on(check, Marginalised(seed=0), walk(ladder), every)


def test_a_state_that_tells_all_is_trusted(plan: Plan, check: Check, past: PastEffects) -> None:
    found = trusted_check(check, walk, past)
    assert len(found.verdicts) == len(plan.ladder.rungs)
    ladder = found.marked(found.check.ladder("plan"))
    assert walk(ladder).place == plan.record.stop.place
    assert plan.certificate.cost.estimator == "marginalised"
    # The correction is within its own noise.
    place, plain = walk(ladder).place, check.ladder("plan")
    correction, detectable = (
        ladder.diagnostics(place)[name][1] for name in ("correction_for_the_past", "smallest_detectable_bias")
    )
    assert abs(correction) < 3 * detectable / 2.487
    corrected, before = (each.figures(place, 0.95)[1] for each in (ladder, plain))
    assert corrected.estimate - before.estimate == pytest.approx(correction, abs=0.3 * detectable)
    # The same number but for its rounding, where the correction's error is next to nothing.
    assert (1 - 1e-12) * before.standard_error <= corrected.standard_error < 1.1 * before.standard_error


def test_a_past_of_which_nothing_is_known_is_refused_by_name(check: Check) -> None:
    ladder = (found := trusted_check(check, walk, None)).marked(found.check.ladder("plan"))
    reasons = [reason for reason in ladder.reasons(walk(ladder).place) if reason.weight is Weight.REFUSAL]
    assert [reason.rule for reason in reasons] == ["past_unchecked"]


def test_a_past_that_could_hide_a_quarter_of_the_cost_is_refused(check: Check, past: PastEffects) -> None:
    vague = replace(past, covariance=past.covariance * 1e8)
    ladder = (found := trusted_check(check, walk, vague)).marked(found.check.ladder("plan"))
    assert "past_unchecked" in {reason.rule for rung in ladder.rungs for reason in rung.objections}


def test_where_the_past_disagrees_all_earlier_steps_certify(check: Check) -> None:
    found = judged(check, WARNED)
    ladder = found.marked(found.check.ladder("plan"))
    assert ladder.estimator == "doubly_robust"
    by_state, place = check.ladder("plan"), walk(ladder).place
    assert walk(ladder).holds
    assert ladder.reasons(place)[0].rule == "hidden_past"
    assert all(reason.weight is Weight.WARNING for reason in ladder.reasons(place))
    # Two steps: both estimate the same, the one by products of ratios with more noise.
    errors = [each.figures(place, 0.95)[1].standard_error for each in (ladder, by_state)]
    assert errors[0] > errors[1]
    gap = abs(ladder.means[1] - by_state.means[1]).max()
    assert gap < 4 * max(errors)


def test_a_rung_that_cannot_be_relied_on_either_way_says_why_first(check: Check) -> None:
    found = judged(check, REFUSED)
    thin = Reason("thin_overlap", Weight.REFUSAL, "too few")
    ladder = found.check.ladder("plan")
    doubted = replace(ladder, rungs=tuple(replace(rung, reasons=(thin,)) for rung in ladder.rungs))
    marked = found.marked(doubted)
    assert marked.unreliable.all()
    assert not walk(marked).holds
    assert [reason.rule for reason in marked.reasons(Place(0))] == ["hidden_past", "thin_overlap"]


def test_a_price_that_disagrees_elsewhere_is_not_stood_on_later(check: Check) -> None:
    rung = walk(check.ladder("plan")).place.rung
    rungs = range(len(check.ladder("plan").rungs))
    found = judged(check, *(AGREED if place <= rung + 1 else WARNED for place in rungs))
    ladder = found.marked(check.ladder("plan"))
    assert found.check is check
    assert not ladder.unreliable.any(), "the walk goes on"
    far = climb(ladder, [100.0], 0.95).place
    assert far.rung == len(ladder.rungs) - 1
    assert [reason.rule for reason in ladder.reasons(far) if reason.weight is Weight.REFUSAL] == ["hidden_past"]
    assert not ladder.reasons(walk(ladder).place)


def test_other_estimators_are_taken_at_their_word(check: Check) -> None:
    sequential = check.evaluated_by(checking_estimators(Marginalised(seed=0), 2)[-1])
    assert trusted_check(sequential, walk, None).verdicts == ()


def test_a_part_of_whom_nobody_is_asked_is_left_out(check: Check, plan: Plan, log: Log) -> None:
    some = past_effects(log, plan.policy.encoder, 400, 0)
    single = [one for part in check.evaluation.partitions.parts() for one in part.batches(50)]
    parted = replace(check, evaluation=replace(check.evaluation, partitions=as_partitions(single)))
    found = [trusted_check(each, walk, some).check.correction for each in (check, parted)]
    assert found[0] is not None and found[1] is not None
    np.testing.assert_allclose(found[0].value, found[1].value, rtol=1e-6, atol=1e-9)


def test_an_estimate_of_few_effective_users_contradicts_nothing(
    check: Check, plan: Plan, log: Log, past: PastEffects
) -> None:
    """Not even the error of such an estimate is known: of 150 users, a hard plan of two steps leaves some ten."""
    few = encode(log.select(np.arange(len(log.users)) < 150), plan.policy.encoder, 2)
    thin = check_policies(dict(check.candidates), few, Marginalised(seed=0), 0, seed=0)

    def compared_with(each: Check) -> set[str]:
        """At the price of the last rung, where the plan is furthest from what was logged."""
        return {found.second for found in trusted_check(each, walk, past).verdicts[-1].agreements}

    assert "doubly_robust" in compared_with(check)
    assert "doubly_robust" not in compared_with(thin)


def test_where_overlap_is_thin_the_model_must_agree(check: Check, plan: Plan, log: Log) -> None:
    """With enough effective users, a wrong model is corrected; with few, nobody knows what the correction is worth."""

    def refused(users: int, error: float) -> bool:
        some = encode(log.select(np.arange(len(log.users)) < users), plan.policy.encoder, 2)
        own = check_policies(dict(check.candidates), some, Marginalised(seed=0), 0, seed=0)
        wrong = []
        for part in own.evaluation.partitions.parts():
            assert part.values is not None and part.action_values is not None
            scaled = {"values": part.values * error, "action_values": part.action_values * error}
            wrong.append(replace(part, **scaled))
        found = evaluate_partitions(wrong, [own.evaluation.estimator])["marginalised"]
        # At the price of the last rung, where the plan is furthest from what was logged.
        reasons = replace(own, evaluation=found).reasons("plan")[-1]
        return "model_and_log_differ" in {reason.rule for reason in reasons}

    assert refused(150, 1.5) and refused(150, 0.6)
    assert not refused(150, 1.0)
    assert not refused(len(log.users), 1.5)


def test_groups_of_items_where_single_items_agree_on_what_the_test_looks_at(check: Check) -> None:
    question, rungs = Question.of(BUDGET, None, 0.95), len(check.candidates["plan"].prices)
    reached = walk(check.ladder("plan")).place.rung
    assert reached + 2 < rungs, "there are rungs beyond the first that fails"

    def settled(rung: int, difference: float) -> Check:
        far = np.zeros((2, rungs))
        far[1, rung] = difference
        return over_groups_if_agreed(replace(check, groups=check.evaluation, contradicted=far), question)

    assert not settled(reached, 1.0).over_groups
    assert not settled(reached + 1, 1.0).over_groups
    beyond, little = settled(rungs - 1, 1.0), settled(0, 0.004 * BUDGET)
    assert beyond.over_groups
    assert little.over_groups
    plain = check.ladder("plan").unreliable
    assert beyond.ladder("plan").unreliable.tolist() == [*plain[:-1], True], "another budget could lead there"
    assert little.ladder("plan").unreliable.tolist() == plain.tolist(), "half a percent of the budget"
