"""What a plan can be asked that other rooms answer: evaluations, reports and charts.

A plan is an artefact: opening one and deciding by it loads neither the factory nor anything that draws. These rooms
import the plan, not the other way round; they are found by name here, at the moment that somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["door"]

_ROOMS = {
    "evaluate_plan": "redenvelope.fitting.evaluate",
    "save_with_report": "redenvelope.report.saved",
    "write_report": "redenvelope.report.saved",
    "plot_frontier": "redenvelope.report.plots",
}


def door(name: str) -> Callable[..., Any]:
    """The function of this name, in the room where it is."""
    found: Callable[..., Any] = getattr(import_module(_ROOMS[name]), name)
    return found
