"""Who may ask what, and what is sent to whoever sends rubbish: one shape of refusal, never a 500, never a traceback."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redenvelope import UsageError
from redenvelope.serve.admission import ROLES, Tokens, new_token
from redenvelope.serve.app import HEADERS
from redenvelope.serve.settings import Limits, ServeSettings
from tests.serve.running import Running, running

LIMITS = Limits(
    body_bytes=4_096, batch_bytes=20_000, body_seconds=0.5, requests_per_second=1e6, failed_login_seconds=0.01
)
ROUTES = {
    "decide": [("POST", "/v1/decisions"), ("POST", "/v1/decisions/batch")],
    "settle": [("POST", "/v1/outcomes"), ("POST", "/v1/outcomes/batch")],
    "read": [("GET", "/v1/campaign"), ("GET", "/v1/log"), ("GET", "/metrics")],
    "admin": [("POST", "/v1/plan")],
}


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokens, dict[str, str]]:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    made = {role: new_token(f"the-{role}", [role]) for role in ROLES}
    path.write_text("# ours\n" + "\n".join(line for _, line in made.values()))
    assert not any(secret in path.read_text() for secret, _ in made.values())
    return Tokens.read(path), {role: secret for role, (secret, _) in made.items()}


@pytest.fixture(scope="module")
def guarded(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, secrets: tuple[Tokens, dict[str, str]]
) -> Iterator[Running]:
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/l.db"
    with running(folder, url, tokens=secrets[0], settings=ServeSettings(limits=LIMITS)) as served:
        yield served


@pytest.fixture(scope="module")
def open_to_all(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/l.db"
    with running(folder, url, settings=ServeSettings(limits=LIMITS)) as served:
        yield served


def refused(answer: tuple[int, Any], status: int, code: str) -> None:
    assert answer[0] == status, answer
    assert answer[1].keys() == {"code", "message", "remedy"}
    assert answer[1]["code"] == code


@pytest.mark.parametrize("role", list(ROUTES))
def test_a_role_opens_its_own_doors_only(guarded: Running, secrets: tuple[Tokens, dict[str, str]], role: str) -> None:
    for needed, routes in ROUTES.items():
        for method, path in routes:
            content = None if method == "GET" else {}
            sent = {"authorization": f"Bearer {secrets[1][role]}"}
            status, _ = guarded.ask(method, path, content, sent)
            assert (status == 403) == (role not in (needed, "admin")), (role, path, status)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", "Basic {decide}", "{decide}", "Bearer {decide}x"]
)
def test_a_wrong_token_is_refused(guarded: Running, secrets: tuple[Tokens, dict[str, str]], header: str | None) -> None:
    sent = {} if header is None else {"authorization": header.format(**secrets[1])}
    for routes in ROUTES.values():
        for method, path in routes:
            refused(guarded.ask(method, path, None if method == "GET" else {}, sent), 401, "unauthorized")
    assert guarded.ask("GET", "/healthz", headers=sent)[0] == 200
    assert guarded.ask("GET", "/readyz", headers=sent)[0] == 200


def test_a_file_of_tokens_is_read_strictly(tmp_path: Path) -> None:
    for text in ("", "# nothing", "somebody decide 1234", "somebody guess " + "a" * 64, "\x00"):
        (tmp_path / "tokens").write_text(text)
        with pytest.raises(UsageError, match=r"token|role"):
            Tokens.read(tmp_path / "tokens")
    with pytest.raises(UsageError, match="role"):
        new_token("somebody", ["everything"])


def test_every_answer_has_its_headers(open_to_all: Running) -> None:
    for path in ("/", "/page.js", "/page.css", "/v1/campaign", "/nowhere", "/metrics", "/openapi.json"):
        _, _, headers = open_to_all.answer("GET", path)
        assert {name: headers.get(name) for name in HEADERS} == HEADERS, path
        assert "server" not in headers
    assert "unsafe" not in HEADERS["content-security-policy"]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, "forbidden_host"),
        ({"host": "testserver:80"}, "forbidden_host"),
        ({"host": "127.0.0.1.evil.example"}, "forbidden_host"),
        ({"host": "localhost:8080@evil.example"}, "invalid_host"),
        ({"host": "localhost:port"}, "invalid_host"),
        ({"host": ""}, "invalid_host"),
        ({"origin": "http://evil.example"}, "forbidden_origin"),
        ({"origin": "null"}, "forbidden_origin"),
        ({"origin": "http://127.0.0.1:1"}, "forbidden_origin"),
        ({"sec-fetch-site": "cross-site"}, "forbidden_origin"),
        ({"sec-fetch-site": "same-site"}, "forbidden_origin"),
    ],
)
def test_another_host_or_origin_is_refused(open_to_all: Running, headers: dict[str, str], code: str) -> None:
    for method, path in (route for routes in ROUTES.values() for route in routes):
        answer = open_to_all.ask(method, path, None if method == "GET" else {}, headers)
        refused(answer, 400 if code == "invalid_host" else 403, code)


def test_the_own_page_and_every_loopback_name_are_admitted(open_to_all: Running) -> None:
    for host in ("127.0.0.1", "localhost", "LOCALHOST:80", "[::1]:8080"):
        assert open_to_all.ask("GET", "/v1/campaign", headers={"host": host})[0] == 200
        own = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        assert open_to_all.ask("GET", "/v1/campaign", headers=own)[0] == 200


def test_two_hosts_are_none(open_to_all: Running) -> None:
    with socket.create_connection(("127.0.0.1", open_to_all.port), timeout=10) as wire:
        wire.sendall(b"GET /v1/campaign HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 400 " in wire.recv(1_000).split(b"\r\n")[0]


def test_failed_logins_are_counted_logged_and_slowed(
    folder: Path, tmp_path: Path, secrets: tuple[Tokens, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServeSettings(limits=Limits(failed_login_seconds=0.3))
    with running(folder, f"sqlite:///{tmp_path}/l.db", tokens=secrets[0], settings=settings) as served:
        began = time.monotonic()
        for _ in range(8):
            refused(served.ask("GET", "/v1/campaign", headers={"authorization": "Bearer wrong"}), 401, "unauthorized")
        assert time.monotonic() - began >= 0.2 + 4 * 0.3  # the first three at once, then 0.2 s, then as long as it may
        good = {"authorization": f"Bearer {secrets[1]['read']}"}
        assert served.ask("GET", "/v1/campaign", headers=good)[1]["refusals"] == {"unauthorized": 8}
        assert 'redenvelope_refusals_total{code="unauthorized"} 8.0' in served.ask("GET", "/metrics", headers=good)[1]
    said = [record.getMessage() for record in caplog.records if "failed login" in record.getMessage()]
    assert said == [f"failed login from 127.0.0.1 at /v1/campaign ({count} in a row)" for count in (1, 2, 4, 8)]


def test_a_token_that_was_revoked_ends_and_a_bad_file_changes_nothing(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    lines = {name: new_token(name, ["read"]) for name in ("old", "new")}
    path.write_text(lines["old"][1])
    with running(folder, f"sqlite:///{tmp_path}/l.db", tokens=Tokens.read(path)) as served:
        (reload,) = served.service.reloads

        def status(name: str) -> int:
            return served.ask("GET", "/v1/campaign", headers={"authorization": f"Bearer {lines[name][0]}"})[0]

        assert (status("old"), status("new")) == (200, 401)
        path.write_text(lines["new"][1])
        reload()
        assert (status("old"), status("new")) == (401, 200)
        path.write_text("rubbish")
        with pytest.raises(UsageError):
            reload()
        assert (status("old"), status("new")) == (401, 200)


def test_another_kind_of_body_is_refused(open_to_all: Running) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = open_to_all.ask("POST", "/v1/decisions", {}, {"content-type": kind})
        refused(answer, 415, "unsupported_media_type")


def test_large_and_slow_bodies_are_refused(open_to_all: Running) -> None:
    refused(open_to_all.ask("POST", "/v1/decisions", raw=b" " * 5_000), 413, "too_large")
    with socket.create_connection(("127.0.0.1", open_to_all.port), timeout=10) as slow:
        head = b"POST /v1/decisions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        slow.sendall(head + b"Content-Length: 100\r\n\r\n{")
        assert b"408" in slow.recv(1_000).split(b"\r\n")[0]
    with socket.create_connection(("127.0.0.1", open_to_all.port), timeout=10) as chunked:
        chunked.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            chunked.sendall(b"400\r\n" + b" " * 0x400 + b"\r\n")
        assert b"413" in chunked.recv(1_000).split(b"\r\n")[0]


def test_slow_headers_are_left(open_to_all: Running) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", open_to_all.port), timeout=10) as slow:
        slow.sendall(b"GET /healthz HTT")
        assert slow.recv(100) == b""
    assert 0.3 < time.monotonic() - began < 8


def test_who_asks_too_often_waits(folder: Path, tmp_path: Path) -> None:
    few = ServeSettings(limits=Limits(requests_per_second=1.0, burst=3))
    with running(folder, f"sqlite:///{tmp_path}/l.db", settings=few) as served:
        statuses = [served.answer("GET", "/v1/campaign")[0] for _ in range(6)]
        assert statuses[:3] == [200] * 3
        assert 429 in statuses[3:]


@pytest.mark.parametrize(
    "path", ["/../etc/passwd", "/page.js/..", "//v1//campaign", "/%2e%2e/%2e%2e/etc/passwd", "/page/index.html", "/v1"]
)
def test_paths_lead_nowhere_else(open_to_all: Running, path: str) -> None:
    refused(open_to_all.ask("GET", path), 404, "not_found")


def test_methods_are_what_they_are(open_to_all: Running) -> None:
    refused(open_to_all.ask("GET", "/v1/decisions"), 405, "wrong_method")
    refused(open_to_all.ask("DELETE", "/v1/campaign"), 405, "wrong_method")


GOOD = {"request_id": "r", "user": "u", "features": {"taste": 0.5, "city": "Lyon"}}


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"user": None},
        {"user": 1.5},
        {"user": ""},
        {"user": "a\x00b"},
        {"user": 2**70},
        {"request_id": ""},
        {"request_id": "x" * 300},
        {"features": []},
        {"features": {"taste": {"a": 1}}},
        {"features": {"cost": 1}},
        {"features": {"taste": 1e400}},
        {"step": "0"},
        {"step": -1},
        {"step": 2**40},
        {"eligible": []},
        {"eligible": ["5 €"]},
    ],
)
def test_what_does_not_fit_is_refused(open_to_all: Running, change: dict[str, Any]) -> None:
    status, said = open_to_all.ask("POST", "/v1/decisions", GOOD | change)
    assert status in (400, 422), said
    assert said["code"] in ("invalid_request", "invalid_json", "unknown_feature")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["request_id", "user", "features", "step", "eligible", "decision_id", "reward", "amount", "plan"]
)
FIELDS = st.dictionaries(NAMES | st.text(max_size=5), ANYTHING, max_size=6)
FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
POSTS = [path for routes in ROUTES.values() for method, path in routes if method == "POST"]


@FUZZ
@given(st.sampled_from(POSTS), FIELDS | ANYTHING, st.booleans())
def test_no_json_makes_it_stumble(open_to_all: Running, path: str, content: Any, nearly: bool) -> None:
    if nearly and isinstance(content, dict):
        near = {"/v1/outcomes": {"decision_id": "d1", "reward": 1.0}}.get(path, GOOD)
        content = near | content
    _sound(open_to_all, path, json.dumps(content).encode("utf-8", "surrogatepass"))


@FUZZ
@given(st.sampled_from(POSTS), st.binary(max_size=200))
def test_no_bytes_make_it_stumble(open_to_all: Running, path: str, content: bytes) -> None:
    _sound(open_to_all, path, content)


@FUZZ
@given(st.binary(min_size=1, max_size=200))
def test_no_bytes_on_the_wire_make_it_stumble(open_to_all: Running, content: bytes) -> None:
    with socket.create_connection(("127.0.0.1", open_to_all.port), timeout=5) as wire:
        wire.sendall(content + b"\r\n\r\n")
        wire.shutdown(socket.SHUT_WR)
        answer = wire.recv(10_000)
    assert b"Traceback" not in answer
    assert not answer.startswith(b"HTTP/1.1 5")


def _sound(served: Running, path: str, content: bytes) -> None:
    status, said = served.ask("POST", path, raw=content)
    assert status < 500, (status, said, content)
    assert "Traceback" not in str(said)
    if status != 200:
        assert said.keys() == {"code", "message", "remedy"}


def test_the_document_names_every_route(open_to_all: Running) -> None:
    status, document = open_to_all.ask("GET", "/openapi.json")
    assert status == 200
    named = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert named >= {route for routes in ROUTES.values() for route in routes}
    assert document["components"]["schemas"]["DecisionRequest"]["additionalProperties"] is False
