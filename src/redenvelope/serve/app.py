"""The HTTP interface: routes, one shape for every error, headers that keep browsers from mischief."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from redenvelope.serve.admission import Admission, body_of
from redenvelope.serve.answers import (
    ApiError,
    DecisionBatch,
    DecisionRequest,
    OutcomeBatch,
    OutcomeRequest,
    PlanRequest,
    decoded,
)
from redenvelope.serve.openapi import document
from redenvelope.serve.service import Service
from redenvelope.serve.tokens import Tokens
from redenvelope.serve.view import campaign_view, gauges, log_row

__all__ = ["HEADERS", "new_app"]

_LOG = logging.getLogger("redenvelope.serve")
_MOST_ROWS = 10_000
_SECONDS_STATIC = 3_600
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
"""Of every answer."""
_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
Work = Callable[[Request], Awaitable[Response]]


class _Handlers:
    """What each route does."""

    def __init__(self, service: Service) -> None:
        self._service, self._limits = service, service.settings.limits
        self._document = msgspec.json.encode(document())

    async def decide(self, request: Request) -> Response:
        asked = decoded(await self._body(request, self._limits.body_bytes), DecisionRequest)
        (answer,) = await self._in_time(self._service.decide([asked]))
        return _answered(answer)

    async def decide_batch(self, request: Request) -> Response:
        asked = decoded(await self._body(request, self._limits.batch_bytes), DecisionBatch)
        return _all_answered(await self._in_time(self._service.decide(asked.decisions)))

    async def settle(self, request: Request) -> Response:
        outcome = decoded(await self._body(request, self._limits.body_bytes), OutcomeRequest)
        (answer,) = await self._in_time(self._service.settle([outcome]))
        return _answered(answer)

    async def settle_batch(self, request: Request) -> Response:
        asked = decoded(await self._body(request, self._limits.batch_bytes), OutcomeBatch)
        return _all_answered(await self._in_time(self._service.settle(asked.outcomes)))

    async def plan(self, request: Request) -> Response:
        asked = decoded(await self._body(request, self._limits.body_bytes), PlanRequest)
        return _json({"plan": await self._service.swap(asked.plan)})

    async def campaign(self, request: Request) -> Response:
        service, use = self._service, self._service.use
        if use is None:
            raise ApiError(503, "not_ready", "the plan is not loaded yet", "wait until /readyz answers 200")
        view = partial(campaign_view, service.ledger, use, service.settings, service.metrics, service.clock())
        return _json(await service.read(view))

    async def log(self, request: Request) -> Response:
        after, limit = _number(request, "after", 0), min(_number(request, "limit", 1_000), _MOST_ROWS)
        rows = await self._service.read(partial(self._service.ledger.decided, after, limit))
        lines = b"".join(msgspec.json.encode(log_row(row)) + b"\n" for row in rows)
        return _Answer(lines, media_type="application/x-ndjson")

    async def metrics(self, request: Request) -> Response:
        service = self._service
        found = await service.read(partial(gauges, service.ledger, service.use))
        return _Answer(service.metrics.text(found), media_type="text/plain; version=0.0.4")

    async def health(self, request: Request) -> Response:
        return _json({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        if not self._service.is_ready:
            raise ApiError(503, "not_ready", "the service is starting or stopping", "ask again in a second")
        await self._service.read(self._service.ledger.balances)
        return _json({"status": "ready"})

    async def openapi(self, request: Request) -> Response:
        return _Answer(self._document, media_type="application/json")

    async def _body(self, request: Request, most: int) -> bytes:
        return await body_of(request, most, self._limits.body_seconds)

    async def _in_time(self, work: Any) -> Any:
        try:
            async with asyncio.timeout(self._limits.answer_seconds):
                return await work
        except TimeoutError:
            said = "the answer took too long; it may be in the books"
            raise ApiError(503, "timeout", said, "ask again with the same request_id") from None


def new_app(service: Service, tokens: Tokens | None) -> ASGIApp:
    """The application around a service that somebody else starts and stops.

    Every address is a fixed one, so that it is looked up in a table: a router's patterns and layers would take longer
    than anything else that is done for a request.
    """
    handlers, admission = _Handlers(service), Admission(tokens, service.settings.limits)
    routes: dict[str, dict[str, Work]] = {}

    def route(path: str, method: str, role: str | None, work: Work) -> None:
        async def endpoint(request: Request) -> Response:
            began = time.perf_counter()
            try:
                if role is not None:
                    admission.admit(request, role)
                response = await work(request)
            except ApiError as error:
                response = _error(error)
            except Exception:
                _LOG.exception("a request failed inside")
                response = _error(ApiError(500, "internal", "something went wrong inside", "see the service's log"))
            service.metrics.answered(path, response.status_code, time.perf_counter() - began)
            return response

        routes.setdefault(path, {})[method] = endpoint

    route("/v1/decisions", "POST", "decide", handlers.decide)
    route("/v1/decisions/batch", "POST", "decide", handlers.decide_batch)
    route("/v1/outcomes", "POST", "settle", handlers.settle)
    route("/v1/outcomes/batch", "POST", "settle", handlers.settle_batch)
    route("/v1/plan", "POST", "admin", handlers.plan)
    route("/v1/campaign", "GET", "read", handlers.campaign)
    route("/v1/log", "GET", "read", handlers.log)
    route("/metrics", "GET", "read", handlers.metrics)
    route("/healthz", "GET", None, handlers.health)
    route("/readyz", "GET", None, handlers.ready)
    route("/openapi.json", "GET", None, handlers.openapi)
    for path, content in _PAGE.items():
        route(path, "GET", None, _file(*content))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # nothing else is spoken
            return
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        found = routes.get(scope["path"], {}).get(method)
        response = _unrouted(scope["path"] in routes) if found is None else await found(Request(scope, receive))
        await response(scope, receive, send)

    return app


class _Answer(Response):
    """With the headers of every answer, which are made once and not again for each."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        kind = f"{self.media_type}; charset=utf-8" if str(self.media_type).startswith("text/") else self.media_type
        own = [(b"content-length", b"%d" % len(self.body)), (b"content-type", str(kind).encode())]
        more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self.raw_headers = [*own, *_HEADERS, *more]


def _file(name: str, kind: str) -> Work:
    content = files("redenvelope.serve").joinpath("page", name).read_bytes()

    async def serve(request: Request) -> Response:
        return _Answer(content, media_type=kind)

    return serve


def _unrouted(known: bool) -> Response:
    """Of an address that is not there, or is asked in another way."""
    if known:
        refused = ApiError(405, "wrong_method", "this address is asked in another way", "see /openapi.json")
    else:
        refused = ApiError(404, "not_found", "there is nothing at this address", "see /openapi.json")
    return _error(refused)


def _number(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise ApiError(422, "invalid_request", f"{name} must be a number of at least 0", "leave it out, or mend it")
    return int(given)


def _answered(answer: Any) -> Response:
    return _error(answer) if isinstance(answer, ApiError) else _json(answer)


def _all_answered(answers: Any) -> Response:
    return _json({"answers": [one.content() if isinstance(one, ApiError) else one for one in answers]})


def _json(content: Any) -> Response:
    return _Answer(msgspec.json.encode(content), media_type="application/json")


def _error(error: ApiError) -> Response:
    more = {}
    if error.status == 401:
        more["www-authenticate"] = "Bearer"
    if error.status in (429, 503):
        more["retry-after"] = "1"
    return _Answer(msgspec.json.encode(error.content()), error.status, more, "application/json")
