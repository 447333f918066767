"""Good tables made bad in every way that files go bad, each by a seed: what came once comes again."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl

from tests.log.files import good_log

__all__ = ["KINDS", "Mutant", "log_table", "mutant", "users_table"]

Chance = np.random.Generator
Change = Callable[[pl.DataFrame, Chance], pl.DataFrame]

EDGES: list[Any] = [
    *(0, 1, -1, 5, 2**24, 2**31 - 2, 2**31, 2 * 10**9, 2**53, 2**62, -(2**62)),
    *(0.0, -0.0, 0.5, 1.5, 5e-324, 1e-300, 1e-160, 1e-38, 1e-9, 1e15, 1e39, 1e308, -1e308),
    *(float("nan"), float("inf"), -float("inf"), True, False, None),
    *(
        "",
        " ",
        "NA",
        "nan",
        "-inf",
        "1e0",
        "true",
        "5.0",
        "005",
        "1,200",
        "25%",
        "€5",
        "x" * 20_000,
        "\x00",
        "\x1b[31m",
    ),
    *("９", "1e400", "0x10", "9" * 19, "9" * 40, "2024-01-01", "\u202e", "a\nb", '"', ";", "=1+1"),
]
NAMES = [
    "*",
    "^.*$",
    "^r.*$",
    "",
    " ",
    "user",
    "step",
    "\x00row",
    "a\nb",
    "\x1b[2J",
    "[red]",
    "x" * 5_000,
    "值",
    "value",
    "row",
    "now",
]
TYPES: list[Any] = [
    *(pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Int128, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64),
    *(pl.Float32, pl.Float64, pl.Decimal(38, 0), pl.Decimal(38, 6), pl.Boolean, pl.String, pl.Categorical, pl.Binary),
    *(
        pl.Date,
        pl.Datetime("ms"),
        pl.Datetime("us", "Asia/Tokyo"),
        pl.Datetime("ns"),
        pl.Duration("ms"),
        pl.Time,
        pl.Null,
    ),
]
OBJECTS: list[Any] = [
    *(date(1, 1, 1), date(9999, 12, 31), datetime(2024, 1, 1), timedelta(days=10**6), time(23, 59)),
    *(Decimal("5.00"), Decimal("1.5"), b"\xff\x00", [1, 2], [], {"a": 1}, {"a": [None]}),
]


def log_table() -> pl.DataFrame:
    """A good log, [360 rows]."""
    return good_log()


def users_table() -> pl.DataFrame:
    """A good table of users for the two-step plan, [40 rows]."""
    return pl.DataFrame({"user": range(40), "step": [0, 1] * 20, "state": ["s0", "s1"] * 20})


@dataclass(frozen=True)
class Mutant:
    """A spoilt table as a file, and what was done to it."""

    name: str
    content: bytes
    changes: tuple[str, ...]


def mutant(frame: pl.DataFrame, kind: str, seed: int) -> Mutant:
    """The table spoilt in one to three ways of a kind, as a file of some format."""
    chance = np.random.default_rng([sorted(KINDS).index(kind), seed])
    changes = []
    for _ in range(int(chance.integers(1, 4))):
        change = KINDS[kind][int(chance.integers(len(KINDS[kind])))]
        try:
            frame = change(frame, chance)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError, OverflowError):
            continue  # a table that no library could have written
        changes.append(change.__name__)
    name, content = _written(frame, chance)
    if kind == "bytes":
        content = _damaged(content, chance)
    return Mutant(name, content, tuple(changes))


def _written(frame: pl.DataFrame, chance: Chance) -> tuple[str, bytes]:
    flat = not any(dtype.is_nested() or dtype.is_temporal() or dtype == pl.Binary for dtype in frame.dtypes)
    ending = ["parquet", "csv", "csv.gz", "tsv"][int(chance.integers(4))] if flat else "parquet"
    buffer = io.BytesIO()
    try:
        if ending == "parquet":
            frame.write_parquet(buffer)
        else:
            frame.write_csv(buffer, separator="\t" if ending == "tsv" else ",")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        pl.DataFrame({"user": ["nothing else could be written"]}).write_parquet(buffer := io.BytesIO())
        ending = "parquet"
    content = buffer.getvalue()
    return f"table.{ending}", gzip.compress(content, mtime=0) if ending.endswith("gz") else content


def _damaged(content: bytes, chance: Chance) -> bytes:
    spoilt = bytearray(content)
    for _ in range(int(chance.integers(1, 5))):
        place, way = int(chance.integers(max(len(spoilt), 1))), int(chance.integers(6))
        if way == 0:
            del spoilt[place:]
        elif way == 1 and spoilt:
            spoilt[place] ^= 1 << int(chance.integers(8))
        elif way == 2:
            spoilt[place:place] = chance.bytes(int(chance.integers(1, 9)))
        elif way == 3:
            del spoilt[place : place + int(chance.integers(1, 50))]
        elif way == 4:
            tokens = [b'"', b"\n", b"\r", b"\0", b",", b"\xff\xfe", b"\xef\xbb\xbf", b'",', b"1e999", b"x^"]
            spoilt[place:place] = tokens[int(chance.integers(len(tokens)))]
        else:
            spoilt += spoilt[place:]
    return bytes(spoilt)


def _some(frame: pl.DataFrame, chance: Chance) -> str:
    """A column; none that holds dates, which may be such that the table library cannot even show them."""
    usable = [name for name, dtype in frame.schema.items() if not dtype.is_temporal()]
    return usable[int(chance.integers(len(usable)))]


def another_type(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    name, dtype = _some(frame, chance), TYPES[int(chance.integers(len(TYPES)))]
    return frame.with_columns(frame[name].cast(dtype, strict=False).alias(name))


def physical_type(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    """Dates and times of any number, as a damaged writer makes them."""
    name = _some(frame, chance)
    numbers = chance.integers(-(2**63), 2**63 - 1, len(frame)) if chance.random() < 0.5 else np.arange(len(frame))
    dtype = [pl.Datetime("ms"), pl.Datetime("us", "UTC"), pl.Duration("ms"), pl.Date][int(chance.integers(4))]
    if dtype == pl.Date:
        return frame.with_columns(pl.Series(name, (numbers % 2**32 - 2**31).astype(np.int32)).cast(dtype))
    return frame.with_columns(pl.Series(name, numbers).cast(dtype))


def objects(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    name, value = _some(frame, chance), OBJECTS[int(chance.integers(len(OBJECTS)))]
    values = [value if chance.random() < 0.5 else None for _ in range(len(frame))]
    return frame.with_columns(pl.Series(name, values))


def wide_ids(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    base = [2**53, 2**63 - 20, 2**64, 10**18, 10**30, -(2**63)][int(chance.integers(6))]
    ids = [base + int(user) for user in frame["user"].to_physical().cast(pl.Int64, strict=False).fill_null(0)]
    form = [pl.Int128, pl.Decimal(38, 0), pl.Decimal(38, 3), pl.String, pl.Float64, pl.UInt64][int(chance.integers(6))]
    return frame.with_columns(pl.Series("user", ids, dtype=pl.Int128).cast(form, strict=False))


def edge_value(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    name, value = _some(frame, chance), EDGES[int(chance.integers(len(EDGES)))]
    values = frame[name].to_list()
    for row in chance.integers(0, len(values), int(chance.integers(1, 4))):
        values[row] = value
    if isinstance(value, str):
        values = [None if each is None else str(each) for each in values]
    return frame.with_columns(pl.Series(name, values, strict=False))


def all_edge(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    name, value = _some(frame, chance), EDGES[int(chance.integers(len(EDGES)))]
    return frame.with_columns(pl.Series(name, [value] * len(frame)))


def scaled(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    name, factor = _some(frame, chance), 10.0 ** int(chance.integers(-320, 308))
    return frame.with_columns((frame[name].cast(pl.Float64, strict=False) * factor).alias(name))


def holes(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    name = _some(frame, chance)
    return frame.with_columns(frame[name].set(pl.Series(chance.random(len(frame)) < chance.random()), None))


def rename(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    return frame.rename({_some(frame, chance): NAMES[int(chance.integers(len(NAMES)))]})


def more_columns(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    values = EDGES[int(chance.integers(len(EDGES)))]
    return frame.with_columns(pl.Series(name, [values] * len(frame)) for name in NAMES if name not in frame.columns)


def fewer_columns(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    kept = [name for name in frame.columns if chance.random() < 0.8]
    return frame[kept or [frame.columns[0]]]


def reordered(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    return frame[list(chance.permutation(frame.columns))]


def shuffled(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    return frame[chance.permutation(len(frame))]


def repeated(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    return frame[chance.integers(0, len(frame), len(frame) + 5)]


def shortened(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    return frame.head(int(chance.integers(0, 7)))


def gaps(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    return frame.filter(pl.Series(chance.random(len(frame)) < 0.7))


def far_steps(frame: pl.DataFrame, chance: Chance) -> pl.DataFrame:
    factor = int(chance.choice([2, 1_000, 10**6, 10**9, 2**40]))
    return frame.with_columns(frame["step"].cast(pl.Int64, strict=False) * factor)


KINDS: dict[str, list[Change]] = {
    "types": [another_type, physical_type, objects, wide_ids],
    "values": [edge_value, all_edge, scaled, holes, far_steps],
    "names": [rename, more_columns, fewer_columns, reordered],
    "rows": [shuffled, repeated, shortened, gaps, holes],
    "bytes": [reordered, edge_value, shuffled],
    "all": [another_type, objects, edge_value, rename, repeated, more_columns, wide_ids, holes],
}
"""What is spoilt -> ways to do so."""
