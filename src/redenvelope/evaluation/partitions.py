"""Partitions of users, and passes over them: work on each batch of users, results merged in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from redenvelope import randomness as chance
from redenvelope.engine.engine import Engine, LocalEngine
from redenvelope.errors import UsageError
from redenvelope.evaluation.data import OffPolicyData

Sums = TypeVar("Sums")
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Partitions:
    """The evidence of all users in parts, each with whole users, to be passed over as often as an estimator needs."""

    parts: Callable[[], Iterable[OffPolicyData]]
    """The evidence of each part, in the same order every time."""
    engine: Engine
    learned: dict[Hashable, Any] = field(default_factory=dict)
    """What estimators have learned from these users, for others that need the same."""

    def reduce(self, work: Callable[[OffPolicyData], Sums], merge: Callable[[Sums, Sums], Sums]) -> Sums:
        """One pass: the sums of every batch of users, merged in the order of the users."""
        return self.reduce_parts(lambda part: reduce(merge, map(work, part.in_batches)), merge)

    def reduce_parts(self, work: Callable[[OffPolicyData], Sums], merge: Callable[[Sums, Sums], Sums]) -> Sums:
        """One pass: the sums of every part as a whole, merged in their order."""
        found = self.engine.map(work, _alike(self.parts()))
        first = next(found, None)
        if first is None:
            raise UsageError("there is no evidence to evaluate: no partition was given")
        return reduce(merge, found, first)

    def each(self, work: Callable[[OffPolicyData], Result]) -> Iterator[Result]:
        """One pass: the result of every batch of users, in their order."""

        def of_part(part: OffPolicyData) -> list[Result]:
            return [work(batch) for batch in part.in_batches]

        for results in self.engine.map(of_part, _alike(self.parts())):
            yield from results


def as_partitions(
    partitions: Sequence[OffPolicyData] | Callable[[], Iterable[OffPolicyData]], engine: Engine | None = None
) -> Partitions:
    """Partitions that are there already, or are made anew for every pass; in this thread unless an engine is given."""
    if callable(partitions):
        return Partitions(partitions, engine or LocalEngine(threads=1))
    held = tuple(partitions)
    return Partitions(lambda: held, engine or LocalEngine(threads=1))


def _alike(parts: Iterable[OffPolicyData]) -> Iterator[OffPolicyData]:
    """The same parts, as long as they are about the same."""
    first = None
    for part in parts:
        features = 0 if part.features is None else part.features.shape[1]
        about = (
            f"{', '.join(part.outcome_names)} at {part.prices} price(s) over {part.steps} step(s) with {features} "
            "feature(s)"
        )
        first = first or about
        if about != first:
            raise UsageError(
                "partitions must be about the same outcomes, prices, steps (those of the longest user of all) and "
                f"features, not {first} and {about}"
            )
        yield part


# Folds of users for cross-fitting: what is learned from some is applied to others.


@dataclass(frozen=True)
class Folds:
    """So many folds of users, drawn by their keys: the same in every partition and in any order."""

    count: int
    seed: int

    def __post_init__(self) -> None:
        if self.count < 2:
            raise UsageError(f"cross-fitting needs at least 2 folds, not {self.count}")

    def of(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The fold of each user, [users]: about equally large."""
        return chance.fold(keys, self.count, "cross-fit", self.seed)

    def check(self, users: int) -> None:
        """Refuse fewer users than folds."""
        if users < self.count:
            raise UsageError(f"cross-fitting over {self.count} folds needs at least {self.count} users, not {users}")
