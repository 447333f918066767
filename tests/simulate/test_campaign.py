"""What all campaigns share: asking a policy, drawing actions, summing up a run."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from redenvelope import EnvelopeCampaign, UsageError, two_step
from redenvelope.simulate.campaign import Campaign, ask, draw_actions, summarise_run

FRAME = pl.DataFrame({"user": [0, 1], "step": [0, 0]})


def test_every_campaign_keeps_the_protocol() -> None:
    campaigns: list[Campaign] = [two_step(), EnvelopeCampaign()]
    public = {name for name in vars(Campaign) if not name.startswith("_")}
    assert len(public) == 10
    for campaign in campaigns:
        assert public <= set(dir(campaign))


def test_answers_in_single_precision_are_made_to_sum_to_one() -> None:
    answer = ask(lambda frame: np.full((2, 3), 1 / 3, dtype=np.float32), FRAME, 3)
    assert answer.dtype == np.float64
    assert (answer.sum(axis=1) == 1).all()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.ones((2, 2)) / 2, "shape"),
        (np.ones((2, 3)), "sum to 1"),
        (np.array([[1.5, -0.5, 0.0]] * 2), "negative"),
        (np.full((2, 3), np.nan), "negative or do not sum"),
    ],
)
def test_answers_that_are_no_probabilities_are_refused(answer: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ask(lambda frame: answer, FRAME, 3)


def test_actions_are_drawn_as_often_as_they_are_probable() -> None:
    probabilities = np.array([0.1, 0.0, 0.6, 0.3])
    drawn = draw_actions(np.tile(probabilities, (40_000, 1)), np.random.default_rng(0))
    shares = np.bincount(drawn, minlength=4) / 40_000
    # Four standard errors of a share: 4·√(0.25/40,000) = 0.01.
    assert shares == pytest.approx(probabilities, abs=0.01)
    assert shares[1] == 0


def test_a_run_of_one_user_has_no_error_to_give() -> None:
    with pytest.raises(UsageError, match="at least 2"):
        summarise_run(np.ones((2, 1)))
    run = summarise_run(np.array([[0.0, 4.0], [1.0, 3.0]]))
    assert (run.cost, run.cost_error, run.reward, run.reward_error) == pytest.approx((2, 1, 2, 2))
