"""Engines by the names that the command line takes."""

from __future__ import annotations

from redenvelope.engine.engine import Engine
from redenvelope.engine.local import LocalEngine
from redenvelope.errors import UsageError

__all__ = ["engine_named"]


def engine_named(name: str) -> Engine:
    """`local`, `ray` for a cluster on this machine, `ray://HOST:PORT`, `ray:auto` or `ray:HOST:PORT` for another."""
    if name == "local":
        return LocalEngine()
    kind, _, address = name.partition(":")
    if kind != "ray" or (":" in name and not address.strip("/")):
        raise UsageError(
            f"there is no engine {name!r}; use local, ray (a cluster on this machine), or ray://HOST:PORT, "
            "ray:HOST:PORT or ray:auto for one that is running"
        )
    from redenvelope.engine.ray import RayEngine

    return RayEngine(None if not address else name if address.startswith("//") else address)
