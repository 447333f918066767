"""Admission: tokens and roles, hosts and origins, rate limits, and limits on the size and time of request bodies.

A request to an address with a role passes `Admission.admit` before its body is read; a token bucket limits each caller.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request

from redenvelope.errors import UsageError
from redenvelope.files import read_regular
from redenvelope.serve.messages import ApiError
from redenvelope.serve.settings import Limits

_LOG = logging.getLogger("redenvelope.serve")
_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")
_MOST_CALLERS = 10_000
_FORGET_SECONDS = 60.0
_FREE_FAILURES = 3
_MOST_DELAYED = 100


class Admission:
    """Admits requests by host, origin, token, role and rate; without tokens, any local caller may do everything."""

    def __init__(self, tokens: Tokens | None, limits: Limits) -> None:
        self._tokens, self._limits = tokens, limits
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Failed logins by address: how many, and when the last one was."""
        self._delayed = 0

    def admit(self, request: Request, role: str) -> str:
        """The name of the caller; a caller without the role or above the rate is refused."""
        self._require_own_site(request)
        if self._tokens is None:
            name = request.client.host if request.client else "local"
        else:
            name = self._recognised(request, role).name
        self._count(name)
        return name

    def _require_own_site(self, request: Request) -> None:
        """Refuse requests from pages of another origin, also under a foreign host name (DNS rebinding)."""
        headers = request.headers
        hosts = headers.getlist("host")
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            raise ApiError(400, "invalid_host", "the request needs one valid Host header", "send the host and port")
        if self._tokens is None and found[1].lower() not in _LOOPBACK_HOSTS:
            message = "without tokens, the service accepts requests to 127.0.0.1 and localhost only"
            raise ApiError(403, "forbidden_host", message, "send the request to 127.0.0.1 or localhost")
        origins = headers.getlist("origin")
        same = all(origin.partition("://")[2].lower() == hosts[0].lower() for origin in origins)
        if not same or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            message = "the request comes from a page of another origin"
            raise ApiError(403, "forbidden_origin", message, "open the page of the service itself, or call it directly")

    def _recognised(self, request: Request, role: str) -> Caller:
        assert self._tokens is not None
        caller = self._tokens.caller(request.headers.get("authorization"))
        if caller is None:
            message = "the request has no valid token"
            raise ApiError(401, "unauthorized", message, "send the header Authorization: Bearer TOKEN")
        if not caller.may(role):
            message = f"the token does not have the role {role!r}, which this address needs"
            raise ApiError(403, "forbidden", message, "use a token with that role")
        return caller

    async def failed(self, request: Request) -> None:
        """Log a failed login, and delay the answer to an address that fails repeatedly; other callers do not wait.

        The address is not blocked: others may share it, and 256 random bits cannot be guessed anyway.
        """
        address, now = request.client.host if request.client else "local", time.monotonic()
        count, last = self._failures.pop(address, (0, now))
        count = 1 if now - last > _FORGET_SECONDS else count + 1
        self._failures[address] = (count, now)
        if len(self._failures) > _MOST_CALLERS:
            self._failures.popitem(last=False)
        if count & (count - 1) == 0:  # the 1st, 2nd, 4th, … so that nobody can fill the log
            _LOG.warning("failed login from %s at %s (%d in a row)", address, request.url.path, count)
        if count <= _FREE_FAILURES or self._delayed >= _MOST_DELAYED:
            return
        self._delayed += 1
        try:
            seconds = 0.1 * 2.0 ** min(count - _FREE_FAILURES, 10)
            await asyncio.sleep(min(seconds, self._limits.failed_login_seconds))
        finally:
            self._delayed -= 1

    def _count(self, name: str) -> None:
        """Take one request from the caller's token bucket, which refills at the rate and holds one burst."""
        now, limits = time.monotonic(), self._limits
        full, at = self._buckets.pop(name, (float(limits.burst), now))
        full = min(float(limits.burst), full + (now - at) * limits.requests_per_second) - 1.0
        self._buckets[name] = (max(full, 0.0), now)
        if len(self._buckets) > _MOST_CALLERS:
            self._buckets.popitem(last=False)
        if full < 0:
            raise ApiError(429, "too_many_requests", "the rate limit is exceeded", "wait a second, or send batches")


class Bodies:
    """Reads bodies of requests, and limits the memory of all bodies in use."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._bytes = limits, 0

    async def read(self, request: Request, most: int) -> bytearray:
        """Read a body, which must be declared as JSON and keep the limits on size and time; counts until `release`."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            message = "the body must be declared as JSON"
            raise ApiError(415, "unsupported_media_type", message, "send the header Content-Type: application/json")
        stated = request.headers.get("content-length", "0")
        if stated.isdigit() and int(stated) > most:
            raise _too_large(most)
        seconds = self._limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._received(request, most)
        except TimeoutError:
            message = "the body did not arrive in time"
            raise ApiError(408, "too_slow", message, f"send it within {seconds:g} seconds") from None

    async def _received(self, request: Request, most: int) -> bytearray:
        content, more = bytearray(), True
        while more:
            part = await request.receive()
            if part["type"] == "http.disconnect":
                raise ApiError(400, "disconnected", "the body is not complete", "send the request again")
            content += part.get("body", b"")
            more = part.get("more_body", False)
            if len(content) > most:
                raise _too_large(most)
            self._bytes += len(content) - request.scope.get("body_bytes", 0)
            request.scope["body_bytes"] = len(content)
            if self._bytes > self._limits.bodies_bytes:
                message = "too many large requests are being answered"
                raise ApiError(503, "overloaded", message, "retry with the same request_id, or send smaller batches")
        return content

    def release(self, request: Request) -> None:
        """Stop counting the body of a request, because the request is answered."""
        self._bytes -= request.scope.pop("body_bytes", 0)


def _too_large(most: int) -> ApiError:
    return ApiError(413, "too_large", f"the body is larger than {most:,} bytes", "send fewer rows per request")


ROLES = {
    "decide": "request decisions",
    "settle": "report outcomes",
    "read": "read the campaign, its log and its metrics",
    "admin": "all of these, and activate another plan",
}
"""The roles of a token."""

_LARGEST_BYTES = 2**20
_LINE = re.compile(r"(?P<name>\S{1,100})\s+(?P<roles>[a-z,]+)\s+(?P<hash>[0-9a-f]{64})")


@dataclass(frozen=True)
class Caller:
    """The owner of a valid token."""

    name: str
    roles: frozenset[str]

    def may(self, role: str) -> bool:
        """Whether the caller has a role."""
        return role in self.roles or "admin" in self.roles


@dataclass
class Tokens:
    """The tokens of a file: one line for each, with a name, roles, and the SHA-256 of the secret.

    The secrets are 256 random bits, which cannot be guessed: a fast hash is as good as a slow one.
    """

    callers: tuple[tuple[bytes, Caller], ...]
    path: Path

    def reload(self) -> None:
        """Read the file again; revoked tokens end at once. An unreadable file is an error, and the old tokens stay."""
        self.callers = Tokens.read(self.path).callers

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Read a file of tokens; # begins a comment."""
        try:
            text = read_regular(path, _LARGEST_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: cannot be read ({error}); create tokens with redenvelope token") from None
        callers = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            found = _LINE.fullmatch(line.strip())
            if found is None:
                raise UsageError(
                    f"{path}, line {number}: expected a token (name, roles, SHA-256); create one with redenvelope token"
                )
            roles = _checked(found["roles"].split(","))
            callers.append((found["hash"].encode(), Caller(found["name"], roles)))
        if not callers:
            raise UsageError(f"{path}: contains no token; create one with redenvelope token")
        return cls(tuple(callers), path)

    def caller(self, header: str | None) -> Caller | None:
        """The caller whose token is in an Authorization header, found in constant time."""
        scheme, _, secret = (header or "").partition(" ")
        hashed = hashlib.sha256(secret.strip().encode("utf-8", "surrogatepass")).hexdigest().encode()
        found = None
        for known, caller in self.callers:
            if hmac.compare_digest(known, hashed):
                found = caller
        return found if scheme.lower() == "bearer" else None


def new_token(name: str, roles: Iterable[str]) -> tuple[str, str]:
    """A new secret, and the line that goes into the file of tokens."""
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,100}", name):
        raise UsageError(f"the name {name!r} of the token is not valid; use letters, digits and . _ @ -")
    checked = _checked(roles)
    secret = secrets.token_urlsafe(32)
    hashed = hashlib.sha256(secret.encode()).hexdigest()
    return secret, f"{name} {','.join(sorted(checked))} {hashed}"


def _checked(roles: Iterable[str]) -> frozenset[str]:
    found = frozenset(role.strip() for role in roles if role.strip())
    unknown = found - set(ROLES)
    if unknown or not found:
        raise UsageError(f"unknown role {', '.join(sorted(unknown)) or 'nothing'}; choose from {', '.join(ROLES)}")
    return found
