"""Compiled programs: their traces are cached between processes, and old programs are dropped to save memory and disk.

Three things take time before a program runs: tracing the Python code, lowering it, and compiling it. XLA caches what it
compiled in a folder; `kept` caches the traced and lowered program next to it. A small fit runs eighty programs, and
tracing took a third of its time.
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
    """`jax.jit` of a module-level function, with its trace cached between processes.

    The first `static` arguments are hashable, the others are pytrees of arrays. It returns arrays in tuples, lists and
    dictionaries. The result must depend only on the arguments and this package's source, because these form the key of
    the cache. If an argument might hide something (a class or function from elsewhere), nothing is cached.
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
    """Arrays that are compiled into a program as constants: a static argument that is hashed by content.

    Whatever depends on them alone is computed once, at compile time, which halves the time of a call.
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
    """The program cached in a file, or traced now and cached there."""
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
    """The file that caches a program; None without a cache, or if the arguments do not fully determine the program."""
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
    """A value whose description might not distinguish it from another."""


def described(value: Any) -> Iterator[str]:
    """A description of a value as text lines, different for different values."""
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
    elif kind.__module__.startswith("equinox."):  # equinox's markers for missing values
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
    """Whether a name identifies a class or function: top-level ones of this package, Python or optax."""
    module = definition.__module__.split(".")[0]
    return module in (_PACKAGE, "builtins", "optax") and "<" not in definition.__qualname__


@cache
def _versions() -> tuple[str, ...]:
    """The versions that a traced program depends on: of libraries, and of this package's source files on disk."""
    libraries = tuple(f"{name} {version(name)}" for name in ("jax", "jaxlib", "equinox", "optax", "numpy"))
    root = Path(__file__).parents[1]
    source = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        facts = path.stat()
        source.update(f"{path.relative_to(root)} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return (*libraries, sys.version, source.hexdigest())


# XLA caches what it compiled, in a folder named by an environment variable. The folder is chosen here, and whether it
# is safe to use.


def keep_programs() -> None:
    """Cache compiled programs in the user's cache folder; call it before the first program is compiled.

    Does nothing if the environment names another folder or turns caches off, or if others could write into the folder,
    because cached programs are executed.
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
    # By default, only programs that took a second to compile are cached; a fit compiles a hundred of half a second.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    if "jax" in sys.modules:  # jax has already read the environment
        config = sys.modules["jax"].config
        config.update("jax_compilation_cache_dir", str(folder))
        config.update("jax_persistent_cache_min_compile_time_secs", 0)
        config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # A program that was written only in part is compiled again.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def _kind_of_machine() -> str:
    """A hash of the processor's features: machines that share a home folder may need different programs."""
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
_ROOM_FOR_PROGRAMS = 0.6  # share of the mappings; a fit with new shapes takes a tenth of Linux's default limit


def forget_programs(most: int | None = None) -> None:
    """Drop compiled programs when the process comes near the system's limit on memory mappings.

    A long-lived process that fits logs of many shapes accumulates programs; beyond the limit, the compiler aborts the
    process. `most` is the limit; None reads it from the system.
    """
    most = most or number_in(_MOST_PIECES)
    if most is None or "jax" not in sys.modules:
        return
    with suppress(OSError), _PIECES.open("rb") as lines:
        if sum(1 for _ in lines) > _ROOM_FOR_PROGRAMS * most:
            import jax

            jax.clear_caches()  # type: ignore[no-untyped-call]
            gc.collect()
