"""Small campaigns whose audit is known beforehand."""

import numpy as np

from redenvelope import FiniteCampaign, FiniteProblem, Log, log_from_frame
from redenvelope.audit.effects import (
    ActionEffect,
    CarryOver,
    action_effects,
    carry_overs,
    carry_squares,
    carry_sums,
    effect_squares,
    effect_sums,
)
from redenvelope.audit.overlap import (
    Calibration,
    StepOverlap,
    calibration,
    calibration_sums,
    overlap_by_step,
    overlap_sums,
)

UNIFORM_3 = np.full((2, 3), 1 / 3)
SKEWED_3 = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])


def campaign(
    rewards: object, costs: object, behaviour: np.ndarray = UNIFORM_3, follow: float = 0.0, steps: int = 4
) -> FiniteCampaign:
    """Two states, three actions; with `follow` the last action leads to state 1, otherwise a coin decides."""
    coin = np.full((2, 3, 2), 0.5)
    pulled = coin.copy()
    pulled[:, 2], pulled[:, 0] = [0.0, 1.0], [1.0, 0.0]
    problem = FiniteProblem(
        np.asarray(rewards, float),
        np.asarray(costs, float),
        (1 - follow) * coin + follow * pulled,
        np.array([0.5, 0.5]),
        steps,
    )
    return FiniteCampaign(problem, behaviour=behaviour)


def log_of(source: FiniteCampaign, users: int = 4_000, seed: int = 0) -> Log:
    return log_from_frame(source.log(users, seed))


def effects_of(log: Log) -> tuple[ActionEffect, ...]:
    """What the audit says about each action of a log in one part."""
    sums = effect_sums(log)
    rows = np.bincount(log.action, minlength=len(log.catalogue))
    return action_effects(log.catalogue.labels, rows, sums, effect_squares(log, np.nan_to_num(sums.means)))


def carry_over_of(log: Log, outcome: str) -> CarryOver | None:
    """What the audit says about an outcome's carry-over, if anything."""
    sums = carry_sums(log)
    found = carry_overs(sums, carry_squares(log, sums))
    return next((effect for effect in found if effect.outcome == outcome), None)


def calibration_of(log: Log) -> tuple[Calibration, ...]:
    """Whether the propensities of each action add up."""
    return calibration(log.catalogue.labels, calibration_sums(log), len(log))


def overlaps_of(log: Log, action: int) -> tuple[StepOverlap, ...]:
    """How many users are left to speak for one fixed action."""
    return overlap_by_step(overlap_sums(log, action, int(log.lengths.max())))
