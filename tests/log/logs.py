"""Logs of every kind for tests that must hold for all of them: odd types, copies, gaps, text that means numbers."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import polars as pl
from hypothesis import strategies as st

FEATURES = {
    "age": lambda chance, user, rows: pl.Series(chance.integers(18, 70, user.max() + 1)[user]),
    "visits": lambda chance, user, rows: pl.Series(chance.poisson(2, rows)),
    "score": lambda chance, user, rows: pl.Series(_holes(chance, chance.normal(1e3, 1, rows))).fill_nan(None),
    "opened": lambda chance, user, rows: pl.Series(chance.random(rows) < 0.4),
    "city": lambda chance, user, rows: pl.Series(chance.choice(["Rome", "Oslo", None], user.max() + 1)[user].tolist()),
    "mood": lambda chance, user, rows: pl.Series(chance.choice(["good", "bad", "so-so"], rows)),
    "price": lambda chance, user, rows: pl.Series(chance.choice(["1", "1.0", "2.50", "NA", "3e2"], rows)),
    "zone": lambda chance, user, rows: pl.Series(chance.choice(["007", "12", "13"], rows)),
    "percent": lambda chance, user, rows: pl.Series(chance.choice(["5%", "7%", "x"], rows)),
    "mixed": lambda chance, user, rows: pl.Series(
        chance.choice(["1", "2", "3", "young"], rows, p=[0.4, 0.3, 0.2, 0.1])
    ),
    "ticket": lambda chance, user, rows: pl.Series(chance.permutation(rows) + 1_000),
    "email": lambda chance, user, rows: pl.Series([f"u{number}@x.org" for number in user]),
    "note": lambda chance, user, rows: pl.Series([f"n{number}" for number in chance.permutation(rows)]),
    "written": lambda chance, user, rows: pl.Series(chance.permutation(rows).astype(str)),
    "constant": lambda chance, user, rows: pl.Series(["same"] * rows),
    "empty": lambda chance, user, rows: pl.Series([None] * rows, dtype=pl.Float64),
    "sparse": lambda chance, user, rows: pl.Series(np.where(chance.random(rows) < 0.6, np.nan, 7.0)).fill_nan(None),
    "since": lambda chance, user, rows: pl.Series([date(2024, 1, 1) + timedelta(int(day)) for day in user % 30]),
    # What only a few rows say, and so only one of many parts.
    "moved": lambda chance, user, rows: pl.Series(np.where(np.arange(rows) == rows // 3, "b", "a")),
    "late": lambda chance, user, rows: pl.Series(np.where(np.arange(rows) == rows // 3, -1.0, user % 5)),
    "stray": lambda chance, user, rows: pl.Series(np.where(np.arange(rows) == rows // 2, "word", user % 4)),
    "code": lambda chance, user, rows: pl.Series(np.where(np.arange(rows) == rows // 2, "05", user % 4)),
    "half": lambda chance, user, rows: pl.Series(np.where(np.arange(rows) == 0, "0.5", np.arange(rows))),
    "pairs": lambda chance, user, rows: pl.Series(np.append(chance.permutation(rows - 1), 0)),
    "huge": lambda chance, user, rows: pl.Series(np.where(np.arange(rows) == rows // 2, 1e300, 1.0)),
}
"""Name -> values from a generator, the user of each row, and the number of rows."""

USERS = {
    "integers": lambda user: pl.Series(user * 7 - 3),
    "text of integers": lambda user: pl.Series([str(number * 7) for number in user]),
    "text": lambda user: pl.Series([f"customer {number}" for number in user]),
    "one of text": lambda user: pl.Series(["guest" if number == 0 else str(number) for number in user]),
    "decimals": lambda user: pl.Series(user.astype(float)),
}

ACTIONS = {
    "integers": pl.Series([0, 2, 10]),
    "text": pl.Series(["none", "card", "gift"]),
    "text of numbers": pl.Series(["0", "5", "5.0"]),
    "decimals": pl.Series([0.0, 2.5, 10.0]),
}


def _holes(chance: np.random.Generator, values: np.ndarray) -> np.ndarray:
    return np.where(chance.random(len(values)) < 0.1, np.nan, values)


@st.composite
def frames(draw: st.DrawFn, least_users: int = 1, faults: bool = True) -> pl.DataFrame:
    """A log of up to 130 users with one to four steps each, and any of the features above."""
    chance = np.random.default_rng(draw(st.integers(0, 10**6)))
    users = draw(st.sampled_from([number for number in (1, 3, 40, 130) if number >= least_users]))
    lengths = chance.integers(1, 5, users)
    user = np.repeat(np.arange(users), lengths)
    step = np.concatenate([np.arange(length) + (number > 0) for number, length in enumerate(lengths)])
    rows = len(user)
    action = chance.integers(3, size=rows)
    propensities = [np.full(rows, 1 / 3), chance.choice([0.2, 0.3, 0.0005], rows), chance.uniform(0.1, 1, rows)]
    columns = {
        "user": USERS[draw(st.sampled_from(sorted(USERS)))](user),
        "step": pl.Series(step),
        "action": ACTIONS[draw(st.sampled_from(sorted(ACTIONS)))].gather(action),
        "propensity": pl.Series(draw(st.sampled_from(propensities))),
        "reward": pl.Series((chance.random(rows) < 0.3).astype(float)),
        # Tenths: sums of them depend on their order, and some actions cost the same on average.
        "cost": pl.Series(draw(st.sampled_from([0.1 * (action % 2), chance.choice([0.1, 0.2, 0.3], rows)]))),
    }
    usable = sorted(set(FEATURES) - (set() if faults else {"mixed", "stray", "huge"}))
    for name in draw(st.lists(st.sampled_from(usable), max_size=6, unique=True)):
        columns[name] = FEATURES[name](chance, user, rows)
    frame = pl.DataFrame(columns)
    if faults and draw(st.booleans()):
        frame = frame.filter(pl.Series(chance.random(rows) < 0.9)) if rows > 20 else frame
    if draw(st.booleans()):
        frame = pl.concat([frame, frame[: draw(st.integers(1, 3))]])
    if faults and draw(st.integers(0, 3)) == 0:
        frame = pl.concat([frame, frame[:2].with_columns(reward=pl.lit(9.0))])
    if draw(st.booleans()):
        frame = frame.sample(fraction=1, shuffle=True, seed=draw(st.integers(0, 99)))
    return frame
