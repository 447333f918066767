"""Parts that are opened where they are worked on: only their names travel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from redenvelope.engine.engine import Engine

__all__ = ["Opened"]

Result = TypeVar("Result")


@dataclass(frozen=True)
class Opened:
    """An engine whose parts hold several pieces: the work is asked of every piece of a part, where the part is."""

    engine: Engine
    pieces: Callable[[Any], Iterable[Any]]
    """The pieces of a part, in their order."""

    def map(self, work: Callable[[Any], Result], parts: Iterable[Any]) -> Iterator[Result]:
        """The results of all pieces of all parts, in order; see Engine."""
        for results in self.engine.map(partial(_each, work, self.pieces), parts):
            yield from results


def _each(work: Callable[[Any], Result], pieces: Callable[[Any], Iterable[Any]], part: Any) -> list[Result]:
    return [work(piece) for piece in pieces(part)]
