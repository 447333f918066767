"""Plans as a stranger might send them: good ones, changed somewhere, and signed again."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from redenvelope import RedenvelopeError
from redenvelope.plan import storage as folders
from redenvelope.plan.policy import DeployedPolicy, policy_sha256, source_from_state
from redenvelope.serialization import from_plain
from tests.adversary.signed import edit_json, sign

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "text",
    "infinity",
    "\u202e\0\n",
    {"number": "infinity"},
    {"number": "not a number"},
    -1,
    0,
    1,
    2,
    10**9,
    2**31 - 1,
    2**63,
    10**30,
    -0.5,
    1e-300,
    1e300,
    0.5,
    [],
    {},
    [[]],
    [None],
    {"a": {"b": [1, 2]}},
    ["x"] * 50,
    "x" * 5_000,
)


def mutated(folder: Path, generator: np.random.Generator) -> str:
    """Change something in a plan folder and sign it again; returns what was changed.

    Most often the certificate is made out to the changed policy too, as somebody would who wants to be believed.
    """
    what = _one_change(folder, generator)
    if generator.random() < 0.7 and certify(folder):
        what += ", certified again"
    return what


def certify(folder: Path) -> bool:
    """Make the certificate out to the policy as it is now, where there is one."""
    manifest = json.loads((folder / "plan.json").read_text())
    try:
        known = from_plain(folders._Manifest, manifest, "plan.json")
        weights = folders._weights((folder / "weights.safetensors").read_bytes())
        source = source_from_state(known.source.kind, known.source.config, weights)
        policy = DeployedPolicy(known.policy, source, known.encoder, known.catalogue, known.pricing)
        edit_json(folder, "certificate.json", policy_sha256=policy_sha256(policy))
    except (RedenvelopeError, ValueError, TypeError, AttributeError, KeyError):
        return False
    return True


def _one_change(folder: Path, generator: np.random.Generator) -> str:
    name = str(generator.choice(["plan.json", "plan.json", "certificate.json", "ladder.json", "frontier", "weights"]))
    if name == "frontier":
        return _frontier(folder, generator)
    if name == "weights":
        return _weights(folder, generator)
    content = json.loads((folder / name).read_text())
    what = _change(content, generator)
    if name == "plan.json":
        sign(folder, content)
    else:
        sign(folder, **{name.replace(".", "_"): json.dumps(content).encode()})
    return f"{name}: {what}"


def _change(content: Any, generator: np.random.Generator) -> str:
    """Change a JSON document somewhere, in place."""
    path, place = [], content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        keys = [key for key in keys if key not in ("seal", "files")]
        if not keys:
            return "nothing"
        key = keys[int(generator.integers(len(keys)))]
        path.append(str(key))
        deeper = place[key]
        if not isinstance(deeper, dict | list) or not deeper or generator.random() < 0.15:
            break
        place = deeper
    how = int(generator.integers(8))
    if how == 0:
        del place[key]
    elif how == 1 and isinstance(deeper, list) and deeper:
        deeper.append(deeper[int(generator.integers(len(deeper)))])
    elif how == 2 and isinstance(deeper, list) and deeper:
        deeper.pop(int(generator.integers(len(deeper))))
    elif how in (3, 4) and isinstance(deeper, int | float) and not isinstance(deeper, bool):
        factor = float(generator.choice([-1.0, 0.0, 0.5, 1.000001, 1.5, 1e6, 1e200]))
        place[key] = int(deeper * factor) if isinstance(deeper, int) else deeper * factor
    elif how < 7:
        place[key] = _alike(deeper, generator)
    else:
        place[key] = ODD[int(generator.integers(len(ODD)))]
    return f"{'.'.join(path)} ({how})"


def _alike(value: Any, generator: np.random.Generator) -> Any:
    """Another odd value of the same kind, where there is one: it gets past the types."""
    kind = type(value)
    same = [odd for odd in ODD if type(odd) is kind or (kind is float and isinstance(odd, dict) and "number" in odd)]
    return same[int(generator.integers(len(same)))] if same else None


def _frontier(folder: Path, generator: np.random.Generator) -> str:
    frame = pl.read_parquet(folder / "frontier.parquet")
    column = frame.columns[int(generator.integers(frame.width))]
    kinds = {
        "dropped": frame.drop(column),
        "text": frame.with_columns(pl.col(column).cast(pl.String)),
        "nulls": frame.with_columns(pl.lit(None, pl.Float64).alias(column)),
        "nan": frame.with_columns(pl.lit(float("nan")).alias(column)),
        "infinite": frame.with_columns(pl.lit(float("inf")).alias(column)),
        "dates": frame.with_columns(pl.lit("2020-01-01").str.to_date().alias(column)),
        "decimals": frame.with_columns(pl.lit(1).cast(pl.Decimal(10, 2)).alias(column)),
        "lists": frame.with_columns(pl.concat_list(column).alias(column)),
        "empty": frame.clear(),
        "twice": pl.concat([frame, frame]),
        "long": pl.concat([frame] * 400),
        "reversed": frame.reverse(),
        "more": frame.with_columns(pl.lit(1.0).alias("more")),
        "other values": frame.with_columns(pl.col(column) * 1.5),
        "no columns": pl.DataFrame(),
    }
    kind = list(kinds)[int(generator.integers(len(kinds)))]
    buffer = BytesIO()
    kinds[kind].write_parquet(buffer)
    sign(folder, frontier_parquet=buffer.getvalue())
    return f"frontier.parquet: {column} {kind}"


def _weights(folder: Path, generator: np.random.Generator) -> str:
    from safetensors.numpy import load, save

    arrays = load((folder / "weights.safetensors").read_bytes())
    # In the order of their names: that of the file is another in every process, and a number would not come again.
    name = sorted(arrays)[int(generator.integers(len(arrays)))]
    how = int(generator.integers(7))
    if how == 0:
        del arrays[name]
    elif how == 1:
        arrays["more"] = np.zeros(3, np.float32)
    elif how == 2:
        arrays[name] = arrays[name].astype(np.float64)
    elif how == 3:
        arrays[name] = np.full_like(arrays[name], np.nan)
    elif how == 4:
        arrays[name] = arrays[name].reshape(-1)[:-1].copy()
    elif how == 5:
        arrays[name] = arrays[name] * np.float32(1e30)
    content = save(arrays)
    if how == 6:
        flipped = bytearray(content)
        flipped[int(generator.integers(len(flipped)))] ^= 1 << int(generator.integers(8))
        content = bytes(flipped)
    sign(folder, weights_safetensors=content)
    return f"weights.safetensors: {name} ({how})"
