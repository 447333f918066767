"""Every test of the ledger runs on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redenvelope import Ledger, open_ledger
from tests.conftest import POSTGRES_SKIPPED
from tests.ledger.postgres_server import PostgresMissingError, PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer()
        with server:
            yield server
    except PostgresMissingError as reason:
        pytest.skip(f"{POSTGRES_SKIPPED}: {reason}")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new ledger may be."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def opened(url: str) -> Iterator[Callable[[], Ledger]]:
    """Opens the ledger, as often as it is asked to; all are closed at the end."""
    ledgers: list[Ledger] = []

    def open_it() -> Ledger:
        ledgers.append(open_ledger(url))
        return ledgers[-1]

    yield open_it
    for ledger in ledgers:
        ledger.close()


@pytest.fixture
def ledger(opened: Callable[[], Ledger]) -> Ledger:
    return opened()
