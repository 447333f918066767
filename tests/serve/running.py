"""A real server in a thread, on a free port of this machine, and short ways to ask it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redenvelope import open_ledger
from redenvelope.ledger.records import Fund
from redenvelope.serve.admission import Tokens
from redenvelope.serve.server import serving
from redenvelope.serve.service import Service
from redenvelope.serve.settings import ServeSettings

__all__ = ["Running", "running"]


@dataclass
class Running:
    """A service that answers."""

    port: int
    service: Service
    token: str | None = None

    def ask(
        self,
        method: str,
        path: str,
        content: Any = None,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> tuple[int, Any]:
        """Status and JSON (or text) of an answer."""
        status, body, _ = self.answer(method, path, content, headers, raw)
        try:
            return status, json.loads(body)
        except ValueError:
            return status, body.decode()

    def answer(
        self,
        method: str,
        path: str,
        content: Any = None,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers."""
        body = raw if raw is not None else None if content is None else json.dumps(content).encode()
        sent = {} if body is None else {"content-type": "application/json"}
        if self.token is not None:
            sent["authorization"] = f"Bearer {self.token}"
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body, {**sent, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}

    def decide(
        self, request: str, user: Any, features: Mapping[str, Any] | None = None, **more: Any
    ) -> tuple[int, Any]:
        content = {"request_id": request, "user": user, "features": dict(features or {"taste": 0.9, "city": "Lyon"})}
        return self.ask("POST", "/v1/decisions", content | more)

    def settle(self, decision: str, amount: Any, reward: float = 1.0) -> tuple[int, Any]:
        return self.ask("POST", "/v1/outcomes", {"decision_id": decision, "reward": reward, "amount": amount})


@contextmanager
def running(
    folder: Path,
    url: str,
    total: int = 100_000,
    tokens: Tokens | None = None,
    settings: ServeSettings | None = None,
    clock: Callable[[], int] | None = None,
    user_cap: int | None = None,
    funds: Sequence[Fund] | None = None,
    seed: int | None = 0,
) -> Iterator[Running]:
    """Serve a plan until the block ends; then it stops in good order. `funds` of several budgets instead of a total;
    `seed` is that of a new ledger, which draws one where it is None."""
    given = [Fund("budget", total, 0, user_cap)] if funds is None else funds
    service = Service(folder, open_ledger(url, seed=seed), given, settings or ServeSettings(), None, clock)
    with serving(service, tokens) as port:
        yield Running(port, service)
