import json
import re

import numpy as np
import polars as pl
import pytest

from redenvelope import audit_log
from redenvelope.audit.audit import verdicts
from redenvelope.audit.randomization import assignment_evidence
from tests.audit.campaigns import SKEWED_3, campaign, log_of

RISING = [[0.0, 0.5, 1.0], [1.0, 1.5, 2.0]]
FALLING = [[0.0, 1.5, 1.0], [1.0, 2.5, 2.0]]
COSTS = [[0.1, 0.6, 1.1], [0.3, 0.8, 1.3]]


def test_a_random_logger_looks_random_and_a_choosy_one_does_not() -> None:
    assert assignment_evidence(log_of(campaign(RISING, COSTS), users=2_000)).looks_random
    evidence = assignment_evidence(log_of(campaign(RISING, COSTS, SKEWED_3), users=2_000))
    assert not evidence.looks_random
    # The gain is the mutual information of state and action: the mean over states of Σ p log(p/share) is 0.2531 nats.
    assert evidence.gain == pytest.approx(0.2531, abs=4 * evidence.standard_error + 0.005)


def test_the_audit_of_a_random_logger_in_sentences() -> None:
    result = audit_log(log_of(campaign(FALLING, COSTS, follow=0.8), users=3_000))
    text = " ".join(verdicts(result))
    assert "Assignment looks random" in text
    assert "A higher cost does not always earn more: 'a2'" in text
    assert "Carry-over between steps is strong" in text
    assert {finding.rule for finding in result.findings} == {"reward_not_monotone", "overlap_thin"}


@pytest.mark.parametrize(
    ("users", "sentences"),
    [
        # One of three actions: a third of the users at each step alone, a 27th of them after all three.
        (350, ["Too few effective users at every step: ", "and needs 50: a log of about ", " users would be enough."]),
        (1_000, ["Too few effective users after 1 step: ", "%), and needs 50: plans near the logged behaviour"]),
        (12_000, ["Overlap is good: one fixed action keeps ", " effective users of 12,000 by the last step, about "]),
    ],
)
def test_overlap_is_judged_on_those_who_check(users: int, sentences: list[str]) -> None:
    result = audit_log(log_of(campaign(RISING, COSTS, steps=3), users=users))
    (verdict,) = (text for text in verdicts(result) if "effective" in text)
    for sentence in sentences:
        assert sentence in verdict
    if users == 350:
        # 50 effective ones among 40 % of a third are 375 users.
        (needed,) = re.findall(r"about ([\d,]+) users would be enough", verdict)
        assert int(needed.replace(",", "")) == pytest.approx(375, rel=0.2)


def test_the_audit_of_a_choosy_logger_in_sentences() -> None:
    text = " ".join(verdicts(audit_log(log_of(campaign(RISING, COSTS, SKEWED_3), users=3_000))))
    assert "Assignment depends on the features" in text
    assert "A higher cost earns more, as far as the log shows" in text
    assert "Carry-over between steps is not significant" in text


def test_what_the_log_does_not_show_is_not_claimed() -> None:
    """Rewards that are drawn alike for every action are no evidence that a higher cost earns more."""
    draw = np.random.default_rng(5)
    action = draw.integers(0, 3, 300)
    frame = {"user": range(300), "step": 0, "action": action, "propensity": 1 / 3, "cost": action}
    told = pl.DataFrame(frame).with_columns(reward=draw.integers(0, 2, 300), age=draw.normal(size=300))
    text = " ".join(verdicts(audit_log(told)))
    assert "The log does not show whether a higher cost earns more" in text
    assert "Assignment looks random" in text
    text = " ".join(verdicts(audit_log(told.drop("age").unique("action", maintain_order=True))))
    assert "There are too few users to say whether assignment depends on the features." in text


def test_budgets_are_judged_against_fixed_actions() -> None:
    log = log_of(campaign(RISING, [[0.5, 1.0, 2.0]] * 2), users=1_000)
    # Four steps of the cheapest action cost 2, of the dearest 8.
    assert audit_log(log).cheapest_cost == pytest.approx(2.0, abs=0.05)
    assert audit_log(log).dearest_cost == pytest.approx(8.0, abs=0.1)
    assert "budget_infeasible" in {finding.rule for finding in audit_log(log, 1.5).findings}
    assert "budget_slack" in {finding.rule for finding in audit_log(log, 9.0).findings}
    assert not {"budget_infeasible", "budget_slack"} & {finding.rule for finding in audit_log(log, 4.0).findings}


def test_the_logged_means_are_per_user_sums() -> None:
    log = log_of(campaign(RISING, COSTS), users=500)
    result = audit_log(log)
    assert result.logged_reward.estimate == pytest.approx(log.reward.sum() / 500)
    assert result.logged_cost.estimate == pytest.approx(log.cost.sum() / 500)
    assert sum(fold.users for fold in result.folds) == 500


def test_the_audit_is_plain_data() -> None:
    content = audit_log(log_of(campaign(RISING, COSTS), users=500)).as_dict()
    assert json.loads(json.dumps(content))["users"] == 500
    assert len(content["verdicts"]) == 5
