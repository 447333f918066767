"""The server process: its socket, its signals, its graceful shutdown, and limits on connections.

uvicorn parses requests and sends answers. `LimitedConnection` adds limits that uvicorn lacks and that apply before a
client is authenticated: the size and number of headers, pipelined requests, connections, and the time to send a
request and to read an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from redenvelope.errors import UsageError
from redenvelope.serve.admission import Tokens
from redenvelope.serve.app import new_app
from redenvelope.serve.messages import ApiError
from redenvelope.serve.service import Service
from redenvelope.serve.settings import Limits

CHECKS_PER_SECOND = 2
_OWN_FILES = 64
"""File descriptors that the process needs besides connections: for the ledger, the plan, programs."""
_LARGEST_FRAME = 2
"""The largest request, chunk framing included, as a multiple of the largest body."""
_PIECE_BYTES = 16 * 1024
_GRACE_SECONDS = 1.0
"""Time for the application to answer a late body with an error message before the connection is closed."""
_MALFORMED = ApiError(400, "invalid_http", "the request is not valid HTTP/1.1", "send a valid request")
_PIPELINED = ApiError(400, "pipelined", "too many requests were sent ahead", "wait for an answer, or send batches")
_ENDLESS = ApiError(413, "too_large", "the request does not end", "send smaller requests")
_FULL = ApiError(503, "overloaded", "too many connections are open", "retry later, and use connections again")
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
    """Serve until SIGTERM or SIGINT; then accept no new requests, answer pending ones, and return."""
    server = Server(new_config(app, service), service, started)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[opened]))
    if service.is_stuck:
        # A process ends only after all of its threads, and some still wait for the database.
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
    """Exits with code 0 on SIGTERM and SIGINT, and reloads the plan and the tokens on SIGHUP."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._on_start = service, started
        self._swapping: asyncio.Task[None] | None = None
        self._wants_swap = False

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the service first, so that errors of the plan and the ledger are reported; stop it at the end."""
        await require_limits_hold()
        try:
            if threading.current_thread() is threading.main_thread():  # SIGHUP would otherwise end the process
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._swap)
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

        self._wants_swap = True
        if self._swapping is None or self._swapping.done():
            self._swapping = asyncio.ensure_future(self._swap_as_wanted())

    async def _swap_as_wanted(self) -> None:
        """Reload the plan once the server is started, and once more if another reload was requested meanwhile."""
        while self._wants_swap:
            while not (self.started or self.should_exit):
                await asyncio.sleep(0.05)
            self._wants_swap = False
            try:
                await self._service.swap(None)
            except ApiError as error:
                _LOG.error("%s", error.message)


def _connection(service: Service) -> Any:
    """The factory that uvicorn calls for each new connection."""
    return partial(LimitedConnection, limits=service.settings.limits, refused=service.metrics.refused, waiting={})


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def serving(service: Service, tokens: Tokens | None = None) -> Iterator[int]:
    """Serve in a thread on a free port of this machine, which is yielded; shut down when the block ends.

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


# Connections: the limits that uvicorn lacks.


def most_connections(limits: Limits) -> int:
    """Connections that may be open at once: no more than the process may open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        limits.connections if files == resource.RLIM_INFINITY else max(1, min(limits.connections, files - _OWN_FILES))
    )


class LimitedConnection(HttpToolsProtocol):
    """A connection of uvicorn with limits; `check` is called regularly and enforces those on time."""

    def __init__(self, *given: Any, limits: Limits, refused: Callable[[str], None], waiting: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._limits, self._refused = limits, refused
        self._waiting: dict[LimitedConnection, None] = waiting
        """All connections without a complete request, the one that waits longest first."""
        self._most_connections = most_connections(limits)
        self._refusal = _MALFORMED
        self._head_bytes: int | None = 0
        """Bytes received of an incomplete head; None between the end of a head and the next request."""
        self._request_bytes = 0
        """Bytes received of an incomplete request, with everything that the parser skips."""
        self._frame_bytes = 0
        """Bytes received since the last part of a body."""
        self._answering: RequestResponseCycle | None = None
        self._reading_since: float | None = None
        self._unsent_since: float | None = None

    def connection_made(self, transport: Any) -> None:
        """See asyncio; above the limit, the connection that waits longest for a request is closed, or else this one."""
        super().connection_made(transport)
        self._reading_since = self.loop.time()
        if len(self.connections) > self._most_connections:
            oldest = next(iter(self._waiting), self)
            self._waiting.pop(oldest, None)
            oldest._refuse(_FULL)
        self._waiting[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio; uvicorn marks only the last request as disconnected, so mark the one being answered."""
        if self._answering is not None:
            self._answering.disconnected = True
        self._waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse in pieces and count the bytes of heads, because the parser keeps a header of any size, and the bytes
        between and after chunks, because it skips chunk extensions and keeps trailers."""
        for first in range(0, len(data), _PIECE_BYTES):
            if self.transport.is_closing():
                return
            piece = data[first : first + _PIECE_BYTES]
            if self._head_bytes is not None:
                self._head_bytes += len(piece)
            self._request_bytes += len(piece)
            self._frame_bytes += len(piece)
            super().data_received(piece)
            if self._head_bytes is not None and self._head_bytes > self._limits.head_bytes:
                self._refuse(self._head_too_large())
            elif self._is_endless():
                self._refuse(_ENDLESS)

    def _is_endless(self) -> bool:
        framed = self._head_bytes is None and self._frame_bytes > _PIECE_BYTES + self._limits.head_bytes
        return framed or self._request_bytes > _LARGEST_FRAME * self._limits.batch_bytes

    def on_body(self, body: bytes) -> None:
        """Part of a body arrived."""
        self._frame_bytes = 0
        super().on_body(body)

    def on_message_begin(self) -> None:
        """A request begins, perhaps in the middle of received data."""
        super().on_message_begin()
        if self._head_bytes is None:
            self._head_bytes = 0
        self._reading_since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is complete."""
        if len(self.headers) >= self._limits.headers:
            self._stop(self._head_too_large())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete; its body, if any, comes next."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._limits.head_bytes:
            self._stop(self._head_too_large())
        if len(self.pipeline) >= self._limits.pipelined:
            self._stop(_PIPELINED)
        self._head_bytes = None
        self._reading_since = self.loop.time() + _GRACE_SECONDS
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._reading_since, self._request_bytes, self._frame_bytes = None, 0, 0
        self._waiting.pop(self, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is sent; drop the unread rest of the body, which would otherwise stay with the connection."""
        self._answering = self.pipeline[-1][0] if self.pipeline else None
        if not self.pipeline:
            self.cycle.body = bytearray()
            self._waiting[self] = None
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that could not be parsed, with the common shape of errors."""
        self._refuse(self._refusal)

    def check(self, now: float) -> int:
        """Close the connection if the client is too slow; returns the bytes that the client has yet to read."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self._unsent_since = None
        elif self._unsent_since is None:
            self._unsent_since = now
        elif now - self._unsent_since > self._limits.write_seconds:
            self.abort("slow_reader")
            return 0
        if self._reading_since is not None and now - self._reading_since > self._limits.body_seconds:
            self._reading_since = None
            self._refused("slow_request")
            self.transport.close()
        return int(unsent)

    def abort(self, code: str) -> None:
        """Close the connection at once, and drop what the client has not read."""
        self._refused(code)
        self.transport.abort()

    def _stop(self, refusal: ApiError) -> None:
        """Stop parsing: uvicorn then calls `send_400_response`."""
        self._refusal = refusal
        raise ValueError(refusal.message)

    def _refuse(self, error: ApiError) -> None:
        if self.transport.is_closing():
            return
        self._refused(error.code)
        if self.cycle is None or self.cycle.response_complete:  # else it would look like another request's answer
            body = msgspec.json.encode(error.content())
            status = HTTPStatus(error.status)
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _head_too_large(self) -> ApiError:
        most, number = self._limits.head_bytes, self._limits.headers
        message = f"the headers are larger than {most:,} bytes, or more than {number:,}"
        return ApiError(431, "headers_too_large", message, "send fewer or shorter headers")


async def require_limits_hold() -> None:
    """Test the limits on connections without a client. They use internals of uvicorn, so a new release may break some
    of them without an error; then refuse to serve."""
    heard: list[str] = []
    silent = logging.Logger("silent", logging.CRITICAL)
    config = uvicorn.Config(_hears, ws="none", lifespan="off", log_config=None, access_log=False)
    limits, head = Limits(head_bytes=200, headers=4, pipelined=2, batch_bytes=500), b"GET / HTTP/1.1\r\nHost: a\r\n"
    chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    problem, lost = "a request is not told that its connection was lost", True
    try:
        for sent in (head + b"x" * 300, head + b"x: y\r\n" * 5, (head + b"\r\n") * 5, chunked + b"1;" + b"x" * 1_000):
            own: dict[str, Any] = {"limits": limits, "refused": heard.append, "waiting": {}}
            made = LimitedConnection(config=config, server_state=ServerState(), app_state={}, **own)
            made.logger = silent
            made.connection_made(_Nowhere())
            made.data_received(sent)
            answering = made._answering
            made.connection_lost(None)
            lost = lost and (answering is None or answering.disconnected)
        await asyncio.sleep(0)  # requests in progress learn that their connection is lost
    except (AttributeError, TypeError) as error:
        problem, lost = str(error), False
    if heard != ["headers_too_large", "headers_too_large", "pipelined", "too_large"] or not lost:
        raise UsageError(
            f"uvicorn {uvicorn.__version__} does not keep the limits on connections ({problem}; refused were "
            f"{', '.join(heard) or 'none'}); install a release of uvicorn that this version was tested with"
        )


async def _hears(scope: Any, receive: Any, send: Any) -> None:
    await receive()


class _Nowhere(asyncio.Transport):
    """A transport that leads nowhere."""

    closed = False

    def write(self, data: Any) -> None: ...

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def check_connections(connections: Iterable[LimitedConnection], now: float, most_unsent: int) -> None:
    """Enforce the time limits, and the limit on unread bytes of all clients together, by closing the largest first."""
    unsent = sorted(((one.check(now), place, one) for place, one in enumerate(connections)), reverse=True)
    total = sum(size for size, _, _ in unsent)
    for size, _, one in unsent:
        if total <= most_unsent:
            return
        one.abort("slow_reader")
        total -= size
