"""Two budgets, a cap and an eligibility in closed loop: are all budgets kept in truth, and how much is earned of the
optimum that is exact under the same rules?"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments.random_campaigns import random_parameters

from redenvelope import FitSettings, Plan, log_from_frame
from redenvelope.dual.column_generation import solve_budgets
from redenvelope.errors import UsageError
from redenvelope.fitting.fit import fit
from redenvelope.models.training import NeuralSettings, TrainingSettings
from redenvelope.simulate.campaign import Run, summarise_run
from redenvelope.simulate.dynamics import EnvelopeParameters, EnvelopeUsers, state_rows
from redenvelope.simulate.envelopes import EnvelopeCampaign, RuledEnvelopes, envelope_frame

Allocate = Callable[[pl.DataFrame, pl.DataFrame], pl.Series]
"""A policy as deployed: users at a step (user, step and features) and their earlier steps (user, step, action, reward,
cost) in, the label of the action that each gets out."""
PAST = {"user": pl.Int64, "step": pl.Int64, "action": pl.String, "reward": pl.Float64, "cost": pl.Float64}

# Of what a plan without budgets would use: money is scarce, envelopes less so, and both bind.
SHARES = (0.2, 0.55)


@dataclass(frozen=True)
class Outcome:
    """One campaign: what was promised, and what came of it."""

    certified: bool
    kept: bool
    """Whether every budget is kept in truth, up to two standard errors of the simulated truth."""
    spent: tuple[float, ...]
    """True cost of each budget as a share of it."""
    gain: float | None
    """Share of the optimum's gain over sending nothing; None where nobody asked for the optimum."""


def campaign_of(seed: int, population: int) -> RuledEnvelopes:
    """The usual campaign for seed 0, else one with coefficients that nobody chose."""
    parameters = EnvelopeParameters() if seed == 0 else random_parameters(seed)
    envelopes = EnvelopeCampaign(parameters, population=population, population_seed=seed)
    free = RuledEnvelopes(envelopes).price([[0.0, 0.0]])[1:, 0]
    limits = (float(SHARES[0] * free[0]), float(SHARES[1] * free[1]))
    return RuledEnvelopes(envelopes, limits=limits)


def followed(campaign: RuledEnvelopes, plan: Plan, users: int, seed: int) -> np.ndarray:
    """True reward and costs of a plan, [outcomes, (mean, error)]: decided as it is deployed, step after step."""

    def allocate(frame: pl.DataFrame, past: pl.DataFrame) -> pl.Series:
        return plan.allocate(frame, seed, past)[0]["action"]

    run = deploy(campaign, allocate, users, seed)
    return np.stack([run.outcomes, run.errors], axis=1)


def deploy(campaign: RuledEnvelopes, allocate: Allocate, users: int, seed: int) -> Run:
    """Let a policy act on `users` users of the population; outcomes are expectations at the states they reach.

    A policy that breaks a rule is refused.
    """
    envelopes, generator = campaign.envelopes, np.random.default_rng([seed, 4])
    drawn = envelopes.users.take(np.resize(np.arange(len(envelopes.users)), users))
    everyone, dynamics = np.arange(users), envelopes.dynamics
    state = state_rows(drawn.habits, drawn.fatigues, np.zeros_like(drawn.habits))
    totals, given, past = np.zeros((3, users)), np.zeros(users, dtype=int), pl.DataFrame(schema=PAST)
    for step in range(campaign.steps):
        frame = envelope_frame(drawn, everyone, everyone, np.full(users, step), state)
        labels = allocate(frame, past).cast(pl.String)
        action = labels.replace_strict(list(campaign.actions), list(range(len(campaign.actions)))).to_numpy()
        given += np.isin(action, campaign.caps.large)
        _refuse_broken(campaign, drawn, action, given)
        chance = dynamics.activity(drawn, state, action)
        totals += chance, chance * drawn.consumption * dynamics.amounts[action], dynamics.sent[action]
        active, used, state = dynamics.happen(drawn, state, action, generator)
        rows = {"user": everyone, "step": np.full(users, step), "action": labels, "reward": active.astype(float)}
        past = pl.concat([past, pl.DataFrame(rows | {"cost": used * dynamics.amounts[action]})])
    return summarise_run(totals)


def _refuse_broken(campaign: RuledEnvelopes, users: EnvelopeUsers, action: np.ndarray, given: np.ndarray) -> None:
    if (given > campaign.most).any():
        raise UsageError(f"a policy gave a user more than {campaign.most} large envelopes")
    if ((action == len(campaign.actions) - 1) & ~campaign.caps.entitled(users)).any():
        raise UsageError("a policy gave the largest envelope to a user who may not get it")


def closed_loop(seed: int, users: int, population: int, repeats: int, settings: FitSettings, optimum: bool) -> Outcome:
    """Log, fit, deploy; with the optimum, which takes longer than all of that."""
    campaign = campaign_of(seed, population)
    log = log_from_frame(campaign.log(users, seed + 1_000))
    plan = fit(log, campaign=campaign.rules, settings=settings)
    truth = followed(campaign, plan, population * repeats, seed)
    limits = np.array(campaign.limits)
    return Outcome(
        certified=plan.certificate.is_certified,
        kept=bool((truth[1:, 0] <= limits + 2 * truth[1:, 1]).all()),
        spent=tuple((truth[1:, 0] / limits).tolist()),
        gain=_gain(campaign, float(truth[0, 0])) if optimum else None,
    )


def _gain(campaign: RuledEnvelopes, reward: float) -> float:
    nothing, best = campaign.cheapest().reward, solve_budgets(campaign.price, campaign.limits).reward
    return float((reward - nothing) / (best - nothing))


def main() -> None:
    """Run the campaigns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=40_000)
    parser.add_argument("--campaigns", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--population", type=int, default=1_500, help="users that the truth is of")
    parser.add_argument("--repeats", type=int, default=2, help="how often each user of the population is followed")
    parser.add_argument("--explore", type=float, default=0.0, help="share of decisions by chance; the optimum has none")
    parser.add_argument("--optima", type=int, help="campaigns whose optimum is computed, the first; all without it")
    parser.add_argument("--small", action="store_true", help="one small network instead of an ensemble")
    asked = parser.parse_args()
    neural = NeuralSettings()
    if asked.small:
        neural = NeuralSettings(members=1, training=TrainingSettings(steps=1_500))
    settings = FitSettings(neural=neural, explore=asked.explore)
    found = []
    for seed in range(asked.first, asked.first + asked.campaigns):
        start = time.perf_counter()
        optimum = asked.optima is None or len(found) < asked.optima
        own = closed_loop(seed, asked.users, asked.population, asked.repeats, settings, optimum)
        found.append(own)
        spent = " and ".join(f"{share:.1%}" for share in own.spent)
        print(
            f"campaign {seed}: {'certified' if own.certified else 'refused'}, spent {spent} of its budgets in truth"
            f"{'' if own.kept else ', over'}{'' if own.gain is None else f', gain {own.gain:.3f} of the optimum'} "
            f"({time.perf_counter() - start:.0f} s)",
            flush=True,
        )
    sure = [own for own in found if own.certified]
    kept = sum(own.kept for own in sure)
    print(f"\n{len(sure)} of {len(found)} certified; all budgets kept in truth in {kept} of them")
    if sure:
        spent = np.mean([own.spent for own in sure], axis=0)
        print(f"spent {', '.join(f'{share:.1%}' for share in spent)} on average")
    gains = [own.gain for own in sure if own.gain is not None]
    if gains:
        print(f"gain {np.mean(gains):.3f} of the optimum's, in {len(gains)} campaigns")


if __name__ == "__main__":
    main()
