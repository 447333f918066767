"""A client of the service: typed decisions and outcomes over HTTP, sync (`Client`) and async (`AsyncClient`).

A call is one request with all of its retries. Each retry sends the same bytes, with the same `request_id` or
`decision_id`, and the service gives the same answer: however often a connection breaks, a user is decided for once and
an outcome is settled once. Importing this module loads neither jax nor anything else that planning needs.

    with Client("http://127.0.0.1:8080", token="…") as client:
        decision = client.decide("u-4711", {"city": "Lyon", "visits": 3})
        client.settle(decision.decision_id, reward=1.0, amount=decision.hold.amount)
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from redenvelope.errors import RedenvelopeError, UsageError

try:
    import httpx
except ModuleNotFoundError:
    raise ModuleNotFoundError("redenvelope.client needs httpx; run: pip install 'redenvelope[client]'") from None

Feature = bool | int | float | str | None
Answer = TypeVar("Answer")

_PASSING_STATUS = frozenset({429, 502, 503, 504})
_PASSING_CODES = frozenset({"too_many_requests", "overloaded", "not_ready", "unavailable", "timeout"})
"""Refusals that pass by themselves, after which the same request is sent again."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_MOST_ROWS = 1_000


# Messages. Fields that a newer service adds are ignored.


class Hold(msgspec.Struct, frozen=True):
    """The amount held for a decision, and until when."""

    amount: int | None
    """In minor units; None if several columns are paid, because they do not add up."""
    amounts: dict[str, int]
    """By budget."""
    expires_at: str
    units: dict[str, str] = {}
    """The unit of each budget: minor units or actions."""


class Decision(msgspec.Struct, frozen=True):
    """A decision for a user."""

    decision_id: str
    """The id to report the outcome with."""
    request_id: str
    user: str
    step: int
    action: str | int | float
    propensity: float
    hold: Hold
    prices: list[float | None]
    """The price of each budget; null is infinity. Empty for users of the control group, who follow no price."""
    plan: str

    @property
    def holdout(self) -> bool:
        """Whether the user is in the control group."""
        return not self.prices


class Settled(msgspec.Struct, frozen=True):
    """A recorded outcome."""

    decision_id: str
    status: str
    reward: float
    amount: int | None
    """As in the hold."""
    amounts: dict[str, int]
    units: dict[str, str] = {}


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """One user to decide for, in `decide_many`; a `request_id` is generated if none is given."""

    user: int | str
    features: dict[str, Feature]
    step: int | None = None
    eligible: list[str | int | float] | None = None
    request_id: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a decision; the amount is in minor units, one number or by budget."""

    decision_id: str
    reward: float
    amount: int | dict[str, int] = 0


class _Correction(msgspec.Struct, frozen=True):
    decision_id: str
    reward: float
    amount: int | dict[str, int]
    reason: str


class _Error(msgspec.Struct, frozen=True):
    """The one shape of the service's errors."""

    code: str
    message: str
    remedy: str


class _Many(msgspec.Struct, frozen=True):
    answers: list[msgspec.Raw]


# Errors.


class ClientError(RedenvelopeError):
    """Base class of everything that a call can fail with."""


class RefusedError(ClientError):
    """The service refused the request; has a stable `code`, what is wrong, and the `remedy`."""

    def __init__(self, status: int, code: str, message: str, remedy: str) -> None:
        super().__init__(f"{message} ({code}); {remedy}")
        self.status, self.code, self.message, self.remedy = status, code, message, remedy


class UnreachableError(ClientError):
    """No answer within the deadline: the request may or may not have been recorded.

    Call again with the same `request_id` (or the same outcome) to find out; nothing is done twice.
    """

    def __init__(self, address: str, deadline: float, attempts: int, reason: str, request_ids: tuple[str, ...]) -> None:
        again = f"; call again with request_id {request_ids[0]!r}" if len(request_ids) == 1 else ""
        super().__init__(f"{address}: no answer within {deadline:g} s in {attempts} attempts ({reason}){again}")
        self.request_ids = request_ids


class _Call(Generic[Answer]):
    """One request with its retries, except for the sending; shared by both clients."""

    def __init__(
        self,
        path: str,
        kind: Any,
        deadline: float,
        timeout: float,
        content: Any = None,
        request_ids: tuple[str, ...] = (),
        many: bool = False,
    ) -> None:
        self.method = "GET" if content is None else "POST"
        self.path, self._kind, self._many, self._ids = path, kind, many, request_ids
        self.body = None if content is None else msgspec.json.encode(content)
        self._deadline, self._timeout, self._end = deadline, timeout, time.monotonic() + deadline
        self._attempts = 0
        self.answer: Answer

    @property
    def timeout(self) -> float:
        """The time limit of the next attempt, in seconds."""
        return max(min(self._timeout, self._end - time.monotonic()), 1e-3)

    def failed(self, error: Exception) -> float:
        """Record an attempt without an answer; returns the pause before the next one."""
        return self._pause(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)

    def answered(self, status: int, body: bytes, wait: str | None) -> float | None:
        """None once `answer` is set, else the pause before the next attempt; `wait` is the `retry-after` header."""
        if status == 200:
            return self._decoded(body)
        error = _error_of(status, body)
        if status not in _PASSING_STATUS:
            raise error
        return self._pause(str(error), float(wait) if wait is not None and wait.isdigit() else 0.0)

    def _decoded(self, body: bytes) -> float | None:
        try:
            if not self._many:
                self.answer = body if self._kind is bytes else msgspec.json.decode(body, type=self._kind)  # type: ignore[assignment]
                return None
            answers = [self._one(each) for each in msgspec.json.decode(body, type=_Many).answers]
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise RefusedError(200, "unexpected_answer", f"not an answer of the service: {error}", _LOOK) from None
        passing = [one for one in answers if isinstance(one, RefusedError) and one.code in _PASSING_CODES]
        self.answer = answers  # type: ignore[assignment]
        # All are sent again while there is time; those already answered get the same answer.
        return self._next_pause() if passing else None

    def _one(self, raw: msgspec.Raw) -> Any:
        try:
            return msgspec.json.decode(raw, type=self._kind)
        except msgspec.ValidationError:
            error = msgspec.json.decode(raw, type=_Error)
            return RefusedError(200, error.code, error.message, error.remedy)

    def _pause(self, reason: str, least: float = 0.0) -> float:
        """Seconds until the next attempt; raises UnreachableError if the deadline comes first."""
        pause = self._next_pause(least)
        if pause is None:
            raise UnreachableError(self.path, self._deadline, self._attempts, reason, self._ids)
        return pause

    def _next_pause(self, least: float = 0.0) -> float | None:
        """Seconds until the next attempt; None if the deadline comes first."""
        self._attempts += 1
        longest = min(_FIRST_PAUSE * 2 ** min(self._attempts, 10), _LONGEST_PAUSE)
        pause = max(least, longest * random.uniform(0.5, 1.0))  # random, so that many clients do not return at once
        return pause if time.monotonic() + pause < self._end else None


_LOOK = "check the address: is it redenvelope's service?"


def _error_of(status: int, body: bytes) -> RefusedError:
    try:
        found = msgspec.json.decode(body, type=_Error)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return RefusedError(status, "unexpected_answer", f"HTTP {status}, not from the service", _LOOK)
    return RefusedError(status, found.code, found.message, found.remedy)


class _Calls:
    """The requests of both clients, as calls."""

    def __init__(self, url: str, deadline: float, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"the address must begin with http:// or https://, not {url!r}")
        if not 0 < timeout <= deadline:
            raise UsageError(f"timeout must be above 0 and at most the deadline, not {timeout} of {deadline} s")
        self._deadline, self._timeout = deadline, timeout

    def _call(
        self, path: str, kind: Any, content: Any = None, deadline: float | None = None, **more: Any
    ) -> _Call[Any]:
        limit = self._deadline if deadline is None else deadline
        return _Call(path, kind, limit, self._timeout, content, **more)

    def _decide(self, request: Request, deadline: float | None) -> _Call[Decision]:
        return self._call("/v1/decisions", Decision, request, deadline, request_ids=(request.request_id,))

    def _decide_many(self, requests: Sequence[Request], deadline: float | None) -> _Call[list[Decision | RefusedError]]:
        ids, content = tuple(one.request_id for one in requests), {"decisions": requests}
        return self._call("/v1/decisions/batch", Decision, content, deadline, request_ids=ids, many=True)

    def _settle(self, outcome: Outcome, deadline: float | None) -> _Call[Settled]:
        return self._call("/v1/outcomes", Settled, outcome, deadline)

    def _settle_many(self, outcomes: Sequence[Outcome], deadline: float | None) -> _Call[list[Settled | RefusedError]]:
        return self._call("/v1/outcomes/batch", Settled, {"outcomes": outcomes}, deadline, many=True)

    def _correct(self, correction: _Correction, deadline: float | None) -> _Call[Settled]:
        return self._call("/v1/corrections", Settled, correction, deadline)

    def _campaign(self) -> _Call[dict[str, Any]]:
        return self._call("/v1/campaign", dict[str, Any])

    def _log(self, after: int, epoch: str) -> _Call[bytes]:
        of = f"&epoch={quote(epoch)}" if epoch else ""
        return self._call(f"/v1/log?after={after}&limit={_MOST_ROWS}{of}", bytes)

    def _ready(self) -> _Call[dict[str, Any]]:
        return self._call("/readyz", dict[str, Any])


class Client(_Calls):
    """A synchronous client, safe to use from several threads. It keeps connections open, so use one client for long."""

    def __init__(self, url: str, token: str | None = None, *, deadline: float = 10.0, timeout: float = 3.0) -> None:
        """`url` is the address of the service, `token` one made by `redenvelope token`.

        `deadline` bounds a call with all of its retries, `timeout` one attempt, in seconds.
        """
        super().__init__(url, deadline, timeout)
        self._http = httpx.Client(base_url=url, headers=_headers(token))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def decide(
        self,
        user: int | str,
        features: Mapping[str, Feature],
        *,
        step: int | None = None,
        eligible: Sequence[str | int | float] | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
    ) -> Decision:
        """Decide for a user. Give your own `request_id` if the caller may be restarted and ask again."""
        return self._answer(self._decide(_request(user, features, step, eligible, request_id), deadline))

    def decide_many(
        self, requests: Sequence[Request], *, deadline: float | None = None
    ) -> list[Decision | RefusedError]:
        """Decide for up to 1,000 users; each is decided or refused on its own."""
        return self._answer(self._decide_many(requests, deadline))

    def settle(
        self, decision_id: str, reward: float, amount: int | dict[str, int] = 0, *, deadline: float | None = None
    ) -> Settled:
        """Report the outcome of a decision; the amount is in minor units."""
        return self._answer(self._settle(Outcome(decision_id, reward, amount), deadline))

    def settle_many(
        self, outcomes: Sequence[Outcome], *, deadline: float | None = None
    ) -> list[Settled | RefusedError]:
        """Report up to 1,000 outcomes; each is recorded or refused on its own."""
        return self._answer(self._settle_many(outcomes, deadline))

    def correct(
        self,
        decision_id: str,
        reward: float,
        amount: int | dict[str, int] = 0,
        *,
        reason: str,
        deadline: float | None = None,
    ) -> Settled:
        """Replace a wrong recorded outcome; this needs a token with the role admin."""
        return self._answer(self._correct(_Correction(decision_id, reward, amount, reason), deadline))

    def campaign(self) -> dict[str, Any]:
        """Balances, prices, pacing, and counts of actions."""
        return self._answer(self._campaign())

    def log(self, after: int = 0, epoch: str = "") -> Iterator[dict[str, Any]]:
        """Decisions and their outcomes after a line; `number` and `epoch` of the last line continue from there.

        A `RefusedError` with the code `other_epoch` means that the ledger was restored to a time before that line.
        """
        while rows := _rows(self._answer(self._log(after, epoch))):
            yield from rows
            after, epoch = rows[-1]["number"], rows[-1]["epoch"]

    def wait_until_ready(self) -> None:
        """Return once the service can decide, or raise `UnreachableError` at the deadline."""
        self._answer(self._ready())

    def _answer(self, call: _Call[Answer]) -> Answer:
        while True:
            try:
                pause = call.answered(*self._attempt(call))
            except httpx.TransportError as error:
                pause = call.failed(error)
            if pause is None:
                return call.answer
            time.sleep(pause)

    def _attempt(self, call: _Call[Any]) -> tuple[int, bytes, str | None]:
        timeout = call.timeout
        end = time.monotonic() + timeout
        with self._http.stream(call.method, call.path, content=call.body, timeout=timeout) as response:
            body = b""
            for part in response.iter_bytes():
                body += part
                if time.monotonic() > end:  # httpx limits each read only: a slow sender would never time out
                    raise httpx.ReadTimeout("the answer came too slowly")
            return response.status_code, body, response.headers.get("retry-after")


class AsyncClient(_Calls):
    """The same client for asyncio."""

    def __init__(self, url: str, token: str | None = None, *, deadline: float = 10.0, timeout: float = 3.0) -> None:
        """See `Client`."""
        super().__init__(url, deadline, timeout)
        self._http = httpx.AsyncClient(base_url=url, headers=_headers(token))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def decide(
        self,
        user: int | str,
        features: Mapping[str, Feature],
        *,
        step: int | None = None,
        eligible: Sequence[str | int | float] | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
    ) -> Decision:
        """See `Client.decide`."""
        return await self._answer(self._decide(_request(user, features, step, eligible, request_id), deadline))

    async def decide_many(
        self, requests: Sequence[Request], *, deadline: float | None = None
    ) -> list[Decision | RefusedError]:
        """See `Client.decide_many`."""
        return await self._answer(self._decide_many(requests, deadline))

    async def settle(
        self, decision_id: str, reward: float, amount: int | dict[str, int] = 0, *, deadline: float | None = None
    ) -> Settled:
        """See `Client.settle`."""
        return await self._answer(self._settle(Outcome(decision_id, reward, amount), deadline))

    async def settle_many(
        self, outcomes: Sequence[Outcome], *, deadline: float | None = None
    ) -> list[Settled | RefusedError]:
        """See `Client.settle_many`."""
        return await self._answer(self._settle_many(outcomes, deadline))

    async def correct(
        self,
        decision_id: str,
        reward: float,
        amount: int | dict[str, int] = 0,
        *,
        reason: str,
        deadline: float | None = None,
    ) -> Settled:
        """See `Client.correct`."""
        return await self._answer(self._correct(_Correction(decision_id, reward, amount, reason), deadline))

    async def campaign(self) -> dict[str, Any]:
        """See `Client.campaign`."""
        return await self._answer(self._campaign())

    async def log(self, after: int = 0, epoch: str = "") -> AsyncIterator[dict[str, Any]]:
        """See `Client.log`."""
        while rows := _rows(await self._answer(self._log(after, epoch))):
            for row in rows:
                yield row
            after, epoch = rows[-1]["number"], rows[-1]["epoch"]

    async def wait_until_ready(self) -> None:
        """See `Client.wait_until_ready`."""
        await self._answer(self._ready())

    async def _answer(self, call: _Call[Answer]) -> Answer:
        while True:
            try:
                async with asyncio.timeout(call.timeout):
                    request = self._http.build_request(call.method, call.path, content=call.body, timeout=call.timeout)
                    response = await self._http.send(request)
                pause = call.answered(response.status_code, response.content, response.headers.get("retry-after"))
            except (httpx.TransportError, TimeoutError) as error:
                pause = call.failed(error)
            if pause is None:
                return call.answer
            await asyncio.sleep(pause)


def _headers(token: str | None) -> dict[str, str]:
    return {"content-type": "application/json"} | ({} if token is None else {"authorization": f"Bearer {token}"})


def _request(
    user: int | str,
    features: Mapping[str, Feature],
    step: int | None,
    eligible: Sequence[str | int | float] | None,
    request_id: str | None,
) -> Request:
    listed = None if eligible is None else list(eligible)
    named = {} if request_id is None else {"request_id": request_id}
    return Request(user, dict(features), step, listed, **named)


def _rows(lines: bytes) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in lines.splitlines()]
