"""The HTTP interface: routes (`_ROUTES`), one shape for every error, security headers, and its OpenAPI document."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from redenvelope import __version__
from redenvelope.serve.admission import Admission, Bodies, Tokens
from redenvelope.serve.messages import (
    ApiError,
    CorrectionRequest,
    DecisionAnswer,
    DecisionBatch,
    DecisionRequest,
    OutcomeAnswer,
    OutcomeBatch,
    OutcomeRequest,
    PlanRequest,
    decoded,
)
from redenvelope.serve.monitoring import REQUEST_ID, WriteProbe, campaign_view, log_lines
from redenvelope.serve.service import Service

_LOG = logging.getLogger("redenvelope.serve")
_REQUESTS = logging.getLogger("redenvelope.serve.requests")
"""Logs one line per request, if enabled."""
_PLAIN_ID = re.compile("[A-Za-z0-9._-]{1,64}")
_OURS, _NUMBERS = secrets.token_hex(4), itertools.count(1)
_MOST_ROWS = 10_000
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
"""Sent with every answer."""
_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
Work = Callable[[Request], Awaitable[Response]]


class _Handlers:
    """One method per route."""

    def __init__(self, service: Service, with_tokens: bool) -> None:
        self._service, self._limits = service, service.settings.limits
        self.bodies = Bodies(self._limits)
        self._probe = WriteProbe(service.ledger)
        self._document = msgspec.json.encode(document(with_tokens))

    async def decide(self, request: Request) -> Response:
        asked = decoded(await self.bodies.read(request, self._limits.body_bytes), DecisionRequest)
        (answer,) = await self._in_time(self._service.decide([asked]))
        return _answered(answer)

    async def decide_batch(self, request: Request) -> Response:
        asked = decoded(await self.bodies.read(request, self._limits.batch_bytes), DecisionBatch)
        return _all_answered(await self._in_time(self._service.decide(asked.decisions)))

    async def settle(self, request: Request) -> Response:
        outcome = decoded(await self.bodies.read(request, self._limits.body_bytes), OutcomeRequest)
        (answer,) = await self._in_time(self._service.settle([outcome]))
        return _answered(answer)

    async def settle_batch(self, request: Request) -> Response:
        asked = decoded(await self.bodies.read(request, self._limits.batch_bytes), OutcomeBatch)
        return _all_answered(await self._in_time(self._service.settle(asked.outcomes)))

    async def correct(self, request: Request) -> Response:
        asked = decoded(await self.bodies.read(request, self._limits.body_bytes), CorrectionRequest)
        return _answered(await self._in_time(self._service.correct(asked, request.scope["caller"])))

    async def plan(self, request: Request) -> Response:
        asked = decoded(await self.bodies.read(request, self._limits.body_bytes), PlanRequest)
        return _json({"plan": await self._service.swap(asked.plan)})

    async def campaign(self, request: Request) -> Response:
        service, active = self._service, self._service.active
        if active is None:
            raise ApiError(503, "not_ready", "the plan is not loaded yet", "retry once /readyz answers 200")
        metrics, alerts = service.metrics, service.alerts
        view = partial(campaign_view, service.ledger, active, service.settings, metrics, alerts, service.clock())
        return _json(await service.read(view))

    async def log(self, request: Request) -> Response:
        after, limit = _number(request, "after", 0), min(_number(request, "limit", 1_000), _MOST_ROWS)
        epoch = request.query_params.get("epoch", "")
        lines = await self._service.read(partial(log_lines, self._service.ledger, after, limit, epoch))
        return _Answer(lines, media_type="application/x-ndjson")

    async def metrics(self, request: Request) -> Response:
        text = await self._service.read(self._service.metrics.text)
        return _Answer(text, media_type="text/plain; version=0.0.4")

    async def health(self, request: Request) -> Response:
        return _json({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        if not self._service.is_ready:
            raise ApiError(503, "not_ready", "the service is starting or stopping", "retry in a second")
        if not await self._probe.is_writable():
            # Anybody may ask this, so the details of the ledger and its failure are only in the log.
            raise ApiError(503, "not_ready", "the service cannot record decisions", "retry later, or see its log")
        return _json({"status": "ready"})

    async def openapi(self, request: Request) -> Response:
        return _Answer(self._document, media_type="application/json")

    async def _in_time(self, work: Any) -> Any:
        try:
            async with asyncio.timeout(self._limits.answer_seconds):
                return await work
        except TimeoutError:
            message = "the request timed out; it may have been recorded"
            raise ApiError(503, "timeout", message, "retry with the same request_id") from None


def new_app(service: Service, tokens: Tokens | None) -> ASGIApp:
    """The ASGI application around a service, which the caller starts and stops.

    All addresses are fixed, so a dictionary finds them: pattern matching and middleware layers would take longer than
    the rest of a request.
    """
    handlers, admission = _Handlers(service, tokens is not None), Admission(tokens, service.settings.limits)
    if tokens is not None:
        service.reloads.append(tokens.reload)
    routes: dict[str, dict[str, Work]] = {}

    def add(path: str, method: str, role: str | None, work: Work) -> None:
        async def endpoint(request: Request) -> Response:
            began = time.perf_counter()
            request_id = _request_id(request)
            REQUEST_ID.set(request_id)
            try:
                if role is not None:
                    request.scope["caller"] = admission.admit(request, role)
                response = await work(request)
            except ApiError as error:
                if error.status == 401:
                    service.metrics.refused(error.code)
                    await admission.failed(request)
                response = _error(error)
            except Exception:
                _LOG.exception("a request failed")
                response = _error(ApiError(500, "internal", "internal error", "see the log of the service"))
            finally:
                handlers.bodies.release(request)
            seconds = time.perf_counter() - began
            service.metrics.answered(path, response.status_code, seconds)
            response.raw_headers.append((b"x-request-id", request_id.encode()))
            if _REQUESTS.isEnabledFor(logging.INFO):
                _log_request(request, response.status_code, seconds)
            return response

        routes.setdefault(path, {})[method] = endpoint

    for route in _ROUTES:
        add(route.path, route.method, route.role, getattr(handlers, route.handler))
    add("/openapi.json", "GET", None, handlers.openapi)
    for path, content in _PAGE.items():
        add(path, "GET", None, _file(*content))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        known = routes.get(scope["path"], {})
        found = known.get(method)
        response = _unrouted(known) if found is None else await found(Request(scope, receive))
        await response(scope, receive, send)

    return app


class _Answer(Response):
    """A response with the common headers, which are encoded once."""

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


def _request_id(request: Request) -> str:
    """The caller's id of a request if it is a plain one, else a generated one."""
    given = request.headers.get("x-request-id")
    return given if given is not None and _PLAIN_ID.fullmatch(given) else f"{_OURS}-{next(_NUMBERS):x}"


def _log_request(request: Request, status: int, seconds: float) -> None:
    client = request.client.host if request.client else None
    said = {"method": request.method, "path": request.url.path, "status": status, "client": client}
    _REQUESTS.info("answered", extra={"fields": {**said, "milliseconds": round(1e3 * seconds, 3)}})


def _unrouted(known: Mapping[str, Work]) -> Response:
    """The error if no route matches; `known` are the methods of the address."""
    if known:
        error = ApiError(405, "wrong_method", "this address does not support this method", "see /openapi.json")
        return _error(error, {"allow": ", ".join(sorted({*known, *(["HEAD"] if "GET" in known else [])}))})
    return _error(ApiError(404, "not_found", "there is nothing at this address", "see /openapi.json for all addresses"))


def _number(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise ApiError(422, "invalid_request", f"{name} must be an integer of at least 0", "correct it or leave it out")
    return int(given)


def _answered(answer: Any) -> Response:
    return _error(answer) if isinstance(answer, ApiError) else _json(answer)


def _all_answered(answers: Any) -> Response:
    return _json({"answers": [one.content() if isinstance(one, ApiError) else one for one in answers]})


def _json(content: Any) -> Response:
    return _Answer(msgspec.json.encode(content), media_type="application/json")


def _error(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    more = dict(headers or {})
    if error.status == 401:
        more["www-authenticate"] = "Bearer"
    if error.status in (429, 503):
        more["retry-after"] = "1"
    return _Answer(msgspec.json.encode(error.content()), error.status, more, "application/json")


class _Route(NamedTuple):
    """An address, with its role, the name of its handler, and the types of its request and answer."""

    path: str
    method: str
    role: str | None
    handler: str
    summary: str
    body: type | None = None
    answer: Any = None
    """A type, a list of one type for a batch, a media type for text, or None for any object."""
    parameters: tuple[tuple[str, str, str], ...] = ()
    """Name, description and type."""


_LOG_PARAMETERS = (
    ("after", "Number of the last line that was read", "integer"),
    ("limit", "Largest number of rows", "integer"),
    ("epoch", "Epoch of the last line that was read: refused where the ledger was restored to before it", "string"),
)
_ROUTES = (
    _Route("/v1/decisions", "POST", "decide", "decide", "Decide", DecisionRequest, DecisionAnswer),
    _Route(
        "/v1/decisions/batch", "POST", "decide", "decide_batch", "Decide for several", DecisionBatch, [DecisionAnswer]
    ),
    _Route("/v1/outcomes", "POST", "settle", "settle", "Settle", OutcomeRequest, OutcomeAnswer),
    _Route("/v1/outcomes/batch", "POST", "settle", "settle_batch", "Settle several", OutcomeBatch, [OutcomeAnswer]),
    _Route(
        "/v1/corrections", "POST", "admin", "correct", "Correct a recorded outcome", CorrectionRequest, OutcomeAnswer
    ),
    _Route("/v1/plan", "POST", "admin", "plan", "Activate another plan", PlanRequest),
    _Route("/v1/campaign", "GET", "read", "campaign", "Balances, prices, pacing, and counts of actions"),
    _Route(
        "/v1/log",
        "GET",
        "read",
        "log",
        "Decisions and what came of them, as JSON lines",
        None,
        "application/x-ndjson",
        _LOG_PARAMETERS,
    ),
    _Route("/metrics", "GET", "read", "metrics", "Metrics for Prometheus", None, "text/plain"),
    _Route("/healthz", "GET", None, "health", "200 while the process runs"),
    _Route("/readyz", "GET", None, "ready", "200 once the plan is loaded, while the ledger can be written"),
)


def document(with_tokens: bool = True) -> dict[str, Any]:
    """The interface as an OpenAPI 3.1 document, made from the types that requests are decoded with."""
    asked = (DecisionRequest, DecisionBatch, OutcomeRequest, OutcomeBatch, CorrectionRequest, PlanRequest)
    kinds = [*asked, DecisionAnswer, OutcomeAnswer]
    shapes, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    text = {"type": "string"}
    names = ("code", "message", "remedy")
    error = {"type": "object", "required": list(names), "properties": dict.fromkeys(names, text)}
    schemas = dict(zip(kinds, shapes, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {"title": "redenvelope", "version": __version__, "description": "Decisions paid from a ledger."},
        "paths": {route.path: {route.method.lower(): _operation(route, schemas, with_tokens)} for route in _ROUTES},
        "components": {
            "schemas": {**components, "Error": error},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: _Route, schemas: Mapping[Any, Any], with_tokens: bool) -> dict[str, Any]:
    """One address in the OpenAPI document."""
    error = {"$ref": "#/components/schemas/Error"}
    answer: Any
    media = "application/json"
    if isinstance(route.answer, str):
        media, answer = route.answer, {"type": "string"}
    elif route.answer is None:
        answer = {"type": "object"}
    elif isinstance(route.answer, type):
        answer = schemas[route.answer]
    else:
        items = {"anyOf": [schemas[route.answer[0]], error]}
        answer = {"type": "object", "properties": {"answers": {"type": "array", "items": items}}}
    found: dict[str, Any] = {
        "summary": route.summary,
        "responses": {
            "200": {"description": "Done", "content": {media: {"schema": answer}}},
            "default": {"description": "Refused", "content": {"application/json": {"schema": error}}},
        },
    }
    if route.role is not None and with_tokens:
        found |= {"security": [{"token": []}], "description": f"Needs the role {route.role}."}
    if route.body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schemas[route.body]}}}
    if route.parameters:
        schemas_of = {"integer": {"type": "integer", "minimum": 0}, "string": {"type": "string"}}
        found["parameters"] = [
            {"name": name, "in": "query", "description": description, "schema": schemas_of[kind]}
            for name, description, kind in route.parameters
        ]
    return found
