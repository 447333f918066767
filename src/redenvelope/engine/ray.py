"""An engine on the workers of a Ray cluster, either a new one on this machine or an existing one.

Work and parts are sent to workers as plain data. The work with everything it holds (a plan, the sums of an earlier
pass) is put into the object store once, and each worker keeps it for the whole pass, so that what it compiled serves
all of its parts. A part whose worker dies is given to another worker.
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
"""One thread per worker, because threads that compete for busy cores cost far more than they gain."""
_ALONE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's switch for machines on which clusters are not supported; it makes all of its servers listen on loopback.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
_WAITING = 2  # parts per worker: while one is processed, the next is on its way
_LIVES = 20  # retries of a part whose workers die
_STORE_BYTES = 512 * 2**20
_HELD: dict[str, Callable[[Any], Any]] = {}
"""In a worker: the work of the current pass, by key."""


@dataclass(frozen=True)
class RayEngine:
    """Runs work on a Ray cluster, with a limited number of parts in progress."""

    address: str | None = None
    """None starts a cluster on this machine, or uses the one that this process has joined; otherwise the address of a
    cluster: `auto`, `HOST:PORT`, or `ray://HOST:PORT` through Ray's client."""
    workers: int | None = None
    """Workers of a cluster started here; None: one per core."""

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
                # Inside a list, Ray passes a reference to the work instead of the work itself.
                waiting.append(remote.remote([held], held.hex(), part))
                if len(waiting) > many:
                    yield _result(ray, waiting.popleft())
            while waiting:
                yield _result(ray, waiting.popleft())
        finally:
            for task in waiting:
                ray.cancel(task)


def _worked_on(held: list[Any], key: str, part: Any) -> Any:
    """In a worker: run the work on a part."""
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
    """The ray module, connected to a cluster."""
    # A new cluster takes its settings from this process; an existing one has its own.
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
        # jax warns of forks, but Ray's forks replace the process image at once.
        warnings.simplefilter("ignore", RuntimeWarning)
        if address is not None:
            ray.init(address, runtime_env={"env_vars": _ONE_THREAD}, **quiet)
        else:
            ray.init(num_cpus=workers or cores(), include_dashboard=False, object_store_memory=_STORE_BYTES, **quiet)
    # Otherwise Ray would print the death of a worker to standard output, in the middle of the command's results.
    if hasattr(ray._private.worker, "_worker_logs_enabled"):
        ray._private.worker._worker_logs_enabled = False


class _environment:  # noqa: N801 - used like a function
    """Within the block, the process has these environment variables; existing ones stay as they were."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._added = {name: value for name, value in settings.items() if name not in os.environ}

    def __enter__(self) -> None:
        os.environ.update(self._added)

    def __exit__(self, *_: object) -> None:
        for name in self._added:
            os.environ.pop(name, None)
