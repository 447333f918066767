"""The process: a socket, signals, and an end in good order."""

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
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from redenvelope.errors import UsageError
from redenvelope.serve.admission import Tokens
from redenvelope.serve.app import new_app
from redenvelope.serve.messages import ApiError
from redenvelope.serve.service import Service

_LOG = logging.getLogger("redenvelope.serve")
_DRAIN_SECONDS = 30
_MOST_CONNECTIONS = 2_000


def bound(host: str, port: int) -> socket.socket:
    """A socket that is bound; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
    except (OSError, OverflowError) as error:
        opened.close()
        raise UsageError(f"{host}:{port} cannot be bound ({error}); choose another --port") from None
    return opened


def run(app: ASGIApp, service: Service, opened: socket.socket, started: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; then take no new requests, answer those that are there, and return."""
    server = Server(new_config(app, service), service, started)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[opened]))
    if service.is_stuck:
        # The end of a process waits for all of its threads, and these would wait for the database.
        _LOG.error("the ledger did not answer: ended without it; what it was asked last may be in the books or not")
        os._exit(2)
    if not server.started:
        raise SystemExit(2)


def new_config(app: ASGIApp, service: Service) -> uvicorn.Config:
    """How HTTP is spoken."""
    return uvicorn.Config(
        app,
        http=_protocol(service.settings.limits.body_seconds),
        loop="uvloop" if _has_uvloop() else "asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        limit_concurrency=_MOST_CONNECTIONS,
    )


class Server(uvicorn.Server):
    """Ends with 0 when it was asked to end, and takes the plan anew on SIGHUP."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._told = service, started

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Get ready first, so that what is wrong with the plan or the ledger is said in words; stop at the end."""
        try:
            await self._service.start()
            await super().serve(sockets)
        finally:
            await self._service.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn; then say where it is."""
        await super().startup(sockets)
        if self.started:
            self._told()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals that end the process do so in good order, and are not raised again."""
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
        _LOG.info("asked to end: answering those who wait")
        self.should_exit = True

    def _swap(self) -> None:
        async def swap() -> None:
            try:
                await self._service.swap(None)
            except ApiError as error:
                _LOG.error("%s", error.message)

        self._swapping = asyncio.ensure_future(swap())


def _protocol(seconds: float) -> Any:
    """HTTP as uvicorn speaks it, but whoever sends headers slower than this is left."""

    class Impatient(HttpToolsProtocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._go_on()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._wait()

        def on_headers_complete(self) -> None:
            self._go_on()
            super().on_headers_complete()

        def _wait(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self._give_up)

        def _go_on(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _give_up(self) -> None:
            self._deadline = None
            if not self.transport.is_closing():
                self.transport.close()

    return Impatient


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return False
    return True


# A service in a thread of the process: for demonstrations and tests, on this machine only.


@contextmanager
def serving(service: Service, tokens: Tokens | None = None) -> Iterator[int]:
    """Serve on a free port, which is given, until the block ends; then stop in good order."""
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
