"""A campaign made of a family's laws: its log, and the truth about a policy that is deployed in it.

The truth is a Monte Carlo: a policy is asked for its probabilities step by step, with the rows that it has seen of the
same users before, and users move on by the action that is drawn. What a step costs is added as the mean over actions
given all that is true of the user, so that only the walk itself is noise: with 40,000 users the standard error of the
cost is a few tenths of a percent (it stands with every campaign as `truth_error`), where bounds are several percent
wide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.simulate.campaign import ask, draw_actions
from trials.families.laws import FloatArray, Laws, State, only

Decide = Callable[[pl.DataFrame, pl.DataFrame], NDArray[Any]]
"""A policy as deployed: a frame of `user`, `step` and the features, and the earlier rows of the same users (`user`,
`step`, `action`, `reward`, `cost`; none at the first step) in, probabilities [rows, actions] out."""

TRUTH_USERS = 40_000
_LOG, _TRUTH = 11, 12
_OUTCOMES = ("reward", "cost")


class Truth(NamedTuple):
    """What a policy earns and costs a user, and how exactly that is known."""

    reward: float
    cost: float
    cost_error: float


@dataclass(frozen=True)
class SimulatedCampaign:
    """Users under a family's laws."""

    laws: Laws

    @property
    def actions(self) -> tuple[str, ...]:
        """Labels of the actions, by increasing cost."""
        return self.laws.actions

    @property
    def steps(self) -> int:
        """Decisions per user."""
        return self.laws.steps

    def log(self, users: int, seed: int) -> pl.DataFrame:
        """The contract's columns, then the features; users who leave have fewer rows."""
        generator = np.random.default_rng([seed, _LOG])
        state, user, frames = self.laws.start(users, generator, rare=False), np.arange(users), []
        for step in range(self.steps):
            probabilities = self.laws.logger(state, step)
            action = draw_actions(probabilities, generator)
            propensity = self.laws.noted(probabilities, state, step)[np.arange(len(user)), action]
            happened = self.laws.happen(state, step, action, generator)
            outcomes = {"propensity": propensity, "reward": happened.reward, "cost": happened.cost}
            taken = [self._labels(action), *(pl.Series(name, column) for name, column in outcomes.items())]
            frames.append(self._named(user, step).with_columns(taken).hstack(self._shown(state, step)))
            user, state = user[happened.stays], only(happened.state, happened.stays)
        return pl.concat(frames).sort("user", "step")

    def truth(self, decide: Decide, users: int = TRUTH_USERS, seed: int = 7) -> Truth:
        """What a policy really earns and costs."""
        generator = np.random.default_rng([seed, _TRUTH])
        state = self.laws.start(users, generator, rare=True)
        weight = np.asarray(state.get("weight", np.ones(users)), dtype=np.float64)
        user, totals, past = np.arange(users), np.zeros((2, users)), self._nothing()
        for step in range(self.steps):
            frame = self._named(user, step).hstack(self._shown(state, step))
            probabilities = ask(lambda rows, before=past: decide(rows, before), frame, len(self.actions))
            totals[:, user] += (probabilities * self.laws.means(state, step)).sum(axis=2)
            action = draw_actions(probabilities, generator)
            happened = self.laws.happen(state, step, action, generator)
            rows = self._named(user, step).with_columns(
                self._labels(action),
                pl.Series("reward", happened.reward),
                pl.Series("cost", happened.cost),
            )
            user, state = user[happened.stays], only(happened.state, happened.stays)
            # Of users who have left nobody will be asked again.
            past = pl.concat([past, rows]).filter(pl.col("user").is_in(pl.Series(user).implode()))
        return _weighted(totals, weight)

    @cached_property
    def cheapest(self) -> Truth:
        """Always the first action."""
        return self.truth(self._always(np.eye(len(self.actions))[0]))

    @cached_property
    def uniform(self) -> Truth:
        """Every action equally likely."""
        return self.truth(self._always(np.full(len(self.actions), 1 / len(self.actions))))

    def _always(self, probabilities: FloatArray) -> Decide:
        return lambda frame, past: np.tile(probabilities, (frame.height, 1))

    def _named(self, user: NDArray[np.int64], step: int) -> pl.DataFrame:
        return pl.DataFrame({"user": user, "step": np.full(len(user), step)})

    def _labels(self, action: NDArray[np.intp]) -> pl.Series:
        return pl.Series("action", self.actions).gather(action)

    def _shown(self, state: State, step: int) -> pl.DataFrame:
        """The features; what is no number in an array is missing in a log."""
        return pl.DataFrame(self.laws.features(state, step)).fill_nan(None)

    def _nothing(self) -> pl.DataFrame:
        """The past of users who have none."""
        labels = pl.Series("action", [], dtype=pl.String)
        return self._named(np.arange(0), 0).with_columns(
            labels, *(pl.Series(name, [], dtype=pl.Float64) for name in _OUTCOMES)
        )


def _weighted(totals: FloatArray, weight: FloatArray) -> Truth:
    """Means of totals [2, users] of users who stand for so many each, [users]."""
    shares = weight / weight.sum()
    reward, cost = totals @ shares
    return Truth(float(reward), float(cost), float(np.sqrt((shares**2) @ (totals[1] - cost) ** 2)))


__all__ = ["TRUTH_USERS", "Decide", "SimulatedCampaign", "State", "Truth"]
