"""Memory that is not needed any more, given back."""

from __future__ import annotations

import ctypes
import gc
import sys

__all__ = ["give_back"]


def give_back() -> None:
    """Give what was freed back to the system, where the C library keeps it: a stage's memory would else be held in
    pieces that do not fit the next one's."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)
