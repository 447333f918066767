"""A plan on disk: a manifest with hashes, weights, tables and the certificate. Opening it runs no code from it.

All files of a folder are replaced at once or not at all. `plan.json` names every other file with its hash, so the
rename of `plan.json` commits the new plan. Until then the other files wait beside it under names that contain their
hashes, and they are renamed right after; a reader in between, or after a crash, finds them under either name. Only a
plan's own files are touched, so folders that cannot be renamed (mount points, the working folder, links) work too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
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
from redenvelope.files import (
    locked,
    named,
    nameless,
    read_regular,
    require_writable,
    resolved,
    settle,
    usual_mode,
    writing,
)
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.log import ActionCatalogue
from redenvelope.plan.certificate import Certificate
from redenvelope.plan.ladder import Ladder
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import DeployedPolicy, PolicySpecification, source_from_state
from redenvelope.plan.record import FitRecord
from redenvelope.plan.validation import FRONTIER, Schema, require_consistent, require_frontier, require_policy
from redenvelope.policies.new_actions import IntroducedAction
from redenvelope.policies.pricing import Pricing
from redenvelope.serialization import decoded, from_plain, to_plain

FORMAT = 6
"""Version of the folder's format. This one and the one before can be read; any other is refused."""
_RENAMED = {"doubts": "objections"}  # fields of the record that were renamed since format 5


@dataclass(frozen=True)
class _WrittenSource:
    """What was learned, without its weights."""

    kind: str
    config: dict[str, Any]


@dataclass(frozen=True)
class _Manifest:
    """The content of the manifest, apart from the names and hashes of the files."""

    package: str
    catalogue: ActionCatalogue
    encoder: Encoder
    policy: PolicySpecification
    pricing: Pricing
    rules: tuple[Rule, ...]
    joins_late: bool
    source: _WrittenSource
    record: FitRecord
    holdout: float = 0.0
    new: tuple[IntroducedAction, ...] = ()


def save_plan(plan: Plan, folder: Path, extra: dict[str, bytes] | None = None) -> Path:
    """Write a plan to a folder in one step: a reader finds the older plan or this one, never a partial one.

    `extra` files (a report) are stored and hashed with it. Only an older plan's own files are replaced; a folder that
    holds other files but no plan is refused.
    """
    manifest, files = _content(plan)
    files |= extra or {}
    replace_files(folder, sealed(manifest, files), files)
    return folder


@dataclass(frozen=True)
class PackedPlan:
    """A plan in its stored form, to send to another process; opened once, then cached."""

    manifest: bytes
    files: dict[str, bytes]

    @classmethod
    def of(cls, plan: Plan) -> PackedPlan:
        """Pack a plan."""
        manifest, files = _content(plan)
        return cls(_json(manifest), files)

    @cached_property
    def plan(self) -> Plan:
        """The opened plan."""
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
            policy.holdout,
            policy.new,
        )
    )
    return manifest, files


def load_plan(folder: Path) -> Plan:
    """Open a plan folder; refuse it if damaged, too large, too new, contradictory, or not matching its hashes."""
    content, files = read_files(folder)
    try:
        return _plan(content if content["format"] == FORMAT else _manifest_of_format_5(content), files)
    except (PlanError, ModelError, UsageError) as error:
        raise PlanError(f"{folder}: {error}") from None


def _plan(content: dict[str, Any], files: dict[str, bytes]) -> Plan:
    """Build the plan from its files: each part is checked on its own first, then against the others."""
    manifest = from_plain(_Manifest, content, MANIFEST)
    policy = DeployedPolicy(
        manifest.policy,
        source_from_state(manifest.source.kind, manifest.source.config, _weights(files["weights.safetensors"])),
        manifest.encoder,
        manifest.catalogue,
        manifest.pricing,
        manifest.rules,
        manifest.joins_late,
        manifest.holdout,
        manifest.new,
    )
    require_policy(policy)
    certificate = Certificate.from_dict(decoded(files["certificate.json"], "certificate.json"))
    is_older = content["format"] < FORMAT
    plan = Plan(
        policy,
        certificate,
        _frontier_of_format_5(files, certificate.budgets[0].name) if is_older else _frontier(files),
        from_plain(Ladder, decoded(files["ladder.json"], "ladder.json"), "ladder.json"),
        manifest.record,
    )
    require_consistent(plan)
    return plan


def _weights(content: bytes) -> dict[str, Any]:
    try:
        return load_weights(content)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise PlanError(f"weights.safetensors is damaged ({error})") from None


def _frontier(files: dict[str, bytes], name: str = "frontier.parquet", columns: Schema = FRONTIER) -> pl.DataFrame:
    """Read a frontier, after checking its columns and length."""
    content = files[name]
    try:
        require_frontier(name, columns, pl.read_parquet_schema(BytesIO(content)), _rows(content))
        return pl.read_parquet(BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise PlanError(f"{name} is damaged ({str(error).splitlines()[0]})") from None


def _manifest_of_format_5(content: dict[str, Any]) -> dict[str, Any]:
    """The manifest converted to the current format."""
    record = content.get("record")
    if not isinstance(record, dict):
        return content
    return content | {"record": {_RENAMED.get(name, name): value for name, value in record.items()}}


def _frontier_of_format_5(files: dict[str, bytes], first: str) -> pl.DataFrame:
    """Merge the two tables of format 5: the first budget's frontier, and those of several budgets."""
    figures = {name: kind for name, kind in FRONTIER.items() if name != "budget"}
    if "frontiers.parquet" not in files:
        return _frontier(files, columns=figures).select(pl.lit(first).alias("budget"), pl.all())
    table = _frontier(files, "frontiers.parquet", {"budget": pl.String, "limit": pl.Float64, **figures})
    return pl.concat([table.clear(), *(own.reverse() for own in table.partition_by("budget"))]).drop("limit")


def _rows(content: bytes) -> int:
    return int(pl.scan_parquet(BytesIO(content)).select(pl.len()).collect().item())


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


MANIFEST = "plan.json"

_LARGEST_BYTES = {
    MANIFEST: 2**24,
    "weights.safetensors": 2**30,
    "frontier.parquet": 2**22,
    "certificate.json": 2**20,
    "ladder.json": 2**24,
}
_LARGEST_OTHER = 2**26
_MOST_FILES = 32
_READERS_WAIT = 5.0

_NO_SEAL = "0" * 64
_WAITING = re.compile(r"\.(?P<name>.+)\.(?P<digest>[0-9a-f]{64})\.waiting")
_OF_THE_SYSTEM = frozenset({"lost+found"})


def sealed(manifest: dict[str, Any], files: dict[str, bytes]) -> bytes:
    """The bytes of the manifest: its content, the hash of every file, and a seal (a hash) over all of it."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    plain = {"seal": _NO_SEAL, **manifest, "files": hashes}
    text = json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return _with_seal(text.encode(), _NO_SEAL)


def replace_files(folder: Path, manifest: bytes, files: dict[str, bytes]) -> None:
    """Replace the plan of a folder, if any; the older plan's own files are removed, all others stay."""
    require_room(folder)
    for name, content in {MANIFEST: manifest, **files}.items():
        if len(content) > _LARGEST_BYTES.get(name, _LARGEST_OTHER):
            raise UsageError(
                f"{folder}: {name} would have {len(content):,} bytes, more than is ever opened again; plan with fewer "
                "actions, steps or features"
            )
    with writing(folder):
        place = resolved(folder)
        place.mkdir(parents=True, exist_ok=True)
        with locked(place):
            before = _own_files(place)
            waiting, first = dict(_waiting_names(files)), dict(_waiting_names({MANIFEST: manifest}))
            with ExitStack() as written:
                _write_aside(place, files, waiting, written)
                _write_aside(place, {MANIFEST: manifest}, first, written)
                settle(place)
                (place / first[MANIFEST]).replace(place / MANIFEST)  # the commit: the plan is now the new one
                settle(place)  # makes the commit durable before files of the older plan are removed
                for name, aside in waiting.items():
                    (place / aside).replace(place / name)
            settle(place)
            _tidy(place, before, files)


def read_files(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest, and the content of every file that it names, all from one plan.

    If reading fails, it is tried again under a lock, so that a concurrent replacement is not mistaken for damage.
    """
    try:
        return _read_once(folder)
    except PlanError:
        with ExitStack() as held:
            with suppress(OSError):  # without a lock if there is no folder, or if it is never released
                held.enter_context(locked(folder, shared=True, patience=_READERS_WAIT))
            return _read_once(folder)


def _read_once(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    manifest = _manifest(folder, _read(folder, MANIFEST))
    return manifest, {name: _found(folder, name, digest) for name, digest in manifest["files"].items()}


def require_room(folder: Path) -> None:
    """Refuse a folder that holds anything but an older plan, or that cannot be written; call it before long work."""
    with writing(folder):
        there = folder.exists()
        if there and not folder.is_dir():
            raise UsageError(f"{folder}: exists and is not a folder; choose another name")
    if there:
        _require_own(folder)
    require_writable(folder)


def require_outside(out: Path) -> None:
    """Refuse to overwrite one of a plan's own files, which would no longer match its hash."""
    folder = out.parent
    if out.name in {MANIFEST, *_own_files(folder), *_LARGEST_BYTES} and _is_plan(folder):
        raise UsageError(f"{out}: is a file of the plan in {folder}; choose another name")


def _require_own(folder: Path) -> None:
    """Refuse a folder that holds other files but no plan."""
    entries = [entry for entry in _entries(folder) if not entry.startswith(".") and entry not in _OF_THE_SYSTEM]
    if entries and not _is_plan(folder):
        raise UsageError(f"{folder}: holds {entries[0]!r} and is not a plan; choose another folder")
    for name in (*_LARGEST_BYTES, "report.html"):
        if (folder / name).is_dir():
            raise UsageError(f"{folder}: {name} in it is a folder, not a plan's file; choose another folder")


def _write_aside(place: Path, files: dict[str, bytes], names: dict[str, str], written: ExitStack) -> None:
    """Write files under their waiting names, and flush them to disk."""
    mode = usual_mode()
    for name, content in files.items():
        handle = written.enter_context(nameless(place / name))
        handle.write(content)
        handle.flush()
        os.fchmod(handle.fileno(), mode)
        os.fsync(handle.fileno())
        waiting = place / names[name]
        waiting.unlink(missing_ok=True)
        shown = named(handle, waiting)
        if shown != waiting:
            shown.replace(waiting)


def _waiting_names(files: dict[str, bytes]) -> Iterator[tuple[str, str]]:
    for name, content in files.items():
        yield name, f".{name}.{hashlib.sha256(content).hexdigest()}.waiting"


def _tidy(place: Path, before: dict[str, str], files: dict[str, bytes]) -> None:
    """Remove what an older plan left: its unchanged files that the new plan does not have, and files still waiting."""
    for name, digest in before.items():
        if name not in files and Path(name).name == name:
            with suppress(OSError, PlanError):
                if hashlib.sha256(_read(place, name)).hexdigest() == digest:
                    (place / name).unlink()
    for entry in _entries(place):
        if _WAITING.fullmatch(entry):
            with suppress(OSError):
                (place / entry).unlink()


def _own_files(place: Path) -> dict[str, str]:
    """Names and hashes of the older plan's files; empty if there is no older plan."""
    try:
        files = decoded(_read(place, MANIFEST), MANIFEST).get("files")
    except PlanError:
        return {}
    if not isinstance(files, dict):
        return {}
    return {str(name): str(digest) for name, digest in files.items() if name != MANIFEST}


def _is_plan(folder: Path) -> bool:
    """Whether a folder holds a plan of this or another version, judged by the content of the manifest."""
    try:
        manifest = decoded(_read(folder, MANIFEST), MANIFEST)
    except PlanError:
        return False
    known = isinstance(manifest.get("files"), dict)
    return known and type(manifest.get("format")) is int and {"package", "policy", "record"} <= manifest.keys()


def _manifest(folder: Path, content: bytes) -> dict[str, Any]:
    """The manifest, with its form, version, seal and file names checked."""
    manifest = decoded(content, f"{folder}: {MANIFEST}")
    if type(manifest.get("format")) is not int:
        raise PlanError(f"{folder}: {MANIFEST} is not the manifest of a plan")
    if not FORMAT - 1 <= manifest["format"] <= FORMAT:
        remedy = "upgrade redenvelope" if manifest["format"] > FORMAT else "make the plan again with `redenvelope fit`"
        raise PlanError(
            f"{folder}: written in format {manifest['format']} by version {str(manifest.get('package'))[:40]}; this "
            f"version reads formats {FORMAT - 1} and {FORMAT}: {remedy}"
        )
    seal = manifest.get("seal")
    if not isinstance(seal, str) or len(seal) != len(_NO_SEAL) or content != _with_seal(content, seal):
        raise PlanError(f"{folder}: {MANIFEST} is damaged or was changed: its seal is not that of its content")
    files = manifest.get("files")
    required = _LARGEST_BYTES.keys() - {MANIFEST}
    if not isinstance(files, dict) or not required <= files.keys() or len(files) > _MOST_FILES or MANIFEST in files:
        raise PlanError(f"{folder}: {MANIFEST} must name {', '.join(sorted(required))} with their hashes")
    return manifest


def _with_seal(content: bytes, seal: str) -> bytes:
    """The manifest with its seal replaced by the correct one."""
    blank = content.replace(seal.encode(errors="replace"), _NO_SEAL.encode(), 1)
    return blank.replace(_NO_SEAL.encode(), hashlib.sha256(blank).hexdigest().encode(), 1)


def _found(folder: Path, name: str, digest: object) -> bytes:
    """The file with this hash, under its own name or its waiting name."""
    if not name or Path(name).name != name or "\0" in name:
        raise PlanError(f"{folder}: {MANIFEST} names a file outside of the folder: {name!r}")
    for place in (name, f".{name}.{digest}.waiting", name):  # again: it may be renamed in between
        with suppress(PlanError):
            content = _read(folder, place, name)
            if hashlib.sha256(content).hexdigest() == digest:
                return content
    _read(folder, name)  # raises if it is missing or unreadable
    raise PlanError(f"{folder}: {name} is damaged or was changed: its hash is not the one in {MANIFEST}")


def _read(folder: Path, place: str, name: str | None = None) -> bytes:
    try:
        return read_regular(folder / place, _LARGEST_BYTES.get(name or place, _LARGEST_OTHER))
    except (FileNotFoundError, NotADirectoryError):
        if not folder.is_dir():
            what = "a file, not a plan folder" if folder.exists() else "no such folder"
            raise PlanError(f"{folder}: {what}; give the folder that fit --out wrote") from None
        raise PlanError(f"{folder}: there is no {place}; this is not a complete plan folder") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise PlanError(f"{folder}: {place} cannot be read ({said})") from None


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read ({error.strerror or error})") from None
