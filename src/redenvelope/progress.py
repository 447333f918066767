"""Progress: events that long work emits, with a stage and a phase, for a terminal, a log or a timer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """The phase of a stage."""

    BEGUN = "begun"
    GOING_ON = "going on"
    DONE = "done"


@dataclass(frozen=True)
class Event:
    """An event of a stage."""

    stage: str
    phase: Phase
    message: str = ""
    """Text: what is being done, or the key figure of what was done."""
    done: int | None = None
    """Units done so far, if units are counted."""
    total: int | None = None


Progress = Callable[[Event], None]
"""Called with every event; may raise to stop the work between two steps."""


@dataclass(frozen=True)
class Stages:
    """Emits the events of stages to a listener, if there is one."""

    listener: Progress | None = None

    def begin(self, stage: str) -> None:
        """Report that a stage begins."""
        self._tell(Event(stage, Phase.BEGUN))

    def going_on(self, stage: str, done: int, total: int, what: str = "") -> None:
        """Report how many units of a stage are done."""
        self._tell(Event(stage, Phase.GOING_ON, f"{what} {done} of {total}".strip(), done, total))

    def finish(self, stage: str, message: str) -> None:
        """Report that a stage is done; the message states its key figure."""
        self._tell(Event(stage, Phase.DONE, message))

    def _tell(self, event: Event) -> None:
        if self.listener is not None:
            self.listener(event)
