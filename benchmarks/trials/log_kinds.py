"""Small logs of every kind: a shop drawn here, campaigns that a version of the code simulates, and their peculiarities.

Nothing of the package is imported: the logs are the same whatever version of it is looked at.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

NEWER, OVERLAP = 500, 200
"""Users of the log that `evaluate` reads; so many of them were in the first one already."""
OUTCOMES = ("action", "propensity", "reward", "cost")
Simulate = Callable[[str, int, int, Path], None]
"""Writes the log of a campaign: its name, how many users, the seed, and where to."""
SHOP_BUDGETS = """
[[budget]]
name = "money"
per_user = 0.75
[[budget]]
name = "{name}"
{counted}
per_user = {limit}
"""
RULES = """
[[rule]]
actions = ["coupon"]
only_where = "age >= 25 and not (segment == 'new')"
[[rule]]
actions = ["coupon"]
at_most = 2
[[rule]]
actions = ["mail"]
at_most = 2
within = 3
[[rule]]
actions = ["coupon"]
cooldown = 1
"""


@dataclass(frozen=True)
class Kind:
    """A log, and what is asked of it; `source` is a campaign that the old version simulates, or the shop drawn here."""

    fit: str
    users: int = 1_200
    source: str = "shop"
    drawn: dict[str, Any] = field(default_factory=dict)
    change: str = ""
    """A peculiarity, see `_changed`."""
    form: str = "parquet"
    reading: str = ""
    """Options of audit, fit and evaluate."""
    again: str = "--budget 0.6"
    campaign: str = ""


def _shop(**options: Any) -> Kind:
    return Kind(**{"fit": "--budget 0.8"} | options)


_TWO_STEP = {"source": "two-step", "again": "--budget 2.5"}
_ENVELOPES = {"source": "envelopes", "users": 2_500, "again": "--budget 5 --for-all-prices"}
RENAMED = "user=customer,step=day,action=offer,propensity=chance,reward=active,cost=payout"
_MONEY = "--budget money=0.6"
KINDS: dict[str, Kind] = {
    "two-step": Kind("--budget 2.93", **_TWO_STEP),
    "two-step-target": Kind("--target-reward 3.8", **_TWO_STEP | {"again": "--target-reward 3.5"}),
    "two-step-total": Kind(
        "--budget-total 15000 --audience 5000 --currency EUR --value-per-reward 2",
        **_TWO_STEP | {"again": "--budget-total 14000 --audience 5000 --confidence 0.9"},
    ),
    "two-step-cold": Kind("--budget 2.93 --temperature 0 --explore 0", **_TWO_STEP),
    "two-step-planned": Kind("--budget 2.6 --method planned --horizon 2 --explore 0.05", **_TWO_STEP),
    "two-step-learned": Kind("--budget 2.93 --method learned", **_TWO_STEP),
    "envelopes": Kind("--budget 6", **_ENVELOPES),
    "envelopes-poor": Kind("--budget 3 --confidence 0.9 --horizon 2", **_ENVELOPES),
    "envelopes-rules": Kind("", 2_500, "envelopes-rules", again="--budget money=3"),
    "bandit": _shop(fit="--budget 0.8 --method bandit"),
    "one-step": _shop(fit="--budget 0.4", drawn={"steps": 1}, again="--budget 0.3"),
    "pushes": _shop(
        fit="", again=_MONEY, campaign=SHOP_BUDGETS.format(name="mails", counted='count = ["mail"]', limit=0.8)
    ),
    "first-step": _shop(
        fit="", again=_MONEY, campaign=SHOP_BUDGETS.format(name="first", counted="steps = [0]", limit=0.45)
    ),
    "newcomers": _shop(
        fit="",
        again=_MONEY,
        campaign=SHOP_BUDGETS.format(name="new", counted="where = \"segment == 'new'\"", limit=0.3),
    ),
    "rules": _shop(fit="--budget 0.7", drawn={"steps": 3}, campaign=RULES),
    "eligible": _shop(drawn={"narrow": True}),
    "leaving": _shop(drawn={"steps": 3, "leaving": True}),
    "habit": _shop(drawn={"steps": 4, "hidden": True}, users=1_800),
    "habit-no-history": _shop(fit="--budget 0.8 --history none", drawn={"steps": 4, "hidden": True}),
    "episodes": _shop(change="waves", reading="--episode wave"),
    "times": _shop(fit="--budget 0.8 --dates relative", change="times", reading="--time sent_at"),
    "number-labels": _shop(drawn={"labels": (0, 5, 10)}),
    "missing-features": _shop(change="gaps"),
    "estimated": _shop(change="unknown", reading="--estimate-propensity"),
    "german-csv": _shop(form="german"),
    "workbook": _shop(form="xlsx"),
    "renamed": _shop(change="renamed", reading=f"--columns {RENAMED} --ignore segment"),
    "missing-cost": _shop(change="unpaid", reading="--missing-cost 0"),
    "lake": _shop(form="lake"),
    "leak": _shop(change="leak"),
    "wrong-propensities": _shop(change="wrong"),
    "broken": _shop(change="broken"),
    "late-costs": _shop(change="late", drawn={"steps": 3}),
    "whales": _shop(drawn={"whales": True}),
    "too-poor": _shop(fit="--budget 0.001"),
    "pandas": _shop(form="pandas"),
}


def _draw(
    users: int, seed: int, steps: int = 2, labels: tuple[Any, ...] = ("none", "mail", "coupon"), **traits: bool
) -> pl.DataFrame:
    """A shop that sends nothing, a mail or a coupon: what is sent warms users, and what is warm buys and redeems."""
    generator = np.random.default_rng([seed, users])
    age, segment = generator.integers(18, 70, users), generator.integers(3, size=users)
    warm, sent, stays = generator.random(users), np.zeros(users), np.ones(users, bool)
    size = np.where(generator.random(users) < 0.002, 400.0, 1.0) if traits.get("whales") else np.ones(users)
    days = []
    for step in range(steps):
        chances = np.array([[0.3, 0.3, 0.4], [0.4, 0.3, 0.3], [0.3, 0.4, 0.3]])[segment]
        if traits.get("narrow"):  # newcomers get no coupon
            chances[segment == 0] = 0.5, 0.5, 0.0
        action = (generator.random(users)[:, None] > chances.cumsum(axis=1)).sum(axis=1).clip(max=2)
        ease = np.minimum(0.2 + 0.2 * sent, 0.9) if traits.get("hidden") else 0.3 + 0.5 * warm
        redeemed = generator.random(users) < ease
        lift = np.array([0.0, 0.25, 0.9])[action] * (0.3 + (redeemed if traits.get("hidden") else warm))
        day = {
            "user": np.arange(users),
            "step": np.full(users, step),
            "action": pl.Series(labels).gather(action),
            "propensity": chances[np.arange(users), action],
            "reward": np.round(0.3 + 0.5 * warm + lift + generator.normal(0, 0.2, users), 4),
            "cost": np.round(np.array([0.0, 0.2, 1.0])[action] * redeemed * size, 2),
            "age": age,
            "segment": pl.Series(["new", "usual", "loyal"]).gather(segment),
            "warmth": np.round(np.zeros(users) if traits.get("hidden") else warm, 3),
        }
        if traits.get("narrow"):
            every = [labels[:2], labels, labels]
            day["eligible"] = pl.Series([list(every[number]) for number in segment])
        days.append(pl.DataFrame(day).filter(stays))
        stays &= generator.random(users) < np.array([0.6, 0.85, 0.95])[action] if traits.get("leaving") else True
        warm = np.clip(0.6 * warm + np.array([0.1, 0.2, 0.35])[action] + generator.normal(0, 0.1, users), 0, 1)
        sent += action > 0
    return pl.concat(days).sort("user", "step").drop(["warmth"] if traits.get("hidden") else [])


def _changed(frame: pl.DataFrame, how: str) -> pl.DataFrame:
    """The table with a peculiarity; empty for none."""
    user, step, cost = pl.col("user"), pl.col("step"), pl.col("cost")
    changes: dict[str, dict[str, pl.Expr]] = {
        "waves": {"wave": user % 2, "user": user // 2},
        "times": {
            "sent_at": pl.lit(datetime(2024, 1, 1, 8)) + pl.duration(days=step * 3 + user % 5, minutes=user % 600),
            "joined": pl.lit(datetime(2023, 1, 1)) + pl.duration(days=user % 300),
        },
        "gaps": {
            "age": pl.when(user % 7 > 0).then("age"),
            "segment": pl.when(user % 5 > 0).then("segment"),
            "city": pl.format("city {}", user * user % 60),
        },
        "unpaid": {"cost": pl.when(cost != 0).then(cost)},
        "leak": {"tier": pl.format("tier {}", (pl.col("reward") * 4).floor().cast(pl.Int64))},
        "wrong": {"propensity": pl.when(pl.col("action") == "coupon").then(0.6).otherwise(0.2)},
        "broken": {
            "propensity": pl.when(user % 50 == 0).then(1.7).otherwise("propensity"),
            "reward": pl.when(user % 60 > 0).then("reward"),
        },
        "late": {"cost": cost.shift(1).over("user").fill_null(0.0)},
    }
    return frame.with_columns(**changes.get(how, {}))


def make_log(kind: Kind, folder: Path, simulate: Simulate) -> None:
    """Write a log, a newer one, users to decide for and their past; nothing where this kind's are there."""
    made = folder / "made"
    if made.exists() and made.read_text() == repr(kind):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = dict(pair.split("=") for pair in RENAMED.split(",")) if kind.change == "renamed" else {}
    for part, users, seed, first in (("newer", NEWER, 1, kind.users - OVERLAP), ("log", kind.users, 0, 0)):
        if kind.source == "shop":
            frame = _draw(users, seed, **kind.drawn)
        else:
            simulate(kind.source, users, seed, folder / "simulated.parquet")
            frame = pl.read_parquet(folder / "simulated.parquet")
        # Half of the users are decided for at the second step, and have a past.
        asked_at = (pl.col("user") // 2 % 2).cast(frame["step"].dtype)
        frame = frame.with_columns(pl.col("user") + first).with_columns(asked_at=asked_at)
        frame = _changed(frame, kind.change)
        rows = frame.drop("asked_at", *{"times": ["step"], "unknown": ["propensity"]}.get(kind.change, []))
        _write(rows.rename(names), folder / part, kind.form)
    once = frame.unique(["user", "step"], keep="first", maintain_order=True).rename(names)
    step, outcomes = names.get("step", "step"), [names.get(role, role) for role in OUTCOMES]
    now = once.filter(pl.col(step) == pl.col("asked_at")).drop("asked_at", *outcomes)
    _write(now, folder / "users", "lake" if kind.form == "lake" else "parquet")
    past = once.filter(pl.col(step) < pl.col("asked_at"))
    past.select(*now.columns[:2], *outcomes).drop(outcomes[1]).write_parquet(folder / "past.parquet")
    if kind.campaign:
        (folder / "campaign.toml").write_text(kind.campaign)
    made.write_text(repr(kind))


def _write(frame: pl.DataFrame, path: Path, form: str) -> None:
    """A table in the form that a log has."""
    if form == "german":
        floats = [pl.col(pl.Float64).round(4).cast(pl.String).str.replace(".", ",", literal=True)]
        frame.with_columns(floats).write_csv(f"{path}.csv", separator=";")
    elif form == "xlsx":
        frame.write_excel(f"{path}.xlsx")
    elif form == "lake":
        path.mkdir()
        for number in range(3):
            frame.filter(pl.col("user") // 7 % 3 == number).write_parquet(path / f"{number}.parquet")
    else:
        frame.write_parquet(f"{path}.parquet")
