"""A table without columns for what happened before: what the log itself makes up for, at equal true cost.

The envelopes campaign keeps habit, fatigue and the last outcome of a user in its table. Here a plan is learned with
these columns and without, and without them also with states that tell the history of the log. Every policy is followed
along a ladder of prices on the same users with the same random numbers, and compared where it costs the budget; the
share is (reward − cheapest) / (optimum − cheapest). No history tells the habit that users come with, and the logger
looked at the columns that are dropped: `--blind-logger` takes the second away. `--stateless` asks the same of a
campaign without carry-over, where the history must not be taken. The limit beside the figure is exact: what a planner
keeps who knows the campaign's laws and believes by Bayes' rule what a history tells (see sections/belief.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.fitting.learn import LearnedModel, learn_model
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.read import log_from_frame
from redenvelope.planning.planner import TreePlanner
from redenvelope.progress import Stages
from redenvelope.simulate.campaign import draw_actions
from redenvelope.simulate.dynamics import OUTCOMES, EnvelopeParameters, state_parts, state_rows
from redenvelope.simulate.envelopes import EnvelopeCampaign
from sections.belief import history_limit

DYNAMIC = ("habit", "fatigue", "last_outcome")
BUDGET_SHARES = np.array([0.1, 0.25, 0.5])
RUNGS = 8
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Walked:
    """A campaign whose policies are followed user by user."""

    campaign: EnvelopeCampaign
    seed: int = 7

    def follow(self, learned: LearnedModel, dual: float) -> tuple[float, float]:
        """Mean cost and reward of the plan at a price; what a step brings is averaged over its chances."""
        campaign, users = self.campaign, self.campaign.users
        dynamics, everyone = campaign.dynamics, np.arange(len(users))
        generator = np.random.default_rng(self.seed)
        planner = TreePlanner(learned.neural.model, campaign.steps, 0.0, campaign.steps)
        state = state_rows(users.habits, users.fatigues, np.zeros_like(users.habits))
        past: list[pl.DataFrame] = []
        totals = np.zeros(2)
        for step in range(campaign.steps):
            frame = self._frame(state, step)
            told = pl.concat(past) if past else None
            states, _ = learned.encoder.encode_frame(frame, told)
            found = planner.decided(states, campaign.steps - step, [dual]).probabilities[:, 0].astype(np.float64)
            chances = found / found.sum(axis=1, keepdims=True)
            active = dynamics.activities(users)[everyone, state]
            cost = (chances * active * users.consumption[:, None]) @ dynamics.amounts
            totals += (chances * active).sum(), cost.sum()
            action = draw_actions(chances, generator)
            happened, used, state = dynamics.happen(users, state, action, generator)
            labels = pl.Series("action", campaign.actions).gather(action)
            past.append(
                frame.select("user", "step").with_columns(
                    labels,
                    pl.Series("reward", happened.astype(np.float64)),
                    pl.Series("cost", used * dynamics.amounts[action]),
                )
            )
        reward, cost = totals / len(users)
        return cost, reward

    def _frame(self, state: NDArray[np.intp], step: int) -> pl.DataFrame:
        habit, fatigue, outcome = state_parts(state)
        users = np.arange(len(state))
        known = {"user": users, "step": np.full(len(state), step), "habit": habit, "fatigue": fatigue}
        last = pl.Series("last_outcome", OUTCOMES).gather(outcome)
        return pl.DataFrame(known).with_columns(last).hstack(self.campaign.users.features)

    def shares(self, learned: LearnedModel) -> FloatArray:
        """Share of the optimum's gain at each budget, [budgets]."""
        campaign = self.campaign
        budgets = BUDGET_SHARES * campaign.uniform().cost
        optima = [campaign.optimum(float(budget)) for budget in budgets]
        exact = [optimum.dual for optimum in optima]
        cheapest = campaign.cheapest()
        points = [(cheapest.cost, cheapest.reward)]
        points += [self.follow(learned, dual) for dual in np.geomspace(min(exact) / 4, max(exact) * 4, RUNGS)]
        costs, rewards = np.array(sorted(points)).T
        best = np.array([optimum.reward for optimum in optima])
        return (np.interp(budgets, costs, rewards) - cheapest.reward) / (best - cheapest.reward)


def limit_of(campaign: EnvelopeCampaign) -> FloatArray:
    """Share of the gain with the columns that the best policy keeps that looks at histories, [budgets]."""
    budgets = BUDGET_SHARES * campaign.uniform().cost
    exact = [campaign.optimum(float(budget)).dual for budget in budgets]
    return history_limit(campaign, budgets, np.geomspace(min(exact) / 3, max(exact) * 3, 12)).kept


def stateless() -> EnvelopeParameters:
    """The same campaign without anything carried over."""
    effects = ("habit_effect", "fatigue_effect", "fatigue_decay", "ignored_effect", "used_effect")
    habits = {"logging_habit": 0.0, "logging_fatigue": 0.0}
    return replace(EnvelopeParameters(), **dict.fromkeys(effects, 0.0), **habits)


def blind_logger() -> EnvelopeParameters:
    """The same campaign, whose logger did not look at the columns either: without them, nothing is confounded."""
    return replace(EnvelopeParameters(), logging_habit=0.0, logging_fatigue=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--population", type=int, default=500, help="users who are followed")
    parser.add_argument("--believers", type=int, default=100, help="users for whom the limit is computed")
    parser.add_argument("--stateless", action="store_true", help="a campaign without carry-over")
    parser.add_argument("--blind-logger", action="store_true", help="a logger that did not look at the columns either")
    parser.add_argument("--quick", action="store_true", help="one log of 8,000 users")
    options = parser.parse_args()
    if options.quick:
        options.users, options.seeds, options.believers = 8_000, 1, 20
    parameters = EnvelopeParameters()
    if options.stateless or options.blind_logger:
        parameters = stateless() if options.stateless else blind_logger()
    walked = Walked(EnvelopeCampaign(parameters=parameters, population=options.population))
    found: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        frame = walked.campaign.log(options.users, seed)
        variants = {
            "with the columns": (frame, "auto"),
            "without, the log tells": (frame.drop(DYNAMIC), "auto"),
            "without, nothing told": (frame.drop(DYNAMIC), "none"),
        }
        for name, (table, history) in variants.items():
            start = time.perf_counter()
            learned = learn_model(log_from_frame(table), FitSettings(history=history, seed=seed), Stages(None))
            seconds = time.perf_counter() - start
            share = walked.shares(learned)
            told = "history told" if learned.encoder.history is not None else "no history"
            gains = {} if learned.history is None else {k: round(v, 1) for k, v in learned.history.gains.items()}
            print(f"seed {seed}  {name:<24}{np.round(share, 3).tolist()}  {told} {gains}  {seconds:.0f} s", flush=True)
            found.setdefault(name, []).append(float(share.mean()))
    for name, values in found.items():
        print(f"{name:<24}{np.mean(values):.3f} of the optimum's gain")
    whole = np.mean(found["with the columns"])
    limit = limit_of(EnvelopeCampaign(parameters=parameters, population=options.believers))
    print(
        f"kept without the columns: {np.mean(found['without, the log tells']) / whole:.3f} of the gain with them; "
        f"the limit of any history is {limit.mean():.3f} {np.round(limit, 3).tolist()}"
    )


if __name__ == "__main__":
    sys.exit(main())
