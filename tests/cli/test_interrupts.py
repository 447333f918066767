"""Ctrl-C is heeded even where the exception it raised got lost."""

import os
import signal

import pytest

from redenvelope.cli.interrupts import heed_interrupts, stop_if_interrupted


def test_a_swallowed_interrupt_is_raised_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        heed_interrupts()
        stop_if_interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            signal.sigtimedwait([], 1)  # somewhere to be interrupted in
        with pytest.raises(KeyboardInterrupt):
            stop_if_interrupted()
        heed_interrupts()
        stop_if_interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
