"""A plan on disk: a manifest with hashes, weights, tables and the certificate. Opening it runs nothing from it."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
from safetensors import SafetensorError
from safetensors.numpy import load as load_weights
from safetensors.numpy import save as dump_weights

from redenvelope import __version__
from redenvelope.errors import ModelError, PlanError, UsageError
from redenvelope.log.encoding import Encoder
from redenvelope.log.log import ActionCatalogue
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.ladder import Ladder
from redenvelope.plan.plain import from_plain, to_plain
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import DeployedPolicy, policy_sha256
from redenvelope.plan.record import FitRecord
from redenvelope.plan.sources import source_from_state
from redenvelope.plan.specification import PolicySpecification
from redenvelope.plan.swap import put_in_place
from redenvelope.policies.pricing import Pricing

__all__ = ["FORMAT", "load_plan", "require_room", "save_plan"]

FORMAT = 3
"""Version of the folder's format; any other is refused."""

_LARGEST_BYTES = {
    "plan.json": 2**26,
    "weights.safetensors": 2**30,
    "frontier.parquet": 2**26,
    "certificate.json": 2**22,
    "ladder.json": 2**24,
}


def save_plan(plan: Plan, folder: Path, extra: dict[str, bytes] | None = None) -> Path:
    """Write a plan aside and then put it in place, so that no half-written plan is ever seen.

    `extra` files (a report) are stored and hashed with it. An older plan in the folder is replaced; anything else
    there is not touched, and refused.
    """
    require_room(folder)
    policy = plan.policy
    config, weights = policy.source.state()
    files = {
        "weights.safetensors": dump_weights({name: value.copy() for name, value in weights.items()}),
        "frontier.parquet": _parquet(plan.frontier),
        "certificate.json": _json(plan.certificate.as_dict()),
        "ladder.json": _json(to_plain(plan.ladder)),
        **(extra or {}),
    }
    manifest = {
        "format": FORMAT,
        "package": __version__,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        "catalogue": {"labels": list(plan.catalogue.labels), "numeric": plan.catalogue.numeric},
        "encoder": policy.encoder.as_dict(),
        "policy": to_plain(policy.specification),
        "pricing": policy.pricing.as_dict(),
        "source": {"kind": policy.source.kind, "config": config},
        "record": to_plain(plan.record),
    }
    files["plan.json"] = _json(manifest)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror or error})") from None
    try:
        for name, content in files.items():
            (aside / name).write_bytes(content)
        aside.chmod(0o755)
        put_in_place(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def require_room(folder: Path) -> None:
    """Refuse a folder that holds anything but an older plan; worth asking before hours of work."""
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or (folder / "plan.json").is_file())):
        raise UsageError(f"{folder}: exists and is not a plan; choose another folder")


def load_plan(folder: Path) -> Plan:
    """Open a plan folder, refusing what is damaged, too large, too new, or not what its hashes say."""
    manifest = _read_json(folder, "plan.json")
    if not isinstance(manifest.get("format"), int):
        raise PlanError(f"{folder}: plan.json is not the manifest of a plan")
    if manifest["format"] != FORMAT:
        newer = manifest["format"] > FORMAT
        remedy = "upgrade redenvelope" if newer else "make the plan again with `redenvelope fit`"
        raise PlanError(
            f"{folder}: written in format {manifest['format']} by version {manifest.get('package')}; this version "
            f"reads format {FORMAT}: {remedy}"
        )
    try:
        for name, digest in manifest["files"].items():
            if hashlib.sha256(_read(folder, name)).hexdigest() != digest:
                raise PlanError(f"{folder}: {name} is damaged or was changed: its hash is not the manifest's")
        source = manifest["source"]
        policy = DeployedPolicy(
            from_plain(PolicySpecification, manifest["policy"], "the policy"),
            source_from_state(source["kind"], source["config"], load_weights(_read(folder, "weights.safetensors"))),
            Encoder.from_dict(manifest["encoder"]),
            Pricing.from_dict(manifest["pricing"]),
        )
        catalogue = ActionCatalogue(tuple(manifest["catalogue"]["labels"]), bool(manifest["catalogue"]["numeric"]))
        certificate = Certificate.from_dict(_read_json(folder, "certificate.json"))
        frontier = pl.read_parquet(_read(folder, "frontier.parquet"))
        record = from_plain(FitRecord, manifest["record"], "the record")
        ladder = from_plain(Ladder, _read_json(folder, "ladder.json"), "ladder.json")
        plan = Plan(policy, catalogue, certificate, frontier, ladder, record)
    except PlanError as error:
        raise PlanError(f"{folder}: {error}" if str(folder) not in str(error) else str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError, pl.exceptions.PolarsError) as error:
        if isinstance(error, ModelError):
            raise PlanError(f"{folder}: {error}") from None
        raise PlanError(f"{folder}: the plan is damaged ({type(error).__name__}: {error}); fit it again") from None
    if certificate.policy_sha256 != policy_sha256(policy):
        raise PlanError(f"{folder}: the certificate is not this policy's; fit it again")
    return plan


def _read(folder: Path, name: str) -> bytes:
    path = folder / name
    if Path(name).name != name:
        raise PlanError(f"{folder}: the manifest names a file outside of the folder: {name!r}")
    try:
        if path.stat().st_size > _LARGEST_BYTES.get(name, 2**28):
            raise PlanError(f"{folder}: {name} is larger than any plan's; it is not opened")
        return path.read_bytes()
    except FileNotFoundError:
        raise PlanError(f"{folder}: there is no {name}; this is not a (whole) plan folder") from None
    except OSError as error:
        raise PlanError(f"{folder}: {name} cannot be read ({error.strerror or error})") from None


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads(_read(folder, name))
    except (ValueError, RecursionError):
        raise PlanError(f"{folder}: {name} is damaged: it is not JSON") from None
    if not isinstance(content, dict):
        raise PlanError(f"{folder}: {name} is damaged: it is not a JSON object")
    return content


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()
