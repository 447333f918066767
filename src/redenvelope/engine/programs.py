"""Compiled programs: traced once per kind of machine, kept for the next process, and dropped where they are too many.

Three things take time before a program runs: tracing the Python that describes it, lowering it, and compiling it. XLA
keeps what it compiled in a folder; `kept` keeps what was traced and lowered beside it. A small fit runs eighty
programs, and tracing them took a third of it.
"""

from __future__ import annotations

import gc
import hashlib
import os
import platform
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from redenvelope.engine.memory import number_in
from redenvelope.errors import UsageError
from redenvelope.files import cache_folder, read_regular, replacing

Result = TypeVar("Result")

_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_PROCESSOR = Path("/proc/cpuinfo")
_LARGEST_PROGRAM = 2**28
_PACKAGE = "redenvelope"


def kept(function: Callable[..., Result], static: int = 0) -> Callable[..., Result]:
    """`jax.jit` of a module-level function, with what was traced kept between processes.

    The first `static` arguments are hashable; the others are trees of arrays. It returns arrays in tuples, lists and
    dictionaries. What it computes must follow from its arguments and this package's source alone: a program is found
    by these. Where an argument may hide something (a class or function of somebody else), nothing is kept.
    """
    import jax

    @wraps(function)
    def traced(*arguments: Any) -> Any:
        fixed, given = arguments[:static], arguments[static:]
        leaves, structure = jax.tree.flatten(given)

        def flat(*arrays: Any) -> Any:
            return function(*fixed, *jax.tree.unflatten(structure, arrays))

        path = _path((f"{function.__module__}.{function.__qualname__}", fixed, structure), leaves)
        return flat(*leaves) if path is None else _exported(flat, leaves, path).call(*leaves)

    found: Callable[..., Result] = jax.jit(traced, static_argnums=tuple(range(static)))
    return found


class Constants:
    """Arrays that a program is compiled with, a static argument known by its content.

    What follows from them alone is computed once, when the program is compiled: a call takes half the time.
    """

    def __init__(self, arrays: Iterable[Any]) -> None:
        import numpy as np

        self.arrays = [np.asarray(array) for array in arrays]
        digest = hashlib.sha256()
        for array in self.arrays:
            digest.update(f"{array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        self.sha256 = digest.hexdigest()

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constants) and self.sha256 == other.sha256


def _exported(flat: Callable[..., Any], leaves: list[Any], path: Path) -> Any:
    """The program in a file, or traced now and written to it."""
    import jax
    from jax import export

    try:
        return export.deserialize(bytearray(read_regular(path, _LARGEST_PROGRAM)))
    except Exception:
        shape: Any = jax.ShapeDtypeStruct
        shapes = [shape(leaf.shape, leaf.dtype, weak_type=leaf.aval.weak_type) for leaf in leaves]
        program = export.export(jax.jit(flat))(*shapes)
    with suppress(OSError, UsageError, ValueError), replacing(path, durable=False) as handle:
        handle.write(program.serialize())
    return program


def _path(what: Any, leaves: list[Any]) -> Path | None:
    """Where a program is kept; None where none are, or where its arguments do not say all about it."""
    import jax

    config: Any = jax.config
    folder = config.jax_compilation_cache_dir
    if not folder:
        return None
    shapes = [(leaf.shape, str(leaf.dtype), leaf.aval.weak_type) for leaf in leaves]
    settings = (config.jax_enable_x64, str(config.jax_default_matmul_precision))
    try:
        text = "\n".join(described((what, shapes, settings, _versions())))
    except UndescribedError:
        return None
    return Path(folder) / f"{hashlib.sha256(text.encode()).hexdigest()}.traced"


class UndescribedError(Exception):
    """A value that its description would not tell from another."""


def described(value: Any) -> Iterator[str]:
    """A value in words that tell it from every other."""
    import numpy as np

    kind = type(value)
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        yield f"{kind.__name__} {value!r}"
    elif isinstance(value, (tuple, list)):
        yield f"{kind.__name__} of {len(value)}"
        for item in value:
            yield from described(item)
    elif isinstance(value, dict):
        yield from described([*value.items()])
    elif isinstance(value, (types.FunctionType, type)) and _is_plain(value):
        yield f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, Constants):
        yield f"constants {value.sha256}"
    elif kind.__name__ == "PyTreeDef":
        yield from _described_structure(value)
    elif is_dataclass(value) and _is_plain(kind):
        yield f"{kind.__module__}.{kind.__qualname__}"
        for field in fields(value):
            yield field.name
            yield from described(getattr(value, field.name))
    elif kind.__module__.startswith("equinox."):  # how its modules mark what is missing
        yield repr(value)
    else:
        raise UndescribedError(kind)


def _described_structure(structure: Any) -> Iterator[str]:
    data = structure.node_data()
    if data is None:
        yield "leaf"
        return
    kind, static = data
    if not _is_plain(kind):
        raise UndescribedError(kind)
    yield f"{kind.__module__}.{kind.__qualname__}"
    yield from described(static)
    children = structure.children()
    yield f"{len(children)} below"
    for child in children:
        yield from _described_structure(child)


def _is_plain(definition: Any) -> bool:
    """Whether a class or function is known by its name: this package's own, at the top of a module, or Python's."""
    module = definition.__module__.split(".")[0]
    return module in (_PACKAGE, "builtins", "optax") and "<" not in definition.__qualname__


@cache
def _versions() -> tuple[str, ...]:
    """Of what a traced program follows from: libraries, and this package's source as it lies on the disk."""
    libraries = tuple(f"{name} {version(name)}" for name in ("jax", "jaxlib", "equinox", "optax", "numpy"))
    root = Path(__file__).parents[1]
    source = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        facts = path.stat()
        source.update(f"{path.relative_to(root)} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return (*libraries, sys.version, source.hexdigest())


# What XLA compiled is kept by XLA itself, in a folder that the environment names; here is chosen which, and when none
# may be used.


def keep_programs() -> None:
    """Have programs kept in the user's cache folder; to be called before the first is compiled.

    Nothing is done where the environment says otherwise, or where somebody else could write into the folder: what
    lies there is run.
    """
    home = cache_folder()
    if home is None or _FOLDER in os.environ:
        return
    folder = home / "programs" / _kind_of_machine()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_ours_alone(folder) or not os.access(folder, os.W_OK):
            return
        make_room(folder)
    except OSError:
        return
    os.environ[_FOLDER] = str(folder)
    # By default only what took a second to compile is kept; a fit compiles a hundred programs of half a second.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    if "jax" in sys.modules:  # which has read the environment already
        config = sys.modules["jax"].config
        config.update("jax_compilation_cache_dir", str(folder))
        config.update("jax_persistent_cache_min_compile_time_secs", 0)
        config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # A program that a killed process left half written, or that does not fit on the disk, is compiled anew.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def _kind_of_machine() -> str:
    """What the processor can do, in a short word: in a home that machines share, a program is for its kind alone."""
    flags = ""
    with suppress(OSError), _PROCESSOR.open(encoding="utf-8", errors="replace") as lines:
        flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return hashlib.sha256(f"{platform.machine()} {flags}".encode()).hexdigest()[:16]


def _is_ours_alone(folder: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    facts = folder.stat()
    return facts.st_uid == os.getuid() and not facts.st_mode & 0o022


def make_room(folder: Path, most_bytes: int = 2**29) -> None:
    """Remove the oldest programs until the rest fits."""
    programs = sorted(((path.stat(), path) for path in folder.iterdir()), key=lambda pair: pair[0].st_mtime_ns)
    total = sum(facts.st_size for facts, _ in programs)
    for facts, path in programs:
        if total <= most_bytes:
            return
        with suppress(OSError):
            path.unlink()
        total -= facts.st_size


_PIECES = Path("/proc/self/maps")
_MOST_PIECES = Path("/proc/sys/vm/max_map_count")
_ROOM_FOR_PROGRAMS = 0.6  # of the pieces; a fit with new shapes takes a tenth of what Linux grants by default


def forget_programs(most: int | None = None) -> None:
    """Drop what was compiled before where the process comes near the pieces of memory that the system grants it.

    A long-lived process that fits logs of many shapes keeps the programs of each; past the limit the compiler ends
    the process. `most` is the limit, that of the system if None.
    """
    most = most or number_in(_MOST_PIECES)
    if most is None or "jax" not in sys.modules:
        return
    with suppress(OSError), _PIECES.open("rb") as lines:
        if sum(1 for _ in lines) > _ROOM_FOR_PROGRAMS * most:
            import jax

            jax.clear_caches()  # type: ignore[no-untyped-call]
            gc.collect()
