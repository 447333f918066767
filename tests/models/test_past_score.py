"""Whether outcomes go with the past beyond the state: campaigns where they do, and where they must not seem to."""

import numpy as np
import polars as pl
import pytest

from redenvelope import Encoder, log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.models.past_effects import PastScore, _score, past_scores

USERS, STEPS = 3_000, 4


def scores(habit: float, bend: float, seed: int = 0, opposite: bool = False) -> tuple[PastScore, ...]:
    """Of a campaign whose cost grows with the envelopes received by `habit`, and with a visible mood as its square; for
    one group it falls where it is opposite, so that the mean of all groups does not change."""
    generator = np.random.default_rng(seed)
    received, group = np.zeros(USERS), generator.integers(3, size=USERS)
    direction = group - 1.0 if opposite else np.ones(USERS)
    mood, rows = generator.normal(size=USERS), []
    for step in range(STEPS):
        action = generator.integers(3, size=USERS)
        cost = action * (1 + habit * direction * received + bend * mood**2 * (group == 1)) + generator.normal(
            size=USERS
        )
        reward = mood * group + action + generator.normal(size=USERS)
        columns = {"action": action, "reward": reward, "cost": cost - cost.min(), "mood": mood}
        rows.append(pl.DataFrame({"user": np.arange(USERS), **columns, "group": [f"g{own}" for own in group]}))
        rows[-1] = rows[-1].with_columns(pl.lit(step).alias("step"), pl.lit(1 / 3).alias("propensity"))
        received += action > 0
        # What is seen next depends on what was done: histories and states go together, as in real logs.
        mood = 0.5 * mood + 0.4 * action + generator.normal(size=USERS)
    log = log_from_frame(pl.concat(rows))
    return past_scores(Examples.from_log(log, Encoder.fit(log).with_history(log)))


@pytest.mark.parametrize("seed", range(4))
def test_a_state_that_tells_all_hides_no_past(seed: int) -> None:
    """Chance is normal, about: 4 standard errors in eight draws come once in thousands."""
    assert max(score.errors for score in scores(habit=0.0, bend=0.0, seed=seed)) < 4


def test_products_of_groups_and_moods_are_no_past() -> None:
    assert not any(score.is_plain for score in scores(habit=0.0, bend=0.5))


def test_a_hidden_habit_is_plain_in_the_cost_alone() -> None:
    reward, cost = scores(habit=0.25, bend=0.0)
    assert cost.is_plain
    assert not reward.is_plain


def test_opposite_habits_are_plain_although_their_mean_is_zero() -> None:
    reward, cost = scores(habit=0.3, bend=0.0, opposite=True)
    assert cost.is_plain
    assert not reward.is_plain


def test_the_share_is_what_the_past_explains() -> None:
    """A habit twice as strong explains four times the variance, of noise that hardly grows with it."""
    small, large = (scores(habit=habit, bend=0.0)[1].share for habit in (0.15, 0.3))
    assert large / small == pytest.approx(4, rel=0.35)  # variances go with squares; the noise stays


def test_outcomes_that_fall_only_where_there_is_no_past_say_nothing() -> None:
    """Costs at first steps alone, and a past at later ones alone: no product of both is left, and no warning."""
    outcome, past = np.array([1.0, 0.0, -1.0, 0.0]), np.array([[0.0], [1.0], [0.0], [-1.0]])
    assert _score(outcome, past, np.array([0, 2, 4])) == PastScore(0.0, 0.0)
