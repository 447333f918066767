"""A service in a thread of the process: for demonstrations and tests, on this machine only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from redenvelope.serve.app import new_app
from redenvelope.serve.server import Server, bound, new_config
from redenvelope.serve.service import Service
from redenvelope.serve.tokens import Tokens

__all__ = ["serving"]


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
