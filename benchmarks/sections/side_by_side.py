"""Reward against budget, with a model and without, side by side and at equal true cost: the paper's figure."""

from __future__ import annotations

import argparse

import numpy as np
from experiments.random_campaigns import random_parameters
from numpy.typing import NDArray

from quality import BUDGET_SHARES, Stage, answers, interval, learn
from redenvelope.learning.soft_q import SoftQ
from redenvelope.models.fit import fit_neural
from redenvelope.planning.planner import TreePlanner
from redenvelope.simulate.dynamics import EnvelopeParameters
from redenvelope.simulate.envelopes import EnvelopeCampaign

SHARES = (0.05, *BUDGET_SHARES, 0.75, 1.0)
LEAST_SHARE = 0.80
"""What learning without a model must earn of the optimum's gain at the three budgets of BUDGET_SHARES."""

FloatArray = NDArray[np.float64]


def rewards(stage: Stage, users: int, seed: int) -> dict[str, FloatArray]:
    """True reward at each budget of every way to use the log, [budgets]."""
    encoder, examples = learn(stage.campaign, users, seed)
    fit = fit_neural(examples, seed=seed)
    states, _ = encoder.encode_frame(stage.questions)
    steps = stage.campaign.steps
    steps_left = steps - stage.questions["step"].to_numpy()
    values = SoftQ.prepare(examples, seed=seed).learn_all()
    return {
        "bandit": stage.earn(answers(stage, encoder, TreePlanner(fit.model, 1, 0.0, steps))),
        "learned": stage.earn(values.values(states, steps_left, stage.duals).probabilities),
        "planned": stage.earn(answers(stage, encoder, TreePlanner(fit.model, steps, 0.0, steps))),
    }


def table(stage: Stage, title: str, found: dict[str, list[FloatArray]]) -> None:
    """Rewards and, in brackets, shares of the optimum's gain; means over the logs."""
    best = np.array([optimum.reward for optimum in stage.optima])
    print(f"\n{title}\n{'budget':>8}{''.join(f'{name:>17}' for name in found)}{'optimum':>10}")
    for place, budget in enumerate(stage.budgets):
        cells = []
        for rows in found.values():
            reward = float(np.mean([row[place] for row in rows]))
            share = float(np.mean([stage.share(row)[place] for row in rows]))
            cells.append(f"{reward:>9.4f} ({share:.3f})")
        print(f"{budget:>8.3f}{''.join(f'{cell:>17}' for cell in cells)}{best[place]:>10.4f}", flush=True)


def run_side_by_side(options: argparse.Namespace) -> str | None:
    """Print the tables; what falls short, in words, or None."""
    parameters = EnvelopeParameters() if options.campaign is None else random_parameters(options.campaign)
    stage = Stage(EnvelopeCampaign(parameters=parameters, population=options.population), SHARES)
    uniform = stage.campaign.uniform()
    print(f"logged: cost {uniform.cost:.3f}, reward {uniform.reward:.4f}; cheapest: {stage.campaign.cheapest()}")
    short = []
    for users in options.sizes:
        found: dict[str, list[FloatArray]] = {}
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for name, earned in rewards(stage, users, seed).items():
                found.setdefault(name, []).append(earned)
        table(stage, f"{users:,} logged users, {options.seeds} log(s): true reward (share of the gain)", found)
        three = [SHARES.index(share) for share in BUDGET_SHARES]
        by_log = np.array([stage.share(row)[three] for row in found["learned"]])
        columns = "  ".join(interval(column.tolist()) for column in by_log.T)
        print(f"without a model, at budgets of {BUDGET_SHARES} of the logged cost: {columns} (bar: {LEAST_SHARE})")
        if users >= 80_000 and by_log.mean(axis=0).min() < LEAST_SHARE:
            short.append(f"{users:,} users")
    return f"below the bar: {', '.join(short)}" if short else None
