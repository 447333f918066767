"""Ctrl-C, heeded even where a library swallows it: an exception raised inside a garbage collection gets lost."""

from __future__ import annotations

import signal
from types import FrameType

__all__ = ["heed_interrupts", "stop_if_interrupted"]

_pressed: list[int] = []


def heed_interrupts() -> None:
    """From now on, remember every Ctrl-C besides raising KeyboardInterrupt."""
    _pressed.clear()
    signal.signal(signal.SIGINT, _press)


def stop_if_interrupted() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed, though nobody may have heard of it."""
    if _pressed:
        raise KeyboardInterrupt


def _press(number: int, frame: FrameType | None) -> None:
    _pressed.append(number)
    raise KeyboardInterrupt
