"""The OpenAPI document is valid, and the live service keeps to it whatever is generated from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import schemathesis

from redenvelope.serve.admission import Tokens, new_token
from redenvelope.serve.app import document
from redenvelope.serve.settings import Limits, ServeSettings
from tests.serve.running import running

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,unsupported_method"
)


@pytest.mark.parametrize("with_tokens", [True, False])
def test_the_document_is_valid(with_tokens: bool) -> None:
    schemathesis.openapi.from_dict(document(with_tokens)).validate()
    broken = document(with_tokens)
    broken["paths"]["/v1/log"]["get"]["parameters"][0]["in"] = "nowhere"
    with pytest.raises(Exception, match="nowhere"):
        schemathesis.openapi.from_dict(broken).validate()


@pytest.mark.parametrize("features", ["count", "refuse"])
def test_the_live_service_keeps_to_the_document(folder: Path, tmp_path: Path, features: str) -> None:
    """Features that are made up are counted, so that decisions are made, or refused; tokens are asked for or not."""
    settings = ServeSettings(
        wrong_features=features,  # type: ignore[arg-type]
        limits=Limits(failed_login_seconds=0.0, requests_per_second=1e6),
    )
    secret, line = new_token("tester", ["admin"])
    (tmp_path / "tokens").write_text(line)
    tokens = Tokens.read(tmp_path / "tokens") if features == "refuse" else None
    with running(folder, f"sqlite:///{tmp_path}/l.db", tokens=tokens, settings=settings) as served:
        where = f"http://127.0.0.1:{served.port}/openapi.json"
        checks = CHECKS if tokens is None else f"{CHECKS},ignored_auth"
        command = [Path(sys.executable).parent / "st", "run", where, "--checks", checks, "--seed", "1"]
        given = ["--max-examples", "15", "--header", f"Authorization: Bearer {secret}", "--no-color"]
        done = subprocess.run(
            [*command, *given], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
        )
        decided = len(served.service.ledger.decided(0, 1_000))
    assert done.returncode == 0, done.stdout[-5_000:]
    assert "Tested: 11" in done.stdout
    assert (decided > 0) == (features == "count")
