"""The server process: its socket, its signals, and a graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from redenvelope.errors import UsageError
from redenvelope.serve.admission import Tokens
from redenvelope.serve.app import new_app
from redenvelope.serve.connections import CHECKS_PER_SECOND, LimitedConnection, check_connections, require_limits_hold
from redenvelope.serve.messages import ApiError
from redenvelope.serve.service import Service

_LOG = logging.getLogger("redenvelope.serve")
_DRAIN_SECONDS = 30


def bound(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 chooses a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
    except (OSError, OverflowError, ValueError, TypeError) as error:
        opened.close()
        raise UsageError(f"{host[:60]}:{port} cannot listen there ({error}); choose another --host or --port") from None
    return opened


def run(app: ASGIApp, service: Service, opened: socket.socket, started: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; then accept no new requests, answer the pending ones, and return."""
    server = Server(new_config(app, service), service, started)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[opened]))
    if service.is_stuck:
        # A process ends only after all of its threads, and these wait for the database.
        _LOG.error("the ledger did not answer before the shutdown; its last commands may or may not be recorded")
        os._exit(2)
    if not server.started:
        raise SystemExit(2)


def new_config(app: ASGIApp, service: Service) -> uvicorn.Config:
    """The configuration of the HTTP server."""
    return uvicorn.Config(
        app,
        http=_connection(service),
        loop="uvloop" if _has_uvloop() else "asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )


class Server(uvicorn.Server):
    """Ends with exit code 0 on SIGTERM and SIGINT, and loads the plan and the tokens again on SIGHUP."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._on_start = service, started

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the service first, so that errors of the plan and the ledger are reported; stop it at the end."""
        await require_limits_hold()
        try:
            await self._service.start()
            await super().serve(sockets)
        finally:
            await self._service.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn; then report that it listens."""
        await super().startup(sockets)
        if self.started:
            self._on_start()

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn, which calls this ten times per second."""
        if counter % (10 // CHECKS_PER_SECOND) == 0:
            now, most = asyncio.get_running_loop().time(), self._service.settings.limits.unsent_bytes
            check_connections(list(self.server_state.connections), now, most)  # type: ignore[arg-type]
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals shut the process down gracefully, and are not raised again."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach the main thread alone
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._swap)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        _LOG.info("shutting down: answering pending requests")
        self.should_exit = True

    def _swap(self) -> None:
        for reload in self._service.reloads:
            try:
                reload()
            except UsageError as error:
                _LOG.error("%s; the tokens stay as they were", error)

        async def swap() -> None:
            try:
                await self._service.swap(None)
            except ApiError as error:
                _LOG.error("%s", error.message)

        self._swapping = asyncio.ensure_future(swap())


def _connection(service: Service) -> Any:
    """What uvicorn calls for each new connection."""
    return partial(LimitedConnection, limits=service.settings.limits, refused=service.metrics.refused)


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def serving(service: Service, tokens: Tokens | None = None) -> Iterator[int]:
    """Serve in a thread on a free port of this machine, which is given, until the block ends; then shut down.

    For demonstrations and tests.
    """
    opened = bound("127.0.0.1", 0)
    ready, failed = threading.Event(), list[BaseException]()
    server = Server(new_config(new_app(service, tokens), service), service, ready.set)

    def serve() -> None:
        try:
            with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
                runner.run(server.serve(sockets=[opened]))
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=serve, name="server")
    thread.start()
    try:
        ready.wait()
        if failed:
            raise failed[0]
        yield opened.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        opened.close()
