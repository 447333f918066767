"""A folder of finished stages, found by the hash of all that went into them; whoever deletes it loses only time.

What comes back from a disk is data: checked against its own hash, decoded by types, and never run. What is damaged, of
another version or too large is not there, and is made anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from redenvelope import __version__
from redenvelope.arrays import FloatArray
from redenvelope.dual.frontier import Frontier
from redenvelope.errors import RedenvelopeError, UsageError
from redenvelope.evaluation.data import OffPolicyData
from redenvelope.files import cache_folder, read_regular, replacing
from redenvelope.fitting.holdout import PlannedFold
from redenvelope.fitting.learn import LearnedModel, deployed
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.models.fidelity import Fidelity
from redenvelope.models.fit import NeuralFit
from redenvelope.models.history_test import HistoryChoice
from redenvelope.models.neural_model import NeuralModel
from redenvelope.models.responses import StructureChoice
from redenvelope.plan.policy import DeployedPolicy, ModelSource, PolicySpecification, source_from_state
from redenvelope.serialization import from_plain, to_plain

_SUFFIX = ".stage"
_LIMIT_BYTES = 2 * 2**30
_DIGEST = hashlib.sha256().digest_size
_LENGTH = 8

Arrays = dict[str, NDArray[Any]]


@dataclass(eq=False)
class Cache:
    """Finished stages in a folder of at most so many bytes; those not used for longest go first."""

    folder: Path
    limit_bytes: int = _LIMIT_BYTES
    notes: list[str] = field(default_factory=list)
    """What was found, kept or could not be, for whoever looks for a fault."""

    def __post_init__(self) -> None:
        if self.limit_bytes < 0:
            raise UsageError(f"a cache holds 0 bytes or more, not {self.limit_bytes}")

    def get(self, key: str) -> tuple[dict[str, Any], Arrays] | None:
        """The record and the arrays kept under a key; None where there are none that can be believed."""
        path = self._path(key)
        try:
            content = read_regular(path, self.limit_bytes)
            found = _unpacked(content)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, msgspec.DecodeError) as error:
            self.notes.append(f"{path.name}: damaged ({error}); made anew")
            return None
        with suppress(OSError):
            os.utime(path)
        self.notes.append(f"{path.name}: found")
        return found

    def put(self, key: str, record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep a record and arrays under a key; where that cannot be, nothing happens."""
        size = sum(array.nbytes for array in arrays.values())
        if size > self.limit_bytes // 2:
            self.notes.append(f"{key[:16]}: {size:,} bytes are too many to keep")
            return
        path = self._path(key)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # what is kept is made of users' data
            with replacing(path) as file:
                file.write(_packed(record, arrays))
            self._make_room()
            self.notes.append(f"{path.name}: kept")
        except (OSError, UsageError) as error:
            self.notes.append(f"{path.name}: not kept ({error})")

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _make_room(self) -> None:
        """Remove what was not used for longest until the rest fits."""
        stages = [(path.stat(), path) for path in self.folder.glob(f"*{_SUFFIX}")]
        total = sum(stat.st_size for stat, _ in stages)
        for stat, path in sorted(stages, key=lambda pair: pair[0].st_mtime_ns):
            if total <= self.limit_bytes:
                return
            with suppress(OSError):
                path.unlink()
            total -= stat.st_size


def usual_cache() -> Cache | None:
    """The cache of this user; None where the environment says that nothing is kept."""
    folder = cache_folder()
    return None if folder is None else Cache(folder / "stages")


def _packed(record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A hash, the length of the record, the record, and the arrays."""
    words = msgspec.json.encode(record)
    # Asked for in one piece: of anything else the file would hold another array.
    tensors = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    body = len(words).to_bytes(_LENGTH, "little") + words + tensors
    return hashlib.sha256(body).digest() + body


def _unpacked(content: bytes) -> tuple[dict[str, Any], Arrays]:
    digest, body = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("its hash is not that of its content")
    end = _LENGTH + int.from_bytes(body[:_LENGTH], "little")
    record = msgspec.json.decode(body[_LENGTH:end])
    if not isinstance(record, dict):
        raise ValueError("it holds no record")
    return record, dict(load(body[end:]))


# The stages of a fit, kept: each is looked up by the hash of its inputs before it is made, and put aside afterwards.
#
# Keys are chained: a stage's key holds those of the stages before it, so that another budget finds everything that
# does not depend on one, another search finds the model, and a fit that was interrupted goes on after its last
# finished stage.

Made = TypeVar("Made")

_FORMAT = 1  # of what is kept: raised whenever a stage means something else with the same inputs
_ARRAYS = ("starts", "keys", "ratio", "outcomes", "values", "action_values", "unlogged", "clipped", "features", "past")


@dataclass(frozen=True)
class _LearnedRecord:
    """What was learned, but for the weights."""

    encoder: Encoder
    structures: tuple[StructureChoice, ...]
    epochs: int
    held_out_loss: dict[str, float]
    disagreement: dict[str, float]
    history: HistoryChoice | None
    model: dict[str, Any]


@dataclass(frozen=True)
class _PolicyRecord:
    """A policy, but for the weights of one that was learned without a model."""

    specification: PolicySpecification
    kind: str
    config: dict[str, Any]


class StageCache:
    """Looks stages up in a cache, in the order in which a fit makes them."""

    def __init__(self, cache: Cache | None, log: Log, settings: FitSettings, besides: tuple[object, ...] = ()) -> None:
        """`besides` is whatever else changes what is learned or planned: records, numbers, texts."""
        self._cache, self._settings, self._key = cache, settings, ""
        if cache is not None:
            versions = f"{_FORMAT} {__version__} {jax.__version__} {np.__version__}"
            self._key = _sha256(versions, log_sha256(log), settings.seed, settings.parts, *besides)
        self.hits: list[str] = []
        """Stages that were found."""

    def lessons(self, catalogue: ActionCatalogue, learn: Callable[[], LearnedModel]) -> LearnedModel:
        """What was learned from the training users."""

        def stored(lessons: LearnedModel) -> tuple[Any, Arrays]:
            config, weights = lessons.neural.model.state()
            neural = lessons.neural
            losses = (neural.held_out_loss, neural.disagreement)
            record = _LearnedRecord(lessons.encoder, neural.structures, neural.epochs, *losses, lessons.history, config)
            return record, dict(weights)

        def restored(record: Any, arrays: Arrays) -> LearnedModel:
            found = from_plain(_LearnedRecord, record, "what was learned")
            model = NeuralModel.from_state(found.model, arrays)
            neural = NeuralFit(model, found.structures, found.epochs, found.held_out_loss, found.disagreement)
            return LearnedModel(found.encoder, catalogue, neural, found.encoder.campaign_steps, found.history)

        return self._stage("model", (self._settings.neural, self._settings.history), learn, stored, restored)

    def said(self, name: str, words: str) -> str:
        """A stage's words, and whether it was found."""
        return f"{words} (kept from before)" if name in self.hits else words

    def fidelity(self, measure: Callable[[], Fidelity]) -> Fidelity:
        """How far the model may be trusted."""

        def stored(found: Fidelity) -> tuple[Any, Arrays]:
            return found, {}

        def restored(record: Any, arrays: Arrays) -> Fidelity:
            return from_plain(Fidelity, record, "the fidelity")

        return self._stage("fidelity", (), measure, stored, restored)

    def policy(self, lessons: LearnedModel, choose: Callable[[], DeployedPolicy]) -> DeployedPolicy:
        """The policy before its price is known."""

        def stored(policy: DeployedPolicy) -> tuple[Any, Arrays]:
            kind = policy.source.kind
            config, weights = policy.source.state() if kind != "model" else ({}, {})  # the model is kept already
            return _PolicyRecord(policy.specification, kind, config), dict(weights)

        def restored(record: Any, arrays: Arrays) -> DeployedPolicy:
            found = from_plain(_PolicyRecord, record, "the policy")
            config, weights = (found.config, arrays) if found.kind != "model" else lessons.neural.model.state()
            source = source_from_state(found.kind, config, weights)
            if isinstance(source, ModelSource):
                source = replace(source, charges=lessons.charges)
            return deployed(found.specification, source, lessons)

        asked = self._settings
        wanted = (asked.method, asked.horizon, asked.temperature, asked.search, asked.learning)
        return self._stage("policy", wanted, choose, stored, restored)

    def prices(self, find: Callable[[], Mapping[str, FloatArray]]) -> dict[str, FloatArray]:
        """The prices that contestants are checked at, by name."""
        return self._stage(
            "prices",
            (),
            lambda: dict(find()),
            lambda found: ({"names": list(found)}, dict(found)),
            lambda record, arrays: {name: arrays[name] for name in record["names"]},
        )

    def planned(self, plan: Callable[[], PlannedFold]) -> PlannedFold:
        """What the contestants would do on the check users."""
        return self._stage("evidence", (self._settings.shown_users,), plan, _stored_fold, _restored_fold)

    def frontier(self, duals: FloatArray, promise: Callable[[], Frontier]) -> Frontier:
        """What the policy's own values promise at duals [duals]."""

        def stored(found: Frontier) -> tuple[Any, Arrays]:
            return {}, {"duals": found.duals, "costs": found.costs, "rewards": found.rewards}

        def restored(record: Any, arrays: Arrays) -> Frontier:
            return Frontier(arrays["duals"], arrays["costs"], arrays["rewards"])

        return self._stage("frontier", (duals.tolist(),), promise, stored, restored)

    def _stage(
        self,
        name: str,
        wanted: tuple[Any, ...],
        make: Callable[[], Made],
        stored: Callable[[Made], tuple[Any, Arrays]],
        restored: Callable[[Any, Arrays], Made],
    ) -> Made:
        """A stage that was kept under its inputs' hash, or is made now, and kept."""
        if self._cache is None:
            return make()
        self._key = _sha256(self._key, name, *wanted)
        found = self._cache.get(self._key)
        if found is not None:
            try:
                result = restored(*found)
            except (RedenvelopeError, KeyError, TypeError, ValueError, IndexError) as error:
                self._cache.notes.append(f"{name}: what was kept does not fit ({error}); made anew")
            else:
                self.hits.append(name)
                return result
        result = make()
        record, arrays = stored(result)
        self._cache.put(self._key, to_plain(record), arrays)
        return result


def log_sha256(log: Log) -> str:
    """A hash of all that a fit reads of a log."""
    features = log.features
    words = (
        log.catalogue,
        log.outcome_names,
        [name for name, _ in (*log.further, *log.charged)],
        log.propensity_source,
        features.numeric_names,
        features.category_names,
        features.labels,
        sorted(features.static),
    )
    digest = hashlib.sha256(_sha256(*words).encode())
    charged = (array for _, array in (*log.further, *log.charged))
    listed = () if log.eligible is None else (log.eligible,)
    for array in (log.keys, log.starts, log.step, log.action, log.propensity, log.outcomes, *charged, *listed):
        digest.update(np.ascontiguousarray(array).data)
    for table in (features.numeric, features.codes):
        for column in table.T:
            digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def _sha256(*parts: Any) -> str:
    content = msgspec.json.encode([to_plain(part) for part in parts], enc_hook=repr, order="sorted")
    return hashlib.sha256(content).hexdigest()


def _stored_fold(fold: PlannedFold) -> tuple[Any, Arrays]:
    parts, arrays = [], {"shown": fold.shown}
    for number, part in enumerate(fold.evidence):
        held = {name: getattr(part, name) for name in _ARRAYS}
        arrays |= {f"{number} {name}": array for name, array in held.items() if array is not None}
        parts.append({each.name: getattr(part, each.name) for each in fields(part) if each.name not in _ARRAYS})
    return {"parts": parts}, arrays


def _restored_fold(record: Any, arrays: Arrays) -> PlannedFold:
    return PlannedFold(tuple(_restored_parts(record["parts"], arrays)), arrays["shown"])


def _restored_parts(parts: Sequence[dict[str, Any]], arrays: Arrays) -> Sequence[OffPolicyData]:
    found = []
    for number, plain in enumerate(parts):
        held = {name: arrays.get(f"{number} {name}") for name in _ARRAYS}
        tuples = {name: tuple(plain[name]) for name in ("outcome_names", "feature_blocks")}
        found.append(OffPolicyData(**{**plain, **held, **tuples}))
    return found
