"""Connections: limits on what a client may send before anybody asks who it is, and on how long it may take.

uvicorn parses and answers requests. `LimitedConnection` adds what it has no limits for: the size and the number of
headers, requests sent ahead, connections, and the time to send a request and to read an answer.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from redenvelope.serve.messages import ApiError
from redenvelope.serve.settings import Limits

CHECKS_PER_SECOND = 2
_OWN_FILES = 64
"""Files that the process opens beside connections: the ledger, the plan, programs."""
_GRACE_SECONDS = 1.0
"""The application answers late bodies first, in words."""
_MALFORMED = ApiError(400, "invalid_http", "the request is not valid HTTP/1.1", "send a valid request")
_PIPELINED = ApiError(400, "pipelined", "too many requests were sent ahead", "wait for an answer, or send batches")
_FULL = ApiError(503, "overloaded", "too many connections are open", "retry later, and use connections again")


def most_connections(limits: Limits) -> int:
    """Connections that may be open at once: no more than the process may open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        limits.connections if files == resource.RLIM_INFINITY else max(1, min(limits.connections, files - _OWN_FILES))
    )


class LimitedConnection(HttpToolsProtocol):
    """A connection of uvicorn within limits. `check` is called regularly and enforces those on time."""

    def __init__(self, *given: Any, limits: Limits, refused: Callable[[str], None], **named: Any) -> None:
        super().__init__(*given, **named)
        self._limits, self._refused = limits, refused
        self._most_connections = most_connections(limits)
        self._refusal = _MALFORMED
        self._head_bytes: int | None = 0
        """Received of a head that is not complete; None between the end of a head and the next request."""
        self._answering: RequestResponseCycle | None = None
        self._reading_since: float | None = None
        self._unsent_since: float | None = None

    def connection_made(self, transport: Any) -> None:
        """See asyncio; a connection too many is answered and closed at once."""
        super().connection_made(transport)
        self._reading_since = self.loop.time()
        if len(self.connections) > self._most_connections:
            self._refuse(_FULL)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio; uvicorn tells only the last of several requests, and the first would write to nobody."""
        if self._answering is not None:
            self._answering.disconnected = True
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        """Parse; count what belongs to a head, because the parser keeps a header of any size."""
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > self._limits.head_bytes:
            self._refuse(self._head_too_large())

    def on_message_begin(self) -> None:
        """A request begins, perhaps in the middle of what was received."""
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

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._reading_since = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is given; what is left of the body is not kept with the connection."""
        if not self.pipeline:
            self.cycle.body = bytearray()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that could not be parsed, in the shape of all errors."""
        self._refuse(self._refusal)

    def check(self, now: float) -> int:
        """Close the connection of a client that takes too long; the bytes that it still has to read."""
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
        """End parsing: uvicorn then calls `send_400_response`."""
        self._refusal = refusal
        raise ValueError(refusal.message)

    def _refuse(self, error: ApiError) -> None:
        if self.transport.is_closing():
            return
        self._refused(error.code)
        if self.cycle is None or self.cycle.response_complete:  # else it would be read as the answer to another request
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


def check_connections(connections: Iterable[LimitedConnection], now: float, most_unsent: int) -> None:
    """Enforce the limits on time, and on what all clients together have not read: the largest answers go first."""
    unsent = sorted(((one.check(now), place, one) for place, one in enumerate(connections)), reverse=True)
    total = sum(size for size, _, _ in unsent)
    for size, _, one in unsent:
        if total <= most_unsent:
            return
        one.abort("slow_reader")
        total -= size
