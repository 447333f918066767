"""A shop's own exports: one campaign, known exactly, in the tables that people really bring."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

__all__ = ["EXPORTS", "campaign", "exported"]

WEEKS = 3
OFFERS = {"none": 0.0, "2 € coupon": 2.0, "5 € coupon": 5.0}
SEGMENTS = ("birch", "cedar", "oak")
CITIES = ("Bremen", "Kassel", "Köln", "Mainz", "Jena")


def campaign(users: int = 3_000, seed: int = 0, wave: int = 0) -> pl.DataFrame:
    """One row a customer and week of a furniture shop: who was active buys more, coupons work best on those of cedar,
    and a coupon costs what was redeemed of it. Offers were drawn by lot, dearer ones more often for the active."""
    random = np.random.default_rng(seed)
    user = np.arange(users)
    segment, tenure = random.integers(3, size=users), random.integers(3, 2_000, size=users)
    city, newsletter = random.integers(len(CITIES), size=users), random.random(users) < 0.6
    random = np.random.default_rng([seed, wave])
    active, orders = random.random(users) < 0.4, np.zeros(users, dtype=np.int64)
    values, rows = np.array(list(OFFERS.values())), []
    for week in range(WEEKS):
        chances = np.where(active[:, None], [0.3, 0.3, 0.4], [0.4, 0.35, 0.25])
        offer = (random.random(users)[:, None] > chances.cumsum(axis=1)).sum(axis=1).clip(max=2)
        lift = np.array([[0.0, 0.10, 0.15], [0.0, 0.25, 0.45], [0.0, 0.05, 0.10]])[segment, offer]
        bought = random.random(users) < 0.15 + 0.2 * active + lift
        revenue = np.where(bought, random.lognormal(6.0, 0.6, size=users), 0.0).round(2)
        rows.append(
            pl.DataFrame(
                {
                    "customer_id": user + 10_001,
                    "week": np.full(users, week),
                    "coupon": [list(OFFERS)[place] for place in offer],
                    "probability": chances[user, offer],
                    "revenue": revenue,
                    "redeemed_amount": np.where(bought, values[offer], 0.0),
                    "segment": [SEGMENTS[place] for place in segment],
                    "tenure_days": tenure + 7 * week,
                    "city": [CITIES[place] for place in city],
                    "newsletter": newsletter,
                    "active": active,
                    "orders": orders,
                }
            )
        )
        active, orders = bought | (active & (random.random(users) < 0.3)), orders + bought
    return pl.concat(rows).sort("customer_id", "week", maintain_order=True)


def _timed(table: pl.DataFrame) -> pl.DataFrame:
    """The same with the time of each decision in the place of its week."""
    start = datetime(2024, 3, 4, 9)
    moment = start + timedelta(days=7) * pl.col("week") + timedelta(minutes=1) * (pl.col("customer_id") % 600)
    return table.with_columns(sent_at=moment).drop("week")


def _german(number: pl.Expr, unit: str = "") -> pl.Expr:
    """1142.4 as 1.142,40 €."""
    return number.map_elements(
        lambda value: f"{value:,.2f}{unit}".translate(str.maketrans(",.", ".,")), return_dtype=pl.String
    )


def _german_csv(folder: Path, table: pl.DataFrame) -> Path:
    names = {"customer_id": "Kundennummer", "week": "Woche", "coupon": "Gutschein", "probability": "Wahrscheinlichkeit"}
    names |= {"revenue": "Umsatz", "redeemed_amount": "Kosten"}
    dressed = table.with_columns(
        _german(pl.col("revenue"), " €"),
        _german(pl.col("redeemed_amount"), " €"),
        _german(pl.col("probability")),
        pl.col("newsletter", "active").replace_strict({True: "ja", False: "nein"}, return_dtype=pl.String),
    )
    out = folder / "export.csv"
    out.write_bytes(b"\xef\xbb\xbf" + dressed.rename(names).write_csv(separator=";").replace("\n", "\r\n").encode())
    return out


def _times(folder: Path, table: pl.DataFrame) -> Path:
    _timed(table).write_csv(folder / "export.csv", datetime_format="%Y-%m-%d %H:%M:%S")
    return folder / "export.csv"


def _unlogged(folder: Path, table: pl.DataFrame) -> Path:
    table.drop("probability").write_csv(folder / "export.csv")
    return folder / "export.csv"


def _redeemed(folder: Path, table: pl.DataFrame) -> Path:
    empty = pl.when(pl.col("redeemed_amount") > 0).then("redeemed_amount")
    table.with_columns(redeemed_amount=empty).write_csv(folder / "export.csv")
    return folder / "export.csv"


def _waves(folder: Path, table: pl.DataFrame) -> Path:
    users = table["customer_id"].n_unique()
    both = [campaign(users, wave=wave).with_columns(wave=pl.lit(f"spring {wave + 1}")) for wave in range(2)]
    pl.concat(both).write_csv(folder / "export.csv")
    return folder / "export.csv"


def _wave_folders(folder: Path, table: pl.DataFrame) -> Path:
    users = table["customer_id"].n_unique()
    for wave in range(2):
        place = folder / "export" / f"week={wave + 1}"
        place.mkdir(parents=True)
        campaign(users, wave=wave).rename({"week": "mailing"}).write_parquet(place / "part-0.parquet")
    return folder / "export"


def _cities(folder: Path, table: pl.DataFrame) -> Path:
    # A handful of large ones and a long tail.
    place = (2_000 * (pl.col("customer_id").hash(1) % 9_973 / 9_973) ** 3).cast(pl.Int64)
    table.with_columns(city=pl.format("city {}", place)).write_parquet(folder / "export.parquet")
    return folder / "export.parquet"


def _dates(folder: Path, table: pl.DataFrame) -> Path:
    since = date(2024, 3, 4) - timedelta(days=1) * pl.col("tenure_days")
    table.with_columns(
        sent_on=date(2024, 3, 4) + timedelta(days=7) * pl.col("week"),
        registered_on=since,
        last_seen=(since + timedelta(days=2)).dt.to_string("%d.%m.%Y"),
    ).write_parquet(folder / "export.parquet")
    return folder / "export.parquet"


def _booleans(folder: Path, table: pl.DataFrame) -> Path:
    table.with_columns(pl.col("revenue") > 0).rename({"revenue": "bought"}).write_parquet(folder / "export.parquet")
    return folder / "export.parquet"


def _lists(folder: Path, table: pl.DataFrame) -> Path:
    basket = pl.concat_list(pl.col("segment"), pl.col("city"))
    table.with_columns(basket=basket, device=pl.struct("newsletter", "city")).write_parquet(folder / "export.parquet")
    return folder / "export.parquet"


def _workbook(folder: Path, table: pl.DataFrame) -> Path:
    _timed(table).write_excel(folder / "export.xlsx", worksheet="export")
    return folder / "export.xlsx"


EXPORTS: dict[str, Callable[[Path, pl.DataFrame], Path]] = {
    "german": _german_csv,
    "times": _times,
    "unlogged": _unlogged,
    "redeemed": _redeemed,
    "waves": _waves,
    "wave-folders": _wave_folders,
    "cities": _cities,
    "dates": _dates,
    "booleans": _booleans,
    "lists": _lists,
    "workbook": _workbook,
}
"""What people bring, by what is special about it."""


def exported(name: str, folder: Path, users: int = 3_000) -> Path:
    """Write one of the exports into a folder, and say where it is."""
    return EXPORTS[name](folder, campaign(users))
