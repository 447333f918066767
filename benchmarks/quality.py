"""What a log is worth: the share of the true optimum's gain that a learned plan earns, at equal true cost; and that a
certified plan earns at equal budget, which is what a user gets.

On the envelopes campaign the truth is known exactly. Every learned policy is followed exactly along a ladder
of duals; the two rungs around a budget, mixed once per user, land on it, so that policies are compared at the
same true cost. The share is (reward − cheapest) / (optimum − cheapest). On the two-step problem the
plan is followed at the dual where it costs the budget. `--side-by-side` prints reward against budget, with a
model and without.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments.random_campaigns import random_parameters
from experiments.tabular import fit_tabular

from redenvelope.finite.problem import backward_induction, evaluate
from redenvelope.learning.values_to_go import KnownStates, ValueLearner, ValueSettings
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.models.fit import NeuralFit, fit_neural
from redenvelope.models.responses import STRUCTURES
from redenvelope.models.training import NeuralSettings
from redenvelope.planning.leaf_values import LeafValues
from redenvelope.planning.planner import TreePlanner
from redenvelope.planning.temperature import suggest_temperature
from redenvelope.simulate.dynamics import OUTCOMES, EnvelopeParameters
from redenvelope.simulate.envelopes import EnvelopeCampaign
from redenvelope.simulate.finite import two_step

BUDGET_SHARES = (0.1, 0.25, 0.5)
"""Budgets, as shares of what the uniform policy costs."""
LEAST_SHARES = {5_000: 0.92, 20_000: 0.955, 80_000: 0.97}
DEFAULT = "2 steps and values"
"""What `fit` takes on this campaign."""
TWO_STEP_BUDGET, TWO_STEP_OPTIMUM = 2.9295, 4.5093
RUNGS = 24


@dataclass(frozen=True)
class Stage:
    """A campaign with its exact optimum at each budget, and every row a policy may ever be asked for."""

    campaign: EnvelopeCampaign
    budget_shares: tuple[float, ...] = BUDGET_SHARES

    @cached_property
    def budgets(self) -> NDArray[np.float64]:
        """Mean cost per user that each budget allows, [budgets]."""
        return np.array(self.budget_shares) * self.campaign.uniform().cost

    @cached_property
    def optima(self) -> list:
        """The most that each budget buys."""
        return [self.campaign.optimum(float(budget)) for budget in self.budgets]

    @cached_property
    def bandits(self) -> list:
        """What the bandit that knows the truth earns at each budget."""
        return [self.campaign.bandit(float(budget)) for budget in self.budgets]

    @cached_property
    def duals(self) -> NDArray[np.float64]:
        """Wide enough for policies whose own price of a budget is far from the true one."""
        exact = [optimum.dual for optimum in self.optima]
        return np.geomspace(min(exact) / 6, max(exact) * 6, RUNGS)

    @cached_property
    def questions(self) -> pl.DataFrame:
        """The rows that the uniform policy meets: all that any policy can."""
        frames: list[pl.DataFrame] = []
        actions = len(self.campaign.actions)

        def record(frame: pl.DataFrame) -> NDArray[np.float64]:
            frames.append(frame)
            return np.full((frame.height, actions), 1 / actions)

        self.campaign.value(record)
        return pl.concat(frames)

    def share(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of the optimum's gain over the cheapest policy, [budgets]."""
        base = self.campaign.cheapest().reward
        return (rewards - base) / (np.array([optimum.reward for optimum in self.optima]) - base)

    def earn(self, answers: NDArray[np.floating]) -> NDArray[np.float64]:
        """Exact reward at each budget of the policies that answer `questions` [rows, duals, actions]."""
        place = np.full(int(_keys(self.questions).max()) + 1, -1)
        place[_keys(self.questions)] = np.arange(self.questions.height)
        values = [
            self.campaign.value(lambda frame, rung=rung: answers[place[_keys(frame)], rung])
            for rung in range(answers.shape[1])
        ]
        values.append(self.campaign.cheapest())
        costs, rewards = np.array([(value.cost, value.reward) for value in values]).T
        order = np.argsort(costs)
        return np.interp(self.budgets, costs[order], rewards[order])


def _keys(frame: pl.DataFrame) -> NDArray[np.int64]:
    """One number a row: user, step and dynamic state."""
    outcome = frame["last_outcome"].cast(pl.Enum(OUTCOMES)).to_physical().to_numpy().astype(np.int64)
    number = frame["user"].to_numpy().astype(np.int64)
    for name, levels in (("step", 64), ("habit", 8), ("fatigue", 8)):
        number = number * levels + frame[name].to_numpy()
    return number * len(OUTCOMES) + outcome


def learn(campaign: EnvelopeCampaign, users: int, seed: int) -> tuple[Encoder, Examples]:
    log = log_from_frame(campaign.log(users, seed))
    encoder = Encoder.fit(log)
    return encoder, Examples.from_log(log, encoder)


def answers(stage: Stage, encoder: Encoder, planner: TreePlanner) -> NDArray[np.floating]:
    states, _ = encoder.encode_frame(stage.questions)
    steps_left = stage.campaign.steps - stage.questions["step"].to_numpy()
    return planner.values(states, steps_left, stage.duals).probabilities


def learn_values(planner: TreePlanner, examples: Examples, seed: int) -> LeafValues:
    """Values to go of the best policies, as `fit` learns them."""
    layout = examples.layout
    step = np.round(examples.states[:, layout.step] / layout.step_change).astype(np.int64)
    logged = KnownStates(examples.states, planner.steps - step)
    return ValueLearner.prepare(planner, logged, layout, ValueSettings(), seed).optimal(planner)


def first_values(stage: Stage, encoder: Encoder, fit: NeuralFit) -> NDArray[np.floating]:
    """Values of the first step's actions without entropy at the middle budget's true dual, [users, actions]."""
    first = stage.questions.filter(pl.col("step") == 0)
    states, _ = encoder.encode_frame(first)
    planner = TreePlanner(fit.model, stage.campaign.steps, 0.0, stage.campaign.steps)
    return planner.values(states, stage.campaign.steps, [stage.optima[1].dual]).q[:, 0]


def variants(stage: Stage, options: argparse.Namespace) -> dict[str, tuple[NeuralSettings, int, Callable, bool]]:
    """Name -> settings, horizon, the temperature from the values of the first step, and whether values to go follow."""
    steps, plain = stage.campaign.steps, NeuralSettings()
    if options.steps:
        plain = replace(plain, training=replace(plain.training, steps=options.steps))
    none, rule = (lambda q: 0.0), suggest_temperature
    chosen = {
        "2 steps and values": (plain, 2, none, True),
        "1 step and values": (plain, 1, none, True),
        "tree of 3 steps": (plain, 3, none, False),
        "tree to the end": (plain, steps, none, False),
        "bandit": (plain, 1, none, False),
    }
    if options.parts:
        chosen |= {
            f"structure {name}": (replace(plain, reward_structure=name, cost_structure=name), steps, none, False)
            for name in STRUCTURES
        }
        chosen["one member"] = (replace(plain, members=1), steps, none, False)
        chosen |= {
            "temperature by rule": (plain, steps, rule, False),
            "temperature 0.01": (plain, steps, lambda q: 0.01, False),
            "tree of 2 steps": (plain, 2, none, False),
        }
    return chosen


def run_envelopes(stage: Stage, users: int, seed: int, options: argparse.Namespace) -> Iterable[dict]:
    encoder, examples = learn(stage.campaign, users, seed)
    fits: dict[NeuralSettings, tuple[NeuralFit, float]] = {}
    learned: dict[NeuralSettings, LeafValues] = {}
    for name, (settings, horizon, rule, ends) in variants(stage, options).items():
        if settings not in fits:
            start = time.perf_counter()
            fit = fit_neural(examples, settings, seed=seed)
            fits[settings] = fit, time.perf_counter() - start
        fit, seconds = fits[settings]
        temperature = rule(first_values(stage, encoder, fit))
        planner = TreePlanner(fit.model, horizon, temperature, stage.campaign.steps)
        if ends:
            start = time.perf_counter()
            if settings not in learned:
                learned[settings] = learn_values(planner, examples, seed)
            planner, seconds = replace(planner, leaf_values=learned[settings]), time.perf_counter() - start
        shares = stage.share(stage.earn(answers(stage, encoder, planner)))
        yield {
            "policy": name,
            "users": users,
            "seed": seed,
            "shares": shares.tolist(),
            "seconds": seconds,
            "epochs": fit.epochs,
            "structures": [choice.structure for choice in fit.structures],
            "temperature": temperature,
        }


def run_two_step(kind: str, users: int, seed: int) -> tuple[float, float]:
    """True cost and reward of the plan that, by the learned model's own account, costs the budget."""
    campaign = two_step()
    log = log_from_frame(campaign.log(users, seed))
    encoder = Encoder.fit(log)
    examples = Examples.from_log(log, encoder)
    problem = campaign.problem
    rows = [[0], list(range(1, problem.states))]  # states that a step can meet
    frames = [
        pl.DataFrame({"step": [step] * len(met), "state": [f"s{row}" for row in met]}) for step, met in enumerate(rows)
    ]
    states = [encoder.encode_frame(frame)[0] for frame in frames]
    duals = np.linspace(0.0, 3.0, 301)
    if kind == "tabular":
        model = fit_tabular(examples)
        plans = backward_induction(model.problem, duals)
        believed = plans.outcomes[1]
        answers = [plans.probabilities[:, step, model.index(met)] for step, met in enumerate(states)]
    else:
        planner = TreePlanner(fit_neural(examples, seed=seed).model, 2, 0.0, 2)
        believed = planner.expected(states[0], 2, duals)[1, 0]
        answers = [planner.values(met, 2 - step, duals).probabilities.swapaxes(0, 1) for step, met in enumerate(states)]
    tables = np.full((len(duals), 2, problem.states, problem.actions), 1 / problem.actions)
    for step, met in enumerate(rows):
        tables[:, step, met] = answers[step]
    # The two plans around the budget, mixed once per user.
    cheap = int(np.flatnonzero(believed <= TWO_STEP_BUDGET)[0])
    share = (TWO_STEP_BUDGET - believed[cheap]) / (believed[cheap - 1] - believed[cheap])
    low, high = (evaluate(problem, tables[place]).outcomes for place in (cheap, cheap - 1))
    reward, cost = low + share * (high - low)
    return float(cost), float(reward)


def interval(values: list[float]) -> str:
    """Mean and its 95 % interval over seeds, Student's t."""
    quantiles = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 10: 2.26}
    if len(values) < 2:
        return f"{np.mean(values):.3f}"
    width = quantiles.get(len(values), 2.0) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {width:.3f}"


def report(stage: Stage, results: list[dict]) -> None:
    by: dict[tuple[int, str], list[list[float]]] = {}
    for result in results:
        by.setdefault((result["users"], result["policy"]), []).append(result["shares"])
    print("\nshare of the optimum's gain at the three budgets, and their mean (95 % intervals over seeds)")
    for (users, policy), shares in sorted(by.items()):
        table = np.array(shares)
        columns = [interval(table[:, place].tolist()) for place in range(table.shape[1])]
        print(f"{users:>7,} users  {policy:<30}{'  '.join(columns)}   mean {interval(table.mean(axis=1).tolist())}")
    truth = stage.share(np.array([bandit.reward for bandit in stage.bandits]))
    print(f"the bandit that knows the truth: {np.round(truth, 3).tolist()}")
    for users, least in LEAST_SHARES.items():
        if (users, DEFAULT) in by:
            print(f"{DEFAULT} at {users:,} users: {np.mean(by[users, DEFAULT]):.3f} (bar: at least {least})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[5_000, 20_000, 80_000])
    parser.add_argument("--seeds", type=int, default=5, help="logs drawn for each size")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--parts", action="store_true", help="also what each structure, the ensemble… add")
    parser.add_argument("--campaign", type=int, help="a random variant of the campaign, by its number")
    parser.add_argument("--population", type=int, default=300, help="users on whom the truth is taken")
    parser.add_argument("--steps", type=int, help="training steps, instead of the default")
    parser.add_argument("--two-step", type=int, default=0, metavar="SEEDS", help="the two-step problem as well")
    parser.add_argument("--side-by-side", action="store_true", help="instead: reward by budget, also without a model")
    parser.add_argument("--equal-budget-only", action="store_true", help="only what certified plans earn of a budget")
    parser.add_argument("--equal-cost-only", action="store_true", help="only what plans earn at equal true cost")
    parser.add_argument("--json", action="store_true", help="one line of JSON a result")
    parser.add_argument("--quick", action="store_true", help="one seed of 5,000 users")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.seeds = [5_000], 1
    for kind in ("tabular", "neural") if options.two_step else ():
        found = [run_two_step(kind, 20_000, seed) for seed in range(options.two_step)]
        costs, rewards = (list(column) for column in zip(*found, strict=True))
        errors = np.abs([np.mean(costs) / TWO_STEP_BUDGET - 1, np.mean(rewards) / TWO_STEP_OPTIMUM - 1])
        print(
            f"two-step, {kind}: true cost {interval(costs)} ({errors[0]:.2%} from the budget), "
            f"true reward {interval(rewards)} ({errors[1]:.2%} from the optimum), bar: 1 % each",
            flush=True,
        )
    if not options.sizes:
        return
    if options.side_by_side:
        from sections.side_by_side import run_side_by_side  # it needs this module

        sys.exit(run_side_by_side(options))
    parameters = EnvelopeParameters() if options.campaign is None else random_parameters(options.campaign)
    stage = Stage(EnvelopeCampaign(parameters=parameters, population=options.population))
    from sections.equal_budget import run_equal_budget  # fits, which the rest does not need

    results = []
    for users in options.sizes:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            found = [] if options.equal_budget_only else run_envelopes(stage, users, seed, options)
            certified = [] if options.equal_cost_only else [run_equal_budget(stage, users, seed)]
            for result in (*found, *certified):
                results.append(result)
                line = json.dumps(result) if options.json else _line(result)
                print(line, flush=True)
    report(stage, results)


def _line(result: dict) -> str:
    shares = " ".join(f"{share:.3f}" for share in result["shares"])
    start = f"{result['users']:>7,} users  seed {result['seed']}  {result['policy']:<24}{shares}"
    if "spent" not in result:
        return f"{start}  {result['seconds']:.0f} s"
    spent = " ".join(f"{share:.1%}" for share in result["spent"])
    return f"{start}  spent {spent}, {sum(result['certified'])} of {len(result['certified'])} certified"


if __name__ == "__main__":
    sys.exit(main())
