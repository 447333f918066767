import pytest

from redenvelope.audit.effects import CarryOver
from tests.audit.campaigns import SKEWED_3, campaign, carry_over_of, log_of

REWARDS = [[0.0, 0.5, 1.0], [1.0, 1.5, 2.0]]
COSTS = [[0.1, 0.6, 1.1], [0.3, 0.8, 1.3]]


def test_nothing_carries_over_when_actions_do_not_move_the_state() -> None:
    # Even though the logger chooses by state: that must not pose as carry-over.
    log = log_of(campaign(REWARDS, COSTS, SKEWED_3), users=6_000)
    effect = carry_over_of(log, "reward")
    assert effect is not None
    assert effect.strength == "none"


def test_actions_that_move_the_state_carry_over() -> None:
    # With follow = 0.8 the dear action leads to state 1 with 0.9, the cheap one with 0.1: the next reward
    # differs by 0.8 · 1.0, and its standard deviation over the three actions is 0.8 · √(1/6) = 0.327.
    log = log_of(campaign(REWARDS, COSTS, follow=0.8), users=6_000)
    effect = carry_over_of(log, "reward")
    assert effect is not None
    assert effect.strength == "strong"
    assert effect.carried == pytest.approx(0.327, abs=0.03)
    # Directly the three actions differ by 0.5 each: a standard deviation of 0.5 · √(2/3) = 0.408.
    assert effect.direct == pytest.approx(0.408, abs=0.03)


def test_cost_is_looked_at_separately() -> None:
    effect = carry_over_of(log_of(campaign(REWARDS, COSTS, follow=0.8), users=6_000), "cost")
    assert effect is not None
    assert effect.carried == pytest.approx(0.327 * 0.2, abs=0.015)


def test_one_step_has_no_carry_over() -> None:
    assert carry_over_of(log_of(campaign(REWARDS, COSTS, steps=1), users=500), "reward") is None


@pytest.mark.parametrize(
    ("carried", "p_value", "strength"),
    [(0.5, 0.5, "none"), (0.05, 1e-9, "weak"), (0.2, 1e-9, "moderate"), (0.3, 1e-9, "strong")],
)
def test_strength_in_words(carried: float, p_value: float, strength: str) -> None:
    assert CarryOver("reward", 1.0, carried, p_value).strength == strength
