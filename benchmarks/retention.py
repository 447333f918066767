"""Retention: what certified plans earn where users come back or not by the envelope of the day before, each with a
hidden response of their own.

The campaign is that of BCORLE(λ) (Zhang et al., NeurIPS 2021), written from its description. There are 21 envelopes, of
0.1 to 2.1. A user who was there yesterday comes back with a probability that rises with yesterday's envelope; who was
not there comes with the mean of these probabilities. A third of the users hardly ever come back (0 to 0.2), a third
nearly always (0.8 to 1), a third anything; within these limits, 21 draws in rising order are a user's own response,
which nobody sees. A row is a visit: it shows which third, the day, and how often the user got each envelope in the last
30 days and came back the next day; with `--few`, the third and the day alone. Its reward is whether the user comes back
the next day, its cost the envelope. The log chooses evenly for 30 days, after 30 others that only show.

The truth is a simulation of the deployed plan on users whom no log contains; all policies meet the same users and the
same random numbers. Beside the plan stand the best mixture of two envelopes that are the same for everybody, and the
policy that knows the true mean response of each third and looks at one visit only, both at the plan's true cost.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.finite.problem import Value
from redenvelope.fitting.fit import fit
from redenvelope.fitting.settings import FitSettings, Method
from redenvelope.log.log import Log
from redenvelope.log.read import log_from_frame
from redenvelope.plan.plan import Plan
from redenvelope.randomness import draw
from redenvelope.simulate.campaign import bisect_price, climb_envelope

DAYS = 30
AMOUNTS = np.arange(1, 22) / 10
FEW, OUTCOMES = ("kind", "day"), ("action", "propensity", "reward", "cost")
LIMITS = {"rarely": (0.0, 0.2), "any": (0.0, 1.0), "nearly always": (0.8, 1.0)}
"""Limits of the probability to come back, by kind of user."""
POPULATION = 4_000
"""Users on whom the truth is taken."""

Array = NDArray[np.float64]
Choose = Callable[[pl.DataFrame], Array]
"""Visits in, probabilities [visits, envelopes] out."""


class Visits(NamedTuple):
    """The visits of one day."""

    frame: pl.DataFrame
    """The contract's columns, then the features."""
    chosen: Array
    """Probabilities of the envelopes, [visits, envelopes]."""


@dataclass(frozen=True, eq=False)
class Users:
    """Users by their kind, [users], and hidden responses, [users, envelopes]."""

    kind: NDArray[np.intp]
    response: Array

    @classmethod
    def drawn(cls, count: int, seed: int) -> Users:
        """New users."""
        generator = np.random.default_rng([seed, 1])
        kind = generator.integers(0, len(LIMITS), count)
        low, high = np.array(list(LIMITS.values())).T[:, kind, None]
        return cls(kind, np.sort(low + (high - low) * generator.random((count, len(AMOUNTS))), axis=1))

    def visits(self, choose: Choose, seed: int) -> Iterator[Visits]:
        """The campaign under a policy, day by day, after as many days under the logging policy."""
        generator, count = np.random.default_rng([seed, 2]), len(self.kind)
        everybody, envelopes = np.arange(count), len(AMOUNTS)
        got, back = np.zeros((2, count, envelopes), np.int64)
        past: deque[tuple[NDArray[np.intp], NDArray[np.bool_]]] = deque()
        yesterday, step = np.full(count, -1), np.zeros(count, np.int64)
        usual = self.response.mean(axis=1)
        luck = generator.random((2 * DAYS + 1, 2, count))
        for day in range(2 * DAYS):
            comes = np.where(yesterday < 0, usual, self.response[everybody, yesterday])
            here = np.flatnonzero(luck[day, 0] < comes)
            frame = self._frame(here, step[here], day - DAYS, got[here], back[here])
            chosen = evenly(frame) if day < DAYS else choose(frame)
            drawn = draw(chosen, luck[day, 1, here])
            today = np.full(count, -1)
            today[here] = drawn
            tomorrow = luck[day + 1, 0] < np.where(today < 0, usual, self.response[everybody, today])
            returned = (today >= 0) & tomorrow
            _count(got, back, today, returned, 1)
            past.append((today, returned))
            if len(past) > DAYS:
                _count(got, back, *past.popleft(), -1)
            yesterday = today
            if day < DAYS or not len(here):
                continue
            step[here] += 1
            own = pl.DataFrame(
                {
                    "action": AMOUNTS[drawn],
                    "propensity": chosen[np.arange(len(here)), drawn],
                    "reward": returned[here].astype(float),
                    "cost": AMOUNTS[drawn],
                }
            )
            yield Visits(own.hstack(frame), chosen)

    def _frame(
        self,
        here: NDArray[np.intp],
        step: NDArray[np.int64],
        day: int,
        got: NDArray[np.int64],
        back: NDArray[np.int64],
    ) -> pl.DataFrame:
        """What is known of the users who are here, [here] and counts [here, envelopes]."""
        kinds = pl.Series("kind", list(LIMITS)).gather(self.kind[here])
        shown = {"user": here, "step": step, "kind": kinds, "day": np.full(len(here), float(day))}
        for name, counts in (("got", got), ("back after", back)):
            shown |= {f"{name} {amount:.1f}": counts[:, place] * 1.0 for place, amount in enumerate(AMOUNTS)}
        return pl.DataFrame(shown)

    def value(self, choose: Choose, seed: int) -> Value:
        """Mean reward and cost of a policy per user who comes at all, as those of a log do. What a visit earns is taken
        in expectation."""
        totals, comes = np.zeros(2), np.zeros(len(self.kind), bool)
        for frame, chosen in self.visits(choose, seed):
            here = frame["user"].to_numpy()
            comes[here] = True
            totals += (chosen * self.response[here]).sum(), (chosen @ AMOUNTS).sum()
        return Value(totals / comes.sum())


def _count(
    got: NDArray[np.int64], back: NDArray[np.int64], envelope: NDArray[np.intp], returned: NDArray[np.bool_], by: int
) -> None:
    """Add one day's envelopes [users] (−1 for none) and returns [users] to counts [users, envelopes]."""
    here = np.flatnonzero(envelope >= 0)
    got[here, envelope[here]] += by
    back[here, envelope[here]] += by * returned[here]


def evenly(frame: pl.DataFrame) -> Array:
    """The logging policy."""
    return np.full((frame.height, len(AMOUNTS)), 1 / len(AMOUNTS))


def always(place: int) -> Choose:
    """The same envelope for everybody."""
    return lambda frame: np.tile(np.eye(len(AMOUNTS))[place], (frame.height, 1))


def one_step(price: float) -> Choose:
    """The policy that knows the mean response of each kind of user and looks at one visit only: it maximises
    reward − price · cost."""
    rank = np.arange(1, len(AMOUNTS) + 1) / (len(AMOUNTS) + 1)  # the mean of ordered even draws
    kinds = {kind: low + (high - low) * rank for kind, (low, high) in LIMITS.items()}

    def choose(frame: pl.DataFrame) -> Array:
        response = np.array([kinds[kind] for kind in frame["kind"]])
        worth = -AMOUNTS + 0 * response if np.isinf(price) else response - price * AMOUNTS
        return np.eye(len(AMOUNTS))[worth.argmax(axis=1)]

    return choose


def deployed(plan: Plan, row: int) -> Choose:
    """A plan for users who follow one row of its prices."""
    amounts = np.array(plan.catalogue.labels, dtype=float)
    columns = np.abs(amounts - AMOUNTS[:, None]).argmin(axis=1)
    return lambda frame: plan.policy.probabilities(frame, row)[:, columns]


def value_of(plan: Plan, users: Users, seed: int) -> Value:
    """A plan's value, its users drawn to prices once each."""
    values = [users.value(deployed(plan, row), seed).outcomes for row in range(len(plan.policy.pricing.shares))]
    return Value(plan.policy.pricing.mix(np.array(values), axis=0))


def best_fixed(values: list[Value], cost: float) -> float:
    """The most reward that envelopes which are the same for everybody, or a mixture of two, earn at a cost."""

    def price(dual: float) -> Value:
        return max(values, key=lambda own: -own.cost if np.isinf(dual) else own.reward - dual * own.cost)

    return climb_envelope(price, cost).reward


def logged(count: int, seed: int) -> pl.DataFrame:
    """A log of new users."""
    days = [visits.frame for visits in Users.drawn(count, 1_000 + seed).visits(evenly, 1_000 + seed)]
    return pl.concat(days).sort("user", "step")


def run(log: Log, users: Users, seed: int, budget: float, method: Method) -> dict[str, object]:
    """One plan, certified or not, and what it earns in truth beside what is simple at the same cost."""
    began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    plan = fit(log, budget=budget, settings=FitSettings(seed=seed, history="none", method=method))
    value, certificate = value_of(plan, users, seed), plan.certificate
    fixed = [users.value(always(place), seed) for place in range(len(AMOUNTS))]
    return {
        "budget": budget,
        "method": certificate.method,
        "status": certificate.status,
        "spent": value.cost / budget,
        "cost": value.cost,
        "estimate": certificate.cost.estimate,
        "bound": certificate.cost.upper,
        "reward": value.reward,
        "best_fixed": best_fixed(fixed, value.cost),
        "one_step": bisect_price(lambda price: users.value(one_step(price), seed), value.cost).reward,
        "compared": {row.policy: row.cost for row in plan.record.comparison},
        "explore": plan.policy.specification.explore,
        "reasons": [f"{reason.rule}: {reason.message}" for reason in certificate.reasons],
        "processor_seconds": resource.getrusage(resource.RUSAGE_SELF).ru_utime - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--budgets", type=float, nargs="*", default=[0.5, 0.8], help="as shares of the logged cost")
    parser.add_argument("--few", action="store_true", help="rows show the third and the day alone")
    parser.add_argument("--methods", nargs="*", default=["auto"], help="auto, planned, learned, bandit")
    parser.add_argument("--quick", action="store_true", help="3,000 users, one budget")
    options = parser.parse_args()
    if options.quick:
        options.users, options.budgets = 3_000, [0.8]
    for seed in range(options.seeds):
        rows = logged(options.users, seed)
        log = log_from_frame(rows.select("user", "step", *FEW, *OUTCOMES) if options.few else rows)
        cost = float(log.outcomes[1].sum() / log.people)
        users = Users.drawn(POPULATION, seed)
        for share in options.budgets:
            for method in options.methods:
                found = run(log, users, seed, share * cost, method)
                given = {"seed": seed, "users": options.users, "few": options.few, "share": share}
                print(json.dumps(given | found), flush=True)


if __name__ == "__main__":
    main()
