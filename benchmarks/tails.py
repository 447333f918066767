"""How often is a certified cost over the truth where few users cost much, and how often is a tame campaign refused?

One-sided 95 % bounds of a mean cost, without a fit: users cost an exponential amount, a few of them many times as much,
or log-normal amounts. Four in ten users check; a policy follows half of them (weights 0 and 2). A sample is refused
where one user moves the estimate too far, by the rule of `redenvelope.evaluation.confidence.decided_by_few`; with
`--cap`, costs are cut there first, as with `--most-per-user`, and the truth is that of the capped campaign.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from redenvelope.evaluation.confidence import Concentration, Spread, decided_by_few

Draw = Callable[[np.random.Generator, int], np.ndarray]
WEIGHT, CHECKED, CONFIDENCE, TRUTH = 2.0, 0.4, 0.95, 4_000_000


def whales(share: float, times: float) -> Draw:
    """Users who cost an exponential amount, of whom some cost many times as much."""
    return lambda generator, users: (
        generator.exponential(size=users) * np.where(generator.random(users) < share, times, 1.0)
    )


def log_normal(spread: float) -> Draw:
    """Users who cost a log-normal amount."""
    return lambda generator, users: generator.lognormal(0.0, spread, size=users)


FAMILIES: dict[str, Draw] = {
    "exponential": whales(0.0, 1.0),
    **{f"log-normal, σ = {spread:g}": log_normal(spread) for spread in (0.8, 1.3, 2.0)},
    **{f"{share:.2%} × {times:g}": whales(share, times) for share in (0.0005, 0.001, 0.002) for times in (20, 50, 90)},
}


def judged(costs: np.ndarray, truth: float, generator: np.random.Generator) -> tuple[bool, bool]:
    """Whether a sample is refused, and whether its bound is below the truth."""
    checked = costs[: int(CHECKED * len(costs))]
    spread = Spread.of(checked * WEIGHT * (generator.random(len(checked)) < 1 / WEIGHT))
    added = np.maximum(WEIGHT * checked.max(), Concentration.of(costs).influence(spread.mean, np.array(WEIGHT)))
    return decided_by_few(float(added), spread) is not None, bool(spread.upper(CONFIDENCE) < truth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=600, help="of each family and size")
    parser.add_argument("--users", type=int, nargs="+", default=[2_000, 8_000, 40_000])
    parser.add_argument("--cap", type=float, default=np.inf, help="most per user")
    arguments = parser.parse_args()
    for name, draw in FAMILIES.items():
        for users in arguments.users:
            generator = np.random.default_rng(users)
            truth = float(np.minimum(draw(generator, TRUTH), arguments.cap).mean())
            found = np.array(
                [
                    judged(np.minimum(draw(generator, users), arguments.cap), truth, generator)
                    for _ in range(arguments.samples)
                ]
            )
            refused, over = found.T
            print(
                f"{name:20} {users:6,} users: refused {refused.mean():4.0%}, over without the rule {over.mean():5.1%}, "
                f"certified and over {(over & ~refused).mean():5.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
