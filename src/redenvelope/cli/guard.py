"""Handling of failures: however a command ends, the user reads one sentence, never a traceback.

On Linux the command runs in a child process. If a native library aborts (usually because memory ran out), or the system
kills the process for the memory it needs, only the child ends, and the parent reports what happened. The fork takes
milliseconds, because the process has loaded nothing yet.
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
"""Exit codes besides 2 and 3, as in sysexits.h."""

_INTERRUPTED = 130
_LONGEST_DETAILS = 2**20
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_CRASHES = {signal.SIGABRT, signal.SIGTRAP, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
_FROM_THE_TERMINAL = 0x80  # SI_KERNEL: the whole process group received the signal, so the child has it too
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
    """Run a command to the end of the process; `--debug` anywhere on its line shows tracebacks."""
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    _mend_streams()
    if debug or not sys.platform.startswith("linux") or _has_threads():
        _finish(_run(command, debug))
    _supervise(command)


def _has_threads() -> bool:
    """Whether other threads run, including those of native libraries; a child could wait for their locks for ever."""
    try:
        return len(os.listdir("/proc/self/task")) > 1  # noqa: PTH208
    except OSError:
        return True


def _run(command: Callable[[], None], debug: bool) -> int:
    """Run a command, report what went wrong, and return its exit code."""
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
    except BaseException as error:  # panics of native libraries are not Exceptions
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
    """Write the details of a bug to a file, and return its path; data are in it only as far as in messages."""
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
    """Redirect the standard error of native libraries to a memory file, because their crash output helps no user.

    Only what Python prints is meant for the user. Their output is included in the details of a bug.
    """
    try:
        kept, aside = os.dup(2), os.memfd_create("said by libraries")
        os.dup2(aside, 2)
    except OSError:
        return
    sys.stderr.flush()
    sys.stderr = _printed(kept, by_line=True)


def _aside() -> str:
    """The output of native libraries that was withheld from the user."""
    with suppress(OSError):
        if Path("/proc/self/fd/2").readlink().name.startswith("memfd:"):
            return os.pread(2, _LONGEST_DETAILS, 0).decode(errors="backslashreplace")
    return ""


def _supervise(command: Callable[[], None]) -> NoReturn:
    """Run a command in a child process, and exit as it did."""
    _hush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError:  # no process left to fork: run it here
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _finish(_run(command, debug=False))
    if child == 0:
        _die_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _finish(_run(command, debug=False))
    _end_as(_awaited(child))


def _awaited(child: int) -> int:
    """Wait for a child and return its status; meanwhile, pass signals on to it."""
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
    """Exit as a child did; report for a child that was killed and could not do so itself."""
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
    """Make sure that the child ends when its parent does, for whatever reason."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_INTERRUPTED)


def _finish(code: int) -> NoReturn:
    """End the process, and report if its output could not be written."""
    sys.stdout.flush()
    lost = sys.stdout.lost if isinstance(sys.stdout, _Printed) else None
    # A reader that closed the pipe on purpose, such as a pager, is no error.
    if lost is not None and lost.errno != errno.EPIPE:
        _say(f"standard output could not be written ({lost.strerror}); what was written to files is there")
        os._exit(code or OUTPUT_LOST)
    if lost is not None:
        os._exit(code)
    sys.exit(code)


class _Printed(io.TextIOWrapper):
    """An output stream that never stops the work, for example on a full disk; errors are remembered in `lost`."""

    lost: OSError | None = None

    def write(self, text: str) -> int:
        """Write, or remember the error."""
        try:
            return super().write(text)
        except OSError as error:
            self.lost = error
            return len(text)

    def flush(self) -> None:
        """Flush, or remember the error."""
        try:
            super().flush()
        except OSError as error:
            self.lost = error


def _mend_streams() -> None:
    """Point closed streams at /dev/null, so that no later file takes their numbers; escape odd characters."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stderr = _printed(2, by_line=True)
    sys.stdout = _printed(1, by_line=os.isatty(1))


def _printed(number: int, by_line: bool) -> _Printed:
    """A stream on an open file descriptor."""
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


# Ctrl-C takes effect between two steps of long work: inside a compiler or a garbage collection, it gets lost or
# crashes.


_pressed: list[int] = []


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """Within the block, the first Ctrl-C is only recorded, for `stop_if_interrupted`; the second interrupts."""
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


# Progress of long commands.


@contextmanager
def listening(quiet: bool) -> Iterator[Callable[[Event], None]]:
    """A live view of the stages, as a listener for events; each event is also a chance to stop after Ctrl-C."""
    from redenvelope.report.terminal import StageView

    with heeding_interrupts(), StageView(enabled=not quiet) as view:

        def listen(event: Event) -> None:
            stop_if_interrupted()
            view.tell(event)

        yield listen
