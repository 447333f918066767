"""A plan on disk: a manifest with hashes, weights, tables and the certificate. Opening it runs nothing from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
from safetensors import SafetensorError
from safetensors.numpy import load as load_weights
from safetensors.numpy import save as dump_weights

from redenvelope import __version__
from redenvelope.campaign.records import Rule
from redenvelope.errors import ModelError, PlanError, UsageError
from redenvelope.log.encoding import Encoder
from redenvelope.log.log import ActionCatalogue
from redenvelope.plain import decoded, from_plain, to_plain
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.consistent import (
    require_consistent,
    require_frontier,
    require_frontiers,
    require_policy,
)
from redenvelope.plan.ladder import Ladder
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import DeployedPolicy
from redenvelope.plan.record import FitRecord
from redenvelope.plan.sources import source_from_state
from redenvelope.plan.specification import PolicySpecification
from redenvelope.plan.store import MANIFEST, read_files, replace_files, sealed
from redenvelope.policies.pricing import Pricing

__all__ = ["FORMAT", "PackedPlan", "load_plan", "save_plan"]

FORMAT = 5
"""Version of the folder's format; any other is refused."""
FRONTIERS = "frontiers.parquet"
"""What more or less of each of several budgets would buy."""


@dataclass(frozen=True)
class _WrittenSource:
    """What was learned, beside its weights."""

    kind: str
    config: dict[str, Any]


@dataclass(frozen=True)
class _Manifest:
    """What of a plan stands in its manifest, beside the names and hashes of the files."""

    package: str
    catalogue: ActionCatalogue
    encoder: Encoder
    policy: PolicySpecification
    pricing: Pricing
    rules: tuple[Rule, ...]
    joins_late: bool
    source: _WrittenSource
    record: FitRecord


def save_plan(plan: Plan, folder: Path, extra: dict[str, bytes] | None = None) -> Path:
    """Write a plan to a folder, in one step: whoever looks finds the older plan there or this one, and never half.

    `extra` files (a report) are stored and hashed with it. Of what is in the folder, only an older plan's own files are
    replaced; a folder that holds anything else, and no plan, is refused.
    """
    manifest, files = _content(plan)
    files |= extra or {}
    replace_files(folder, sealed(manifest, files), files)
    return folder


@dataclass(frozen=True)
class PackedPlan:
    """A plan as it would be written, for somebody who works elsewhere; opened once, and then kept."""

    manifest: bytes
    files: dict[str, bytes]

    @classmethod
    def of(cls, plan: Plan) -> PackedPlan:
        """Pack a plan."""
        manifest, files = _content(plan)
        return cls(_json(manifest), files)

    @cached_property
    def plan(self) -> Plan:
        """The plan, opened."""
        return _plan(decoded(self.manifest, MANIFEST), self.files)


def _content(plan: Plan) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest of a plan, and the content of its other files by name."""
    policy = plan.policy
    config, weights = policy.source.state()
    files = {
        "weights.safetensors": dump_weights({name: value.copy() for name, value in weights.items()}),
        "frontier.parquet": _parquet(plan.frontier),
        "certificate.json": _json(plan.certificate.as_dict()),
        "ladder.json": _json(to_plain(plan.ladder)),
        **({} if plan.frontiers is None else {FRONTIERS: _parquet(plan.frontiers)}),
    }
    manifest = {"format": FORMAT} | to_plain(
        _Manifest(
            __version__,
            policy.catalogue,
            policy.encoder,
            policy.specification,
            policy.pricing,
            policy.rules,
            policy.joins_late,
            _WrittenSource(policy.source.kind, config),
            plan.record,
        )
    )
    return manifest, files


def load_plan(folder: Path) -> Plan:
    """Open a plan folder, refusing what is damaged, too large, too new, not what its hashes say, or contradictory."""
    content, files = read_files(folder, FORMAT)
    try:
        return _plan(content, files)
    except (PlanError, ModelError, UsageError) as error:
        raise PlanError(f"{folder}: {error}") from None


def _plan(content: dict[str, Any], files: dict[str, bytes]) -> Plan:
    """The plan that the files hold, every part checked by itself before it is built, and then against the others."""
    manifest = from_plain(_Manifest, content, MANIFEST)
    policy = DeployedPolicy(
        manifest.policy,
        source_from_state(manifest.source.kind, manifest.source.config, _weights(files["weights.safetensors"])),
        manifest.encoder,
        manifest.catalogue,
        manifest.pricing,
        manifest.rules,
        manifest.joins_late,
    )
    require_policy(policy)
    plan = Plan(
        policy,
        Certificate.from_dict(decoded(files["certificate.json"], "certificate.json")),
        _frontier(files["frontier.parquet"]),
        from_plain(Ladder, decoded(files["ladder.json"], "ladder.json"), "ladder.json"),
        manifest.record,
        None if FRONTIERS not in files else _frontiers(files[FRONTIERS]),
    )
    require_consistent(plan)
    return plan


def _weights(content: bytes) -> dict[str, Any]:
    try:
        return load_weights(content)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise PlanError(f"weights.safetensors is damaged ({error})") from None


def _frontier(content: bytes) -> pl.DataFrame:
    """The table, read only when its columns and its length are a frontier's."""
    try:
        require_frontier(pl.read_parquet_schema(BytesIO(content)), _rows(content))
        return pl.read_parquet(BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise PlanError(f"frontier.parquet is damaged ({str(error).splitlines()[0]})") from None


def _frontiers(content: bytes) -> pl.DataFrame:
    """The same of several budgets."""
    try:
        require_frontiers(pl.read_parquet_schema(BytesIO(content)), _rows(content))
        return pl.read_parquet(BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise PlanError(f"{FRONTIERS} is damaged ({str(error).splitlines()[0]})") from None


def _rows(content: bytes) -> int:
    return int(pl.scan_parquet(BytesIO(content)).select(pl.len()).collect().item())


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()
