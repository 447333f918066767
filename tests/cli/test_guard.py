"""Whatever ends a command, the user reads a sentence; every case in a real process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="commands are supervised on Linux")


def program(body: str, *arguments: str) -> list[str]:
    """A process that runs this as its command."""
    start = "import os, sys, time\nfrom redenvelope.cli.guard import guarded\n"
    script = f"{start}def command():\n    {body}\nguarded(command)"
    return [sys.executable, "-c", script, *arguments]


def run(body: str, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program(body, *arguments), capture_output=True, text=True, timeout=60, check=False, **settings
    )  # type: ignore[call-overload, no-any-return]


def test_a_bug_is_one_sentence_with_the_details_in_a_file(tmp_path: Path) -> None:
    result = run("raise KeyError('nobody foresaw this')", env=os.environ | {"TMPDIR": str(tmp_path)})
    assert result.returncode == 70
    assert "Traceback" not in result.stderr
    assert "this is a bug: KeyError: 'nobody foresaw this'" in result.stderr
    (details,) = tmp_path.iterdir()
    assert str(details) in result.stderr
    assert "Traceback" in details.read_text()


def test_debug_shows_the_traceback() -> None:
    result = run("raise KeyError('nobody foresaw this')", "--debug")
    assert "Traceback" in result.stderr
    assert result.returncode == 1


def test_a_panic_of_a_native_library_is_caught_too(tmp_path: Path) -> None:
    body = "import polars; raise polars.exceptions.PanicException('called unwrap on nothing')"
    result = run(body, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert result.returncode == 70
    assert "Traceback" not in result.stderr


@LINUX
@pytest.mark.parametrize(("ending", "code"), [("", 0), ("raise KeyError('x')", 70), ("os.abort()", 71)])
def test_what_native_libraries_print_stands_in_the_details_alone(tmp_path: Path, ending: str, code: int) -> None:
    body = f"os.write(2, b'thread panicked at lib.rs'); print('for the user', file=sys.stderr); {ending}"
    result = run(body, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert result.returncode == code
    assert "panicked" not in result.stderr
    assert "for the user" in result.stderr
    for details in tmp_path.iterdir():
        assert "panicked at lib.rs" in details.read_text()
        assert str(details) in result.stderr
    assert len(list(tmp_path.iterdir())) == (code != 0)


@pytest.mark.parametrize("body", ["raise MemoryError", 'raise RuntimeError("can\'t start new thread")'])
def test_memory_that_ran_out_is_said(body: str) -> None:
    result = run(body)
    assert result.returncode == 71
    assert "memory ran out" in result.stderr


@LINUX
@pytest.mark.parametrize("name", ["SIGABRT", "SIGTRAP", "SIGSEGV", "SIGKILL"])
def test_a_process_that_dies_leaves_somebody_to_say_so(name: str) -> None:
    result = run(f"import signal; os.kill(os.getpid(), signal.{name})")
    assert result.returncode == 71
    assert "memory ran out" in result.stderr
    assert "Traceback" not in result.stderr


@LINUX
def test_a_process_with_threads_is_not_forked() -> None:
    """A lock that a thread holds at that moment would stay locked in the child: the command would never end."""
    script = (
        "import os, threading, time\n"
        "from redenvelope.cli.guard import guarded\n"
        "threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n"
        "own = os.getpid()\n"
        "guarded(lambda: print(os.getpid() == own))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, "True\n")


@LINUX
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", -signal.SIGTERM), ("SIGINT", 130)])
def test_signals_reach_the_command(name: str, code: int) -> None:
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's & turns it off
    command = program("print('ready', flush=True); time.sleep(20)")
    command[-1] = heard + command[-1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in said


@LINUX
def test_nothing_goes_on_when_the_program_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    body = f"print(os.getpid(), flush=True); time.sleep(2); open({str(mark)!r}, 'w').close()"
    with subprocess.Popen(program(body), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = Path(f"/proc/{int(process.stdout.readline())}/stat")
        process.kill()
    time.sleep(2.5)
    assert not mark.exists()
    assert not child.exists() or ") Z " in child.read_text()  # ended, though nobody may have asked how


@pytest.mark.parametrize("code", [0, 3])
def test_a_full_standard_output_is_said_and_stops_nothing(tmp_path: Path, code: int) -> None:
    mark = tmp_path / "mark"
    body = f"print('x' * 100_000, flush=True); open({str(mark)!r}, 'w').close(); sys.exit({code})"
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(program(body), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert result.returncode == (code or 74)
    assert "standard output could not be written (No space left on device)" in result.stderr
    assert mark.exists()


@pytest.mark.parametrize("code", [0, 2])
def test_a_full_standard_error_stops_nothing(tmp_path: Path, code: int) -> None:
    """Progress goes into a log, and the log's disk is full: the work goes on, and its exit code is its own."""
    mark = tmp_path / "mark"
    body = f"print('x' * 100_000, file=sys.stderr, flush=True); open({str(mark)!r}, 'w').close(); sys.exit({code})"
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(program(body), stdout=subprocess.PIPE, stderr=full, timeout=60, check=False)
    assert result.returncode == code
    assert mark.exists()


def test_a_closed_standard_output_does_not_lead_into_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    body = f"f = open({str(path)!r}, 'w'); print('printed', flush=True); f.write('written'); f.close()"
    result = subprocess.run(["/bin/sh", "-c", 'exec "$0" "$@" >&- 2>&- <&-', *program(body)], timeout=60, check=False)
    assert result.returncode == 0
    assert path.read_text() == "written"


def test_a_reader_that_went_away_is_no_mistake() -> None:
    with subprocess.Popen(
        program("for _ in range(100_000): print('line')"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""


def test_every_text_can_be_printed_in_any_locale() -> None:
    locale = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    result = run("print('\\u2264 4 \\u20ac \\udcff')", env=locale)
    assert result.returncode == 0
    assert "≤ 4 €" in result.stdout
