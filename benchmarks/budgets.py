"""Two budgets, a cap and an eligibility in closed loop: are all budgets kept in truth, and how much is earned of the
optimum that is exact under the same rules?"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
import polars as pl

from redenvelope import FitSettings, Plan, log_from_frame
from redenvelope.dual.column_generation import solve_budgets
from redenvelope.fitting.fit import fit
from redenvelope.models.training import NeuralSettings, TrainingSettings
from redenvelope.simulate.dynamics import EnvelopeParameters, random_parameters
from redenvelope.simulate.envelopes import EnvelopeCampaign, RuledEnvelopes

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

    run = campaign.run(allocate, users, seed)
    return np.stack([run.outcomes, run.errors], axis=1)


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
