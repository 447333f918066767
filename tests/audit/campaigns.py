"""Small campaigns whose audit is known beforehand."""

import numpy as np

from redenvelope.finite.problem import FiniteProblem
from redenvelope.log.log import Log
from redenvelope.log.read import log_from_frame
from redenvelope.simulate.finite import FiniteCampaign

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
