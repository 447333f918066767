"""What a family of campaigns has to say about itself: who its users are, what they show, and what becomes of them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
State = dict[str, NDArray[Any]]
"""All there is to know of users, shown or hidden, by name, each [users]. `weight`, if it is there, says for how many
users each of them stands."""


class Happened(NamedTuple):
    """One step of some users, each [users]."""

    reward: FloatArray
    cost: FloatArray
    state: State
    stays: NDArray[np.bool_]
    """Who has a next step."""


class Laws(Protocol):
    """One campaign of a family."""

    @property
    def actions(self) -> tuple[str, ...]:
        """Labels of the actions, by increasing cost."""

    @property
    def steps(self) -> int:
        """Decisions per user; `step` counts from 0."""

    def start(self, users: int, generator: np.random.Generator, rare: bool) -> State:
        """New users. With `rare`, those few who decide the truth may be drawn more often, and weigh less for it."""

    def features(self, state: State, step: int) -> dict[str, NDArray[Any]]:
        """The feature columns that the log shows, each [users]."""

    def logger(self, state: State, step: int) -> FloatArray:
        """Probability of each action in the log, [users, actions]."""

    def noted(self, probabilities: FloatArray, state: State, step: int) -> FloatArray:
        """The propensities that the log writes down for them, [users, actions]."""

    def means(self, state: State, step: int) -> FloatArray:
        """Mean reward and cost of the step for every action, [2, users, actions]."""

    def happen(self, state: State, step: int, action: NDArray[np.intp], generator: np.random.Generator) -> Happened:
        """One step drawn at random."""


def only(state: State, chosen: NDArray[Any]) -> State:
    """Some of the users."""
    return {name: values[chosen] for name, values in state.items()}
