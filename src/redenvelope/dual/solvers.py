"""The dual searches by name, as the command line calls them."""

from __future__ import annotations

from redenvelope.dual.ascent import DualAscent
from redenvelope.dual.bisection import Bisection
from redenvelope.dual.newton import Newton
from redenvelope.dual.secant import Secant
from redenvelope.dual.solve import DualSolver

__all__ = ["SOLVERS"]

SOLVERS: dict[str, DualSolver] = {
    "newton": Newton(),
    "bisection": Bisection(),
    "secant": Secant(),
    "ascent": DualAscent(),
}
"""A solver for each name; one more file and one more line here is one more way to search."""
