"""The last line of defence: whatever ends a command, the user reads one sentence, never a traceback.

On Linux the command runs in a child process. A native library that aborts (most often because memory ran out), or the
system killing what needs too much, ends the child alone; the parent is left to say what happened. It is a fork of a
process that has loaded nothing yet: it costs milliseconds.
"""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from redenvelope import __version__
from redenvelope.cli.options import REFUSED
from redenvelope.errors import LogError, RedenvelopeError
from redenvelope.progress import Event
from redenvelope.wording import counted, speaking_to_commands

A_BUG, NO_MEMORY, OUTPUT_LOST = 70, 71, 74
"""Exit codes beside 2 and 3; as in sysexits.h."""

_INTERRUPTED = 130
_LONGEST_DETAILS = 2**20
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_CRASHES = {signal.SIGABRT, signal.SIGTRAP, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
_FROM_THE_TERMINAL = 0x80  # SI_KERNEL: the whole group got the signal, the child too
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_OUT_OF_MEMORY_WORDS = (
    "resource_exhausted",
    "out of memory",
    "cannot allocate",
    "allocation failed",
    "allocating",
    "bad_alloc",
    "can't start new thread",
    "failed to map segment",
)
_PASSWORD = re.compile(r"://[^/?@]*@")
_MEMORY_HELPS = (
    "free some memory or raise the limit; a sample of the users, or fewer features, needs less "
    "(what was not finished was not written)"
)


def guarded(command: Callable[[], None]) -> NoReturn:
    """Run a command to the end of the process, with `--debug` anywhere on its line to see tracebacks."""
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    _mend_streams()
    if debug or not sys.platform.startswith("linux") or _has_threads():
        _finish(_run(command, debug))
    _supervise(command)


def _has_threads() -> bool:
    """Whether other threads run here, of native libraries too: a child would wait for their locks forever."""
    try:
        return len(os.listdir("/proc/self/task")) > 1  # noqa: PTH208
    except OSError:
        return True


def _run(command: Callable[[], None], debug: bool) -> int:
    """Run a command; returns its exit code, and says what went wrong."""
    with speaking_to_commands():
        return _guarded(command, debug)


def _guarded(command: Callable[[], None], debug: bool) -> int:
    try:
        command()
    except SystemExit as error:
        return _code(error)
    except LogError as error:
        _say(f"the log cannot be used, {counted(len(error.findings), 'error')}:\n{error}")
        return REFUSED
    except RedenvelopeError as error:
        _say(str(error))
        return REFUSED
    except KeyboardInterrupt:
        _say("interrupted; what was not finished was not written")
        return _INTERRUPTED
    except BaseException as error:  # native libraries panic with exceptions that are no Exception
        if debug:
            raise
        return _unforeseen(error)
    return 0


def _unforeseen(error: BaseException) -> int:
    if isinstance(error, MemoryError) or any(word in str(error).lower() for word in _OUT_OF_MEMORY_WORDS):
        _say(f"memory ran out; {_MEMORY_HELPS}")
        return NO_MEMORY
    summary = (str(error).strip().splitlines() or ["nothing more"])[0][:200]
    written = _details(traceback.format_exc())
    _say(
        f"this is a bug: {type(error).__name__}: {summary}\n"
        f"what was not finished was not written; details are in {written}, and --debug shows them"
    )
    return A_BUG


def _details(trace: str) -> str:
    """Where details were written; they hold the command line, and nothing of the data but what messages say."""
    lines = [
        f"redenvelope {__version__}, Python {sys.version}, {sys.platform}",
        f"command: {[_PASSWORD.sub('://…@', word) for word in sys.argv]}",
        trace,
        _aside(),
    ]
    try:
        handle, path = tempfile.mkstemp(prefix="redenvelope-bug-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join(lines))
    except OSError as error:
        return f"no file, which could not be written ({error.strerror})"
    return path


def _hush() -> None:
    """Let native libraries talk to a file of their own: a panic of theirs is a page that helps nobody.

    Only what Python prints is meant for the user. What they said stands in the details of a bug.
    """
    try:
        kept, aside = os.dup(2), os.memfd_create("said by libraries")
        os.dup2(aside, 2)
    except OSError:
        return
    sys.stderr.flush()
    sys.stderr = _printed(kept, by_line=True)


def _aside() -> str:
    """What native libraries said, as far as it was kept from the user."""
    with suppress(OSError):
        if Path("/proc/self/fd/2").readlink().name.startswith("memfd:"):
            return os.pread(2, _LONGEST_DETAILS, 0).decode(errors="backslashreplace")
    return ""


def _supervise(command: Callable[[], None]) -> NoReturn:
    """Run a command in a child, and end as it ended."""
    _hush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError:  # no more processes: then without a parent
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _finish(_run(command, debug=False))
    if child == 0:
        _die_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _finish(_run(command, debug=False))
    _end_as(_awaited(child))


def _awaited(child: int) -> int:
    """The status that a child ended with; meanwhile signals are passed on to it."""
    while True:
        received = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        if received.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
        elif received.si_code != _FROM_THE_TERMINAL:
            with suppress(ProcessLookupError):
                os.kill(child, received.si_signo)


def _end_as(status: int) -> NoReturn:
    """End as a child did; what no child can say, because it was ended, is said here."""
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    ended_by = signal.Signals(os.WTERMSIG(status))
    if ended_by in _CRASHES:
        said = f"; what it said is in {_details('')}" if _aside() else ""
        _say(f"a native library gave up ({ended_by.name}), most often because memory ran out; {_MEMORY_HELPS}{said}")
        os._exit(NO_MEMORY)
    if ended_by is signal.SIGKILL:
        _say(f"the process was killed, most often by the system because memory ran out; {_MEMORY_HELPS}")
        os._exit(NO_MEMORY)
    signal.signal(ended_by, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {ended_by})
    os.kill(os.getpid(), ended_by)
    os._exit(128 + ended_by)


def _die_with(parent: int) -> None:
    """Make sure that nothing goes on once the parent is gone, however that happens."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_INTERRUPTED)


def _finish(code: int) -> NoReturn:
    """End the process; what was printed has to have arrived somewhere."""
    sys.stdout.flush()
    lost = sys.stdout.lost if isinstance(sys.stdout, _Printed) else None
    # A reader that has gone away on purpose, such as a pager, is no loss.
    if lost is not None and lost.errno != errno.EPIPE:
        _say(f"standard output could not be written ({lost.strerror}); what was written to files is there")
        os._exit(code or OUTPUT_LOST)
    if lost is not None:
        os._exit(code)
    sys.exit(code)


class _Printed(io.TextIOWrapper):
    """Output that never stops the work, such as a log on a full disk: what cannot be written is remembered."""

    lost: OSError | None = None

    def write(self, text: str) -> int:
        """Print."""
        try:
            return super().write(text)
        except OSError as error:
            self.lost = error
            return len(text)

    def flush(self) -> None:
        """Print what waits."""
        try:
            super().flush()
        except OSError as error:
            self.lost = error


def _mend_streams() -> None:
    """Closed streams lead nowhere, instead of into the next file that is opened; every text can be printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    sys.stderr = _printed(2, by_line=True)
    sys.stdout = _printed(1, by_line=os.isatty(1))


def _printed(number: int, by_line: bool) -> _Printed:
    """A stream that is open under a number."""
    out = os.fdopen(number, "wb", closefd=False)
    return _Printed(out, encoding="utf-8", errors="backslashreplace", line_buffering=by_line)


def _say(message: str) -> None:
    with suppress(OSError, ValueError):
        print(f"redenvelope: {message}", file=sys.stderr, flush=True)


def _code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    _say(str(error.code))
    return 1


# Ctrl-C between two steps of long work: raised inside a compiler or a garbage collection, it gets lost or crashes.


_pressed: list[int] = []


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """Within, the first Ctrl-C is only remembered, for `stop_if_interrupted`; the second is as ever."""
    _pressed.clear()
    before = signal.signal(signal.SIGINT, _press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def stop_if_interrupted() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed; called between steps, where it is safe to stop."""
    if _pressed:
        raise KeyboardInterrupt


def _press(number: int, frame: FrameType | None) -> None:
    if _pressed:
        raise KeyboardInterrupt
    _pressed.append(number)
    print("\nstopping after this step, nothing will be written; Ctrl-C again stops at once", file=sys.stderr)


# What long commands show while they run.


@contextmanager
def listening(quiet: bool) -> Iterator[Callable[[Event], None]]:
    """A live view of the stages, to be told events; Ctrl-C is heeded whenever it is told something."""
    from redenvelope.report.terminal import StageView

    with heeding_interrupts(), StageView(enabled=not quiet) as view:

        def listen(event: Event) -> None:
            stop_if_interrupted()
            view.tell(event)

        yield listen
