"""A real PostgreSQL for tests and benchmarks: its own data, its own socket, no network, never as root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

__all__ = ["PostgresMissingError", "PostgresServer"]


_PATIENCE_SECONDS = 60


class PostgresMissingError(Exception):
    """Why no server can be had here."""


class PostgresServer:
    """A server that lives while a block does; `stop` and `start` restart it on the same data.

    It syncs to the disk only where it is asked to be durable: a crash of its processes alone loses nothing either way.
    """

    def __init__(self, durable: bool = False) -> None:
        self._durable = durable
        self._programs = _programs()
        self._owner = _owner()
        self.folder = Path(tempfile.mkdtemp(prefix="redenvelope-postgres-"))
        if self._owner is not None:
            os.chown(self.folder, self._owner.pw_uid, self._owner.pw_gid)
        self._databases = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        arguments = ["--no-sync", "--auth=trust", "--username=tester", "--encoding=UTF8", "--locale=C"]
        made = self._run("initdb", *arguments, "--pgdata", str(self.folder / "data"))
        if made.returncode:
            raise PostgresMissingError(f"initdb failed: {made.stderr.decode().strip()[-300:]}")
        self.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        import psycopg

        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "shared_buffers": "16MB",
            "max_connections": "100",
            "fsync": "on" if self._durable else "off",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_dying_with_parent(), str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._as_owner(),  # type: ignore[call-overload]
            )
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                psycopg.connect(self._url("public")).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise PostgresMissingError(f"PostgreSQL did not start: {error}") from None
                time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGQUIT) -> None:
        """Stop it. SIGQUIT is a crash, after which it has to recover; SIGINT is a stop in good order."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_PATIENCE_SECONDS)
            self._process = None

    def database(self) -> str:
        """The URL of a new, empty place for tables."""
        import psycopg

        self._databases += 1
        name = f"ledger{self._databases}"
        with psycopg.connect(self._url("public"), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return self._url(name)

    def _url(self, schema: str) -> str:
        return f"postgresql://tester@/postgres?host={self.folder}&options=-csearch_path%3D{schema}"

    def _as_owner(self) -> dict[str, object]:
        """How its programs are started."""
        told: dict[str, object] = {"cwd": self.folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"}}
        if self._owner is not None:
            told |= {"user": self._owner.pw_uid, "group": self._owner.pw_gid, "extra_groups": []}
        return told

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [str(self._programs / program), *arguments]
        return subprocess.run(command, check=False, capture_output=True, **self._as_owner())  # type: ignore[call-overload, no-any-return]


def _dying_with_parent() -> list[str]:
    """A test process that is killed takes its server along, where the system has a program for that."""
    return ["setpriv", "--pdeathsig", "QUIT", "--"] if shutil.which("setpriv") else []


def _programs() -> Path:
    """Where Debian puts them, or wherever they are."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = debian[-1] if debian else shutil.which("initdb")
    if found is None:
        raise PostgresMissingError("PostgreSQL is not installed (apt-get install postgresql)")
    return Path(found).resolve().parent


def _owner() -> pwd.struct_passwd | None:
    """Whose processes they are: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresMissingError("PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody'")
