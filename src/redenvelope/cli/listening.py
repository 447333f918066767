"""What long commands show while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redenvelope.cli.interrupts import heeding_interrupts, stop_if_interrupted
from redenvelope.progress import Event

__all__ = ["listening"]


@contextmanager
def listening(quiet: bool) -> Iterator[Callable[[Event], None]]:
    """A live view of the stages, to be told events; Ctrl-C is heeded whenever it is told something."""
    from redenvelope.report.plan_view import StageView

    with heeding_interrupts(), StageView(enabled=not quiet) as view:

        def listen(event: Event) -> None:
            stop_if_interrupted()
            view.tell(event)

        yield listen
