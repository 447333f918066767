"""A local S3 server on the loopback device, which can be told to fail or to be slow."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.request import Request, urlopen

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, make_server

__all__ = ["ObjectStore"]


@dataclass
class ObjectStore:
    """Lives while a block does; its bucket is named `bucket`."""

    failures: int = 0
    """So many requests to come are answered with 503."""
    refused: str = ""
    """A status that answers every request, such as "403 Forbidden"."""
    delay: float = 0.0
    """Seconds before an answer."""
    asked: list[str] = field(default_factory=list)
    """Methods and paths of the requests so far."""

    def __enter__(self) -> ObjectStore:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._answer = DomainDispatcherApplication(create_backend_app)
        self._server: BaseWSGIServer = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        urlopen(Request(f"{self.url}/bucket", method="PUT"), timeout=60).close()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        urlopen(Request(f"{self.url}/moto-api/reset", method="POST"), timeout=60).close()
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """The standard variables that lead here."""
        return {
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "hunter2",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
        }

    def put(self, key: str, content: bytes) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        urlopen(Request(f"{self.url}/bucket/{key}", content, headers, method="PUT"), timeout=10).close()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def _serve(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.asked.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        if self.failures > 0:
            self.failures -= 1
            start("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        if self.refused:
            start(self.refused, [("Content-Length", "0")])
            return [b""]
        time.sleep(self.delay)
        return self._answer(environ, start)  # type: ignore[no-any-return]
