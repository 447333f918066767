"""Ctrl-C stops a command between its steps, and at once when it is pressed twice."""

import os
import signal

import pytest

from redenvelope.cli.guard import heeding_interrupts, stop_if_interrupted


def test_the_first_interrupt_waits_for_a_safe_place(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with heeding_interrupts():
        stop_if_interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert "stopping after this step" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            stop_if_interrupted()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_interrupt_stops_at_once() -> None:
    with heeding_interrupts(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    with heeding_interrupts():
        stop_if_interrupted()
