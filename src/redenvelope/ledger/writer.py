"""Group commit: commands that wait at the same time share one transaction, so that one sync of the disk serves many."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from redenvelope.errors import LedgerError
from redenvelope.ledger.commands import Result
from redenvelope.ledger.ledger import Ledger
from redenvelope.ledger.records import Command

__all__ = ["Writer"]

_MOST = 512
"""Commands of one transaction: more would make everybody wait for the last."""


class _Waiting(NamedTuple):
    commands: Sequence[Command]
    answer: Future[list[Result]]


class Writer:
    """One thread that writes to a ledger. An answer comes when what it says is durable, never before."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._closed = False
        self._thread.start()

    def submit(self, commands: Sequence[Command]) -> Future[list[Result]]:
        """Have commands carried out, all in one transaction; a LedgerError in the answer means: none of them."""
        if self._closed:
            raise LedgerError("the ledger is being closed")
        answer: Future[list[Result]] = Future()
        answer.set_running_or_notify_cancel()  # who stops waiting must not stop the writing
        self._waiting.put(_Waiting(commands, answer))
        return answer

    def close(self) -> None:
        """Write what waits, and end."""
        self._closed = True
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        ending = False
        while not ending:
            first = self._waiting.get()
            group = [] if first is None else [first]
            ending = first is None
            count = sum(len(one.commands) for one in group)
            while count < _MOST and not self._waiting.empty():
                more = self._waiting.get()
                if more is None:
                    ending = True
                    continue
                group.append(more)
                count += len(more.commands)
            if group:
                self._commit(group)

    def _commit(self, group: Sequence[_Waiting]) -> None:
        try:
            results = self._ledger.apply([command for one in group for command in one.commands])
        except BaseException as error:  # whatever it is, whoever waits has to hear of it
            for one in group:
                one.answer.set_exception(error)
            return
        start = 0
        for one in group:
            one.answer.set_result(results[start : start + len(one.commands)])
            start += len(one.commands)
