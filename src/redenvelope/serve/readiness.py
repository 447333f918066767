"""Readiness: whether the ledger can record something now, found out by recording something."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future

from redenvelope.errors import LedgerError
from redenvelope.ledger.ledger import Ledger

_LOG = logging.getLogger("redenvelope.serve")
_FRESH_SECONDS = 1.0
"""How long a result is used: /readyz may be asked by anybody, as often as they like."""
_DEADLINE_SECONDS = 1.0
_PROBE = "INSERT INTO counters VALUES ('probe', 1) ON CONFLICT (name) DO UPDATE SET value = counters.value + 1"
"""A row that nothing else reads. It has to change: SQLite writes nothing where the content stays the same."""


class WriteProbe:
    """Tries a durable write in a thread of its own, so that a disk that is full or a database that is locked is found
    in time, and a long read delays nothing."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._result: Future[None] | None = None
        self._began = 0.0
        self._problem: str | None = None

    async def is_writable(self) -> bool:
        """Whether a write that began at most a second ago has succeeded in time; the reason goes to the log."""
        now = time.monotonic()
        if self._result is None or (self._result.done() and now - self._began > _FRESH_SECONDS):
            self._result, self._began = self._start(), now
        left = max(self._began + _DEADLINE_SECONDS - now, 0.0)
        try:
            async with asyncio.timeout(left):
                await asyncio.shield(asyncio.wrap_future(self._result))
            problem = None
        except TimeoutError:
            problem = f"no write ended within {_DEADLINE_SECONDS:g} s"
        except Exception as error:
            problem = str(error)
        if problem != self._problem:
            self._problem = problem
            if problem is None:
                _LOG.info("the ledger can be written again")
            else:
                _LOG.error("not ready, the ledger cannot be written: %s", problem)
        return problem is None

    def _start(self) -> Future[None]:
        """Not a pool: when the process ends it would wait for a thread that waits for the database."""
        result: Future[None] = Future()
        threading.Thread(target=self._write, args=(result,), name="probe", daemon=True).start()
        return result

    def _write(self, result: Future[None]) -> None:
        try:
            with self._ledger.database.transaction() as session:
                session.run(_PROBE)
            result.set_result(None)
        except LedgerError as error:
            result.set_exception(error)
        except Exception as error:
            result.set_exception(LedgerError(f"{type(error).__name__}: {error}"))
