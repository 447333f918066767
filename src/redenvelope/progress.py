"""What long work tells while it runs: events with a stage and a phase, for a terminal, a log or a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where a stage is."""

    BEGUN = "begun"
    GOING_ON = "going on"
    DONE = "done"


@dataclass(frozen=True)
class Event:
    """Something happened in a stage."""

    stage: str
    phase: Phase
    message: str = ""
    """In words: what is going on, or the key figure of what was done."""
    done: int | None = None
    """Units done so far, where they are counted."""
    total: int | None = None


Progress = Callable[[Event], None]
"""Told every event; may raise to stop the work between two steps."""


@dataclass(frozen=True)
class Stages:
    """Tells progress, if anybody listens."""

    listener: Progress | None = None

    def begin(self, stage: str) -> None:
        """A stage begins."""
        self._tell(Event(stage, Phase.BEGUN))

    def going_on(self, stage: str, done: int, total: int, what: str = "") -> None:
        """So many units of a stage are done."""
        self._tell(Event(stage, Phase.GOING_ON, f"{what} {done} of {total}".strip(), done, total))

    def finish(self, stage: str, message: str) -> None:
        """A stage is done; the message holds its key figure."""
        self._tell(Event(stage, Phase.DONE, message))

    def _tell(self, event: Event) -> None:
        if self.listener is not None:
            self.listener(event)
