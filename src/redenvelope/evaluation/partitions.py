"""Passes over partitions of users: sums of batches, merged in a fixed order, and folds for cross-fitting."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from redenvelope import randomness as chance
from redenvelope.engine.engine import Engine, LocalEngine
from redenvelope.errors import UsageError
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.merging import Mergeable, merged
from redenvelope.wording import counted

Sums = TypeVar("Sums", bound=Mergeable)
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Partitions:
    """The off-policy data of all users, in parts of complete users, for as many passes as an estimator needs."""

    parts: Callable[[], Iterable[OffPolicyData]]
    """Gives the data of each part, in the same order every time."""
    engine: Engine
    learned: dict[Hashable, Any] = field(default_factory=dict)
    """What estimators have learned from these users, shared with others that need the same."""

    def reduce(self, work: Callable[[OffPolicyData], Sums]) -> Sums:
        """One pass: the sums of every batch of users, merged in user order."""
        return self.reduce_parts(lambda part: merged(map(work, part.in_batches)))

    def reduce_parts(self, work: Callable[[OffPolicyData], Sums]) -> Sums:
        """One pass: the sums of every part, merged in part order."""
        found = self.engine.map(work, _alike(self.parts()))
        first = next(found, None)
        if first is None:
            raise UsageError("there is no off-policy data to evaluate: no partition was given")
        return merged(chain([first], found))

    def each(self, work: Callable[[OffPolicyData], Result]) -> Iterator[Result]:
        """One pass: the result of every batch of users, in user order."""

        def of_part(part: OffPolicyData) -> list[Result]:
            return [work(batch) for batch in part.in_batches]

        for results in self.engine.map(of_part, _alike(self.parts())):
            yield from results


def as_partitions(
    partitions: Sequence[OffPolicyData] | Callable[[], Iterable[OffPolicyData]], engine: Engine | None = None
) -> Partitions:
    """Partitions held in memory, or made again for every pass; single-threaded unless an engine is given."""
    if callable(partitions):
        return Partitions(partitions, engine or LocalEngine(threads=1))
    held = tuple(partitions)
    return Partitions(lambda: held, engine or LocalEngine(threads=1))


def _alike(parts: Iterable[OffPolicyData]) -> Iterator[OffPolicyData]:
    """Yield the parts unchanged; refuse parts with different outcomes, prices, steps or features."""
    first = None
    for part in parts:
        features = 0 if part.features is None else part.features.shape[1]
        about = (
            f"{', '.join(part.outcome_names)} at {counted(part.prices, 'price')} over {counted(part.steps, 'step')} "
            f"with {counted(features, 'feature')}"
        )
        first = first or about
        if about != first:
            raise UsageError(
                "partitions must have the same outcomes, prices, steps (those of the longest user of all) and "
                f"features, not {first} and {about}"
            )
        yield part


@dataclass(frozen=True)
class Folds:
    """Folds of users for cross-fitting, by a hash of their keys: the same in every partition and in any order."""

    count: int
    seed: int

    def __post_init__(self) -> None:
        if self.count < 2:
            raise UsageError(f"cross-fitting needs at least 2 folds, not {self.count}")

    def of(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The fold of each user, [users]; folds have about equal sizes."""
        return chance.fold(keys, self.count, "cross-fit", self.seed)

    def members(self, keys: NDArray[np.uint64]) -> list[NDArray[np.int64]]:
        """Indices [n] of the users in each fold, a list [folds]."""
        fold = self.of(keys)
        return [np.flatnonzero(fold == number) for number in range(self.count)]

    def check(self, users: int) -> None:
        """Refuse fewer users than folds."""
        if users < self.count:
            raise UsageError(f"cross-fitting over {self.count} folds needs at least {self.count} users, not {users}")
