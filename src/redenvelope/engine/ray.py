"""Workers of a Ray cluster: one that is started here, for this machine alone, or one that exists.

Work and parts go to the workers as plain data. The work itself, with whatever it holds (a plan, the sums of an earlier
pass), is put into the object store once, and kept by every worker for as long as a pass lasts: what it has compiled
serves all of its parts. A part whose worker dies is worked on again by another one.
"""

from __future__ import annotations

import io
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import Any, TypeVar

from redenvelope.engine.engine import cores
from redenvelope.errors import UsageError

Part = TypeVar("Part")
Result = TypeVar("Result")

_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""One thread per worker: threads that compete for busy cores cost far more than they gain."""
_ALONE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's own switch for machines on which clusters are not supported: all of its servers then listen on loopback.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
_WAITING = 2  # parts per worker: while one is worked on, the next is on its way
_LIVES = 20  # of a part whose workers die
_STORE_BYTES = 512 * 2**20
_HELD: dict[str, Callable[[Any], Any]] = {}
"""In a worker: the work of the pass that goes on."""


@dataclass(frozen=True)
class RayEngine:
    """Works on a Ray cluster, and asks for no more parts at a time than its workers need."""

    address: str | None = None
    """None starts a cluster on this machine, or goes on with the one that this process has joined; else where one is:
    `auto`, `HOST:PORT`, or `ray://HOST:PORT` through Ray's client."""
    workers: int | None = None
    """Of a cluster that is started here; None is one per core."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"an engine needs at least one worker, not {self.workers}")

    def map(self, work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
        """See Engine. Work and parts must be plain data: functions by name, records, arrays."""
        ray = _joined(self.address, self.workers)
        remote = ray.remote(num_cpus=1, max_retries=_LIVES)(_worked_on)
        held = ray.put(work)
        many = max(int(ray.cluster_resources().get("CPU", 1)), 1) * _WAITING
        waiting: deque[Any] = deque()
        try:
            for part in parts:
                # In a list, Ray hands the place of the work over instead of the work.
                waiting.append(remote.remote([held], held.hex(), part))
                if len(waiting) > many:
                    yield _result(ray, waiting.popleft())
            while waiting:
                yield _result(ray, waiting.popleft())
        finally:
            for task in waiting:
                ray.cancel(task)


def _worked_on(held: list[Any], key: str, part: Any) -> Any:
    """In a worker: the work on a part."""
    if key not in _HELD:
        import ray

        _HELD.clear()
        _HELD[key] = ray.get(held[0])
    return _HELD[key](part)


def _result(ray: Any, task: Any) -> Any:
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"the cluster failed on a part ({reason}); check its workers' memory and run again: finished parts stay"
        ) from None


def _joined(address: str | None, workers: int | None) -> Any:
    """Ray, with a cluster at hand."""
    # A cluster that is started here has its settings from this process; one that exists has its own.
    settings = _ALONE | _ONE_THREAD if address is None else {"RAY_USAGE_STATS_ENABLED": "0"}
    with _environment(settings):
        try:
            import ray
        except ImportError:
            raise UsageError(
                "the engine 'ray' needs a package that is not installed; run: pip install 'redenvelope[ray]'"
            ) from None
        if ray.is_initialized():
            return ray
        try:
            _started(ray, address, workers)
        except Exception as error:  # of any kind: Ray names none for a cluster that does not come up
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            ray.shutdown()
            raise UsageError(
                f"no Ray cluster could be started on this machine ({reason}); it may be too busy: try again, or use "
                "--engine local"
                if address is None
                else f"no Ray cluster answers at {address} ({reason}); is it running?"
            ) from None
    return ray


def _started(ray: Any, address: str | None, workers: int | None) -> None:
    quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False, "configure_logging": False}
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        # jax warns of forks; those of Ray become other programs at once.
        warnings.simplefilter("ignore", RuntimeWarning)
        if address is not None:
            ray.init(address, runtime_env={"env_vars": _ONE_THREAD}, **quiet)
        else:
            ray.init(num_cpus=workers or cores(), include_dashboard=False, object_store_memory=_STORE_BYTES, **quiet)
    # Else a worker that dies, and is replaced, is told on standard output, in the middle of what was asked for.
    if hasattr(ray._private.worker, "_worker_logs_enabled"):
        ray._private.worker._worker_logs_enabled = False


class _environment:  # noqa: N801 - used like a function
    """Within, the process has these variables; those that were set before stay as they were."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._added = {name: value for name, value in settings.items() if name not in os.environ}

    def __enter__(self) -> None:
        os.environ.update(self._added)

    def __exit__(self, *_: object) -> None:
        for name in self._added:
            os.environ.pop(name, None)
