"""The TypeScript client: types generated from this very OpenAPI document, compiled strictly, run by node."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from redenvelope.serve.app import document
from tests.conftest import TOOL_SKIPPED
from tests.serve.running import running
from tests.serve.test_client import BUSY, DECIDED, GOOD, answering

SOURCE = Path(__file__).parents[2] / "clients" / "typescript"
QUIET = os.environ | {"NO_COLOR": "1", "npm_config_update_notifier": "false"}

CAMPAIGN = """
import assert from "node:assert/strict";
import { Client, RefusedError, isRefused } from "./dist/client.js";
const client = new Client(process.argv[2], { deadline: 60000 });
const features = { taste: 0.9, city: "Lyon" };
const one = await client.decide({ request_id: "r1", user: "u1", features });
assert.deepEqual(await client.decide({ request_id: "r1", user: "u1", features }), one);
const settled = await client.settle({ decision_id: one.decision_id, reward: 1, amount: one.hold.amount });
assert.deepEqual(await client.settle({ decision_id: one.decision_id, reward: 1, amount: one.hold.amount }), settled);
const many = await client.decideMany([{ user: 2, features }, { user: 3, features: { reward: 1 } }]);
assert.deepEqual(many.map(isRefused), [false, true]);
const outcomes = await client.settleMany([{ decision_id: many[0].decision_id, reward: 0, amount: 0 }]);
assert.equal(outcomes[0].decision_id, many[0].decision_id);
await assert.rejects(client.decide({ request_id: "r1", user: "other", features }), (error) => {
  assert(error instanceof RefusedError);
  assert.deepEqual([error.status, error.code], [409, "request_differs"]);
  return true;
});
assert((await client.campaign()).budgets);
console.log(JSON.stringify(one));
"""

RETRIES = """
import assert from "node:assert/strict";
import { Client, RefusedError, UnreachableError } from "./dist/client.js";
const [, , address, wanted] = process.argv;
const client = new Client(address, { deadline: 1500, timeout: 400 });
const asked = client.decide({ user: "u", features: {} });
const kinds = { decided: null, unreachable: UnreachableError, refused: RefusedError };
if (wanted === "decided") assert.equal((await asked).decision_id, "d1");
else await assert.rejects(asked, (error) => error instanceof kinds[wanted]);
"""


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, built anew; packages are fetched once for a list of them."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip(f"{TOOL_SKIPPED}: the TypeScript client needs node and npm")
    listed = (SOURCE / "package.json").read_bytes()
    kept = request.config.cache.mkdir("typescript") / hashlib.sha256(listed).hexdigest()[:16]
    if not (kept / "done").exists():
        kept.mkdir(exist_ok=True)
        (kept / "package.json").write_bytes(listed)
        options = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
        fetched = subprocess.run(["npm", "install", *options], cwd=kept, env=QUIET, capture_output=True, timeout=300)
        if fetched.returncode:
            pytest.skip(f"{TOOL_SKIPPED}: the packages of the TypeScript client cannot be fetched")
        (kept / "done").touch()
    folder = tmp_path_factory.mktemp("typescript") / "client"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (folder / "node_modules").symlink_to(kept / "node_modules")
    (folder / "openapi.json").write_text(json.dumps(document()), encoding="utf-8")
    made = subprocess.run(["npm", "run", "build"], cwd=folder, env=QUIET, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


def run(folder: Path, script: str, *given: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.mjs").write_text(script, encoding="utf-8")
    done = subprocess.run(["node", "script.mjs", *given], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def test_a_campaign_by_the_typescript_client(built: Path, folder: Path, tmp_path: Path) -> None:
    with running(folder, f"sqlite:///{tmp_path}/l.db") as service:
        said = json.loads(run(built, CAMPAIGN, f"http://127.0.0.1:{service.port}").stdout)
        assert service.decide("r1", "u1", {"taste": 0.9, "city": "Lyon"}) == (200, said)


@pytest.mark.parametrize(
    ("answers", "wanted", "attempts"),
    [
        ((BUSY, None, GOOD), "decided", 3),
        (((200, {}, json.dumps(DECIDED).encode()),), "decided", 1),
        ((BUSY,), "unreachable", None),
        (((404, {}, b"<html>"),), "refused", 1),
        (((302, {"location": "http://127.0.0.1:9/"}, b""),), "refused", 1),
    ],
)
def test_the_same_bytes_are_sent_again(built: Path, answers: tuple, wanted: str, attempts: int | None) -> None:
    with answering(*answers) as (address, seen):
        run(built, RETRIES, address, wanted)
    assert len(set(seen)) == 1 and (len(seen) == attempts if attempts else len(seen) > 1)
