"""What is deployed around the service: the container, the compose file, alert rules and the dashboard."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from redenvelope.serve.admission import new_token
from redenvelope.serve.settings import PacingSettings, ServeSettings
from tests.conftest import TOOL_SKIPPED
from tests.program import COMMANDS
from tests.serve.running import running

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")


def expressions() -> list[str]:
    """Everything that rules and dashboard ask Prometheus for."""
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    rules = [rule["expr"] for group in groups for rule in group["rules"]]
    board = json.loads((DEPLOY / "dashboard.json").read_text(encoding="utf-8"))
    asked = [variable["query"]["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    return [*rules, *asked, *(target["expr"] for panel in board["panels"] for target in panel["targets"])]


def test_every_metric_and_label_that_is_asked_for_exists(folder: Path, tmp_path: Path) -> None:
    settings = ServeSettings(audience=50, pacing=PacingSettings(every=5))
    with running(folder, f"sqlite:///{tmp_path}/l.db", settings=settings) as service:
        for user in range(20):
            _, answer = service.decide(f"r{user}", user)
            service.settle(answer["decision_id"], 0)
        assert service.decide("r0", 1)[0] == 409
        found: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(service.ask("GET", "/metrics")[1]):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    named = {name for one in expressions() for name in re.findall(r"\bredenvelope_\w+", one)}
    assert len(named) >= 10
    assert named <= found.keys(), "rules or dashboard ask for a metric that the service does not have"
    for one in expressions():
        for name, labels in re.findall(r"\b(redenvelope_\w+)\{([^}]*)\}", one):
            assert set(re.findall(r"(\w+)=~?\"", labels)) - {"job"} <= found[name], (name, labels)


def test_the_alert_rules_do_what_they_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip(f"{TOOL_SKIPPED}: alert rules are checked by promtool, of Debian's package prometheus")
    for given in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool, *given], cwd=DEPLOY, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_is_tested_and_every_panel_has_its_place() -> None:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    names = {rule["alert"] for group in groups for rule in group["rules"]}
    quiet, loud = yaml.safe_load((DEPLOY / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    assert {one["alertname"] for one in quiet["alert_rule_test"]} == names
    (fired,) = loud["promql_expr_test"]
    assert {re.findall(r'"(\w+)"', one["labels"])[0] for one in fired["exp_samples"]} == names
    panels = json.loads((DEPLOY / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    squares: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        own = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not own & squares and place["x"] + place["w"] <= 24, panel["title"]
        squares |= own


def instructions(word: str) -> list[str]:
    joined = CONTAINERFILE.replace("\\\n", " ")
    return re.findall(rf"^{word} +(.*)$", joined, flags=re.MULTILINE)


def test_the_container_is_not_root_and_says_how_it_is() -> None:
    (user,) = instructions("USER")
    assert all(int(number) >= 1_000 for number in user.split(":"))
    (check,) = instructions("HEALTHCHECK")
    probe = json.loads(check[check.index("[") :])
    assert probe[:2] == ["python", "-c"] and "/readyz" in probe[2]
    compile(probe[2], "probe", "exec")
    allowed = {line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for one in instructions("COPY") if not one.startswith("--from") for name in one.split()[:-1]}
    assert copied == allowed and all((ROOT / name).exists() for name in copied)


def test_the_compose_file_starts_a_service_that_the_command_understands() -> None:
    given = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    service = given["services"]["redenvelope"]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["user"] == instructions("USER")[0]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["depends_on"]["ledger"]["condition"] == "service_healthy"
    assert json.loads(instructions("HEALTHCHECK")[0].partition("CMD ")[2]) == service["healthcheck"]["test"][1:]
    name, *options = [re.sub(r"\$\{\w+:\?[^}]*\}", "100", each) for each in service["command"]]
    with COMMANDS[(name,)].make_context(name, options) as context:
        assert context.params["ledger"].startswith("postgresql://")
    # Longer than the service may take to end in good order.
    assert int(service["stop_grace_period"].removesuffix("s")) >= 70
    assert "PASSWORD" not in " ".join(service["command"])


def run(*given: object, seconds: int = 900) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, given)), capture_output=True, text=True, timeout=seconds)


@pytest.mark.slow
def test_the_container_is_built_and_decides(folder: Path, tmp_path: Path) -> None:
    podman = shutil.which("podman")
    if podman is None:
        pytest.skip(f"{TOOL_SKIPPED}: the container is built and run with podman")
    built = run(podman, "build", "--format", "docker", "--tag", "redenvelope-test", ROOT)
    if built.returncode and "initializing source" in built.stderr:
        pytest.skip(f"{TOOL_SKIPPED}: the base image of the container cannot be fetched")
    assert built.returncode == 0, built.stderr
    secret, line = new_token("shop", ["decide"])
    shutil.copytree(folder, tmp_path / "plan")
    (tmp_path / "tokens").write_text(f"{line}\n")
    (tmp_path / "tokens").chmod(0o644)
    options = shlex.split("--detach --rm --read-only --tmpfs /tmp --cap-drop ALL --publish 127.0.0.1::8080")
    volumes = [f"--volume={tmp_path}/{name}:/{name}:ro" for name in ("plan", "tokens")]
    served = shlex.split(
        "serve /plan --ledger sqlite:////ledger/l.db --budget-total 100 --tokens /tokens --host 0.0.0.0"
    )
    started = run(podman, "run", *options, *volumes, "redenvelope-test", *served)
    if started.returncode and "OCI" in started.stderr:
        pytest.skip(f"{TOOL_SKIPPED}: containers cannot be run here ({started.stderr.strip()[:200]})")
    assert started.returncode == 0, started.stderr
    name = started.stdout.strip()
    try:
        address = run(podman, "port", name, "8080").stdout.strip()
        asked: dict[str, Any] = {"request_id": "r", "user": "u", "features": {"taste": 0.9, "city": "Lyon"}}
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}"}
        request = urllib.request.Request(f"http://{address}/v1/decisions", json.dumps(asked).encode(), headers)
        for _ in range(120):
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    assert json.load(answer)["request_id"] == "r"
                break
            except OSError:
                time.sleep(1)
        else:
            pytest.fail(run(podman, "logs", name).stderr)
        assert run(podman, "exec", name, "id", "-u").stdout.strip() == "10001"
        assert run(podman, "exec", name, "touch", "/there").returncode != 0
        assert run(podman, "healthcheck", "run", name).returncode == 0
    finally:
        run(podman, "stop", "--time", "75", name)


READ_ONLY = """
set -e
mount --make-rprivate / && mount -t tmpfs room /mnt
mkdir /mnt/tmp /mnt/cache /mnt/ledger && chmod 777 /mnt/*
for place in python packages source; do mkdir /mnt/$place; done
mount --bind {python} /mnt/python && mount --bind {packages} /mnt/packages && mount --bind {source} /mnt/source
cp -r {plan} /mnt/plan && chmod -R a+rX /mnt/plan
mount -o remount,ro,bind /
if touch /there 2>/dev/null; then echo "the root can be written"; exit 1; fi
export HOME=/mnt/tmp TMPDIR=/mnt/tmp REDENVELOPE_CACHE=/mnt/cache PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=/mnt/source:/mnt/packages LD_LIBRARY_PATH=/mnt/python/lib
cd /mnt && exec setpriv --reuid 10001 --regid 10001 --clear-groups --bounding-set=-all --no-new-privs \\
    /mnt/python/bin/python3 -c {script}
"""

INSIDE = """
import json, os, signal, subprocess, sys, urllib.request as web
command = [sys.executable, "-c", "from redenvelope.cli import main; main()", "serve", "/mnt/plan"]
command += ["--ledger", "sqlite:////mnt/ledger/l.db", "--budget-total", "100", "--port", "0"]
served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
address = "http://127.0.0.1:" + served.stdout.readline().split("127.0.0.1:")[1].split()[0]
web.urlopen(address + "/readyz", timeout=30)
asked = {"request_id": "r", "user": "u", "features": {"taste": 0.9, "city": "Lyon"}}
headers = {"Content-Type": "application/json"}
answer = json.load(web.urlopen(web.Request(address + "/v1/decisions", json.dumps(asked).encode(), headers), timeout=60))
served.send_signal(signal.SIGTERM)
print(json.dumps([os.getuid(), answer["request_id"], served.wait(90), sorted(os.listdir("/mnt/tmp"))]))
"""


def test_it_needs_no_root_and_a_root_file_system_that_is_read_only(folder: Path) -> None:
    """What the container promises, without one: a mount namespace in which nothing but the volumes can be written."""
    tools = [shutil.which(name) for name in ("unshare", "setpriv")]
    if None in tools or os.geteuid() != 0 or run("unshare", "--mount", "true").returncode:
        pytest.skip(f"{TOOL_SKIPPED}: a read-only root needs to be root, unshare and setpriv")
    # Bound to places that anybody may enter: checkout and Python may be in a folder that only its owner can.
    own = {"python": sys.base_prefix, "packages": sysconfig.get_path("platlib"), "source": ROOT / "src"}
    given = own | {"plan": folder, "script": INSIDE}
    names = {name: shlex.quote(str(each)) for name, each in given.items()}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", READ_ONLY.format(**names)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == [10001, "r", 0, []]
