"""A process to be killed: threads that hold, settle and correct through one writer, and say what they were told.

What it prints is all that anybody may rely on: a line is printed when the answer has come, not before.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np

from redenvelope import LedgerError, open_ledger
from redenvelope.ledger.ledger import Writer
from redenvelope.ledger.records import Correct, Decided, Expire, Refused, Settled
from tests.ledger.asking import NOW, TTL, hold, settle

THREADS = 8


def main(arguments: Sequence[str]) -> None:
    url, turn, *limit = arguments
    if limit:
        # A disk that is full for this process alone: no file of it may grow beyond so many bytes.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit[0]), int(limit[0])))
    try:
        writer = Writer(open_ledger(url))
    except LedgerError as error:
        sys.exit(str(error))  # no room even to open it
    lock = threading.Lock()

    def say(*words: object) -> None:
        with lock:
            os.write(1, (" ".join(map(str, words)) + "\n").encode())

    def client(number: int) -> None:
        chance = np.random.default_rng([int(turn), number])
        for count in range(1_000_000):
            # Few users at a time, of all threads and of two runs: they come to their caps, also across a kill.
            user = f"{int(turn) // 2}-{count // 4}-{chance.integers(4)}"
            request, step = f"{turn}-{number}-{count}", THREADS * (1_000_000 * int(turn) + count) + number
            amount, gifts = int(chance.integers(0, 9)), int(chance.integers(0, 2))
            try:
                say("wants", request, user, amount, gifts)
                (answer,) = writer.submit([hold(request, user, {"money": amount, "gifts": gifts}, step)]).result()
                if isinstance(answer, Refused):
                    say("refused", request)
                    time.sleep(0.001)
                    continue
                assert isinstance(answer, Decided)
                say("held", request, answer.decision)
                if chance.random() < 0.2:
                    continue
                spent = int(chance.integers(0, amount + 1))
                say("settling", request, spent)
                (outcome,) = writer.submit([settle(answer.decision, spent)]).result()
                assert isinstance(outcome, Settled)
                say("settled", request, spent)
                if chance.random() < 0.3:
                    other = int(chance.integers(0, amount + 1))
                    say("correcting", request, other)
                    correction = Correct(answer.decision, 1.0, {"money": other}, NOW + 2)
                    (outcome,) = writer.submit([correction]).result()
                    say("corrected", request, other if isinstance(outcome, Settled) else spent)
                if chance.random() < 0.02:
                    writer.submit([Expire(NOW + TTL - 1)]).result()
            except LedgerError as error:  # a database that was stopped: try again, with the same words
                say("failed", str(error).replace("\n", " "))
                time.sleep(0.02)

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    say("ready")
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
