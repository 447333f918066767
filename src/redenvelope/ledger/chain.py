"""The chain of hashes through all events of a ledger: a row that is changed, added or removed later breaks it.

What identifies a user goes into the chain through a digest with a salt. When the user is forgotten, the digest takes
the place of the salt, so that the chain stays whole and nobody can find out by trying.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

PERSONAL = ("request", "fingerprint", "user_id", "features", "eligible", "state")
"""Columns of a decision that identify a user, or may."""
LASTING = (
    *("decision", "propensity", "step", "action", "probabilities", "prices", "plan", "rules", "decided_at"),
    *("expires_at", "public_id", "is_number", "holdout"),
)
"""Columns of a decision that never change."""
CHARGED = ("budget", "held", "ceiling", "expected_thousandths")
"""Columns of a charge that never change."""

Row = Sequence[Any]
_BEGINNING = "0" * 64
_encode = msgspec.json.Encoder().encode


def personal_digest(salt: str, personal: Row) -> str:
    """The digest of the columns PERSONAL."""
    return sha256(_encode([salt, personal])).hexdigest()


def forgotten(name: str, decision: int) -> tuple[str, ...]:
    """The columns PERSONAL of a decision whose user is forgotten, and called `name` from then on."""
    return f"{name}-{decision}", "", name, "{}", "", ""


def next_link(chain: str, event: Row, digest: str = "", lasting: Row = (), charges: Sequence[Row] = ()) -> str:
    """The chain after an event: its number, time, kind, decision, reward, content and entries.

    Where it decided something, this goes in too: the digest of PERSONAL, the columns LASTING and CHARGED, by rising
    name of the budget. Floats go in as text, which is the same everywhere.
    """
    number, at, kind, decision, reward, *rest = event
    row: list[Any] = [chain or _BEGINNING, number, at, kind, decision, None if reward is None else repr(reward), *rest]
    if lasting:
        row += [repr(lasting[1]), lasting[0], *lasting[2:], digest, charges]
    return sha256(_encode(row)).hexdigest()


def seed_digest(seed: int) -> str:
    """The digest of the seed of all draws, which stays secret."""
    return sha256(str(seed).encode()).hexdigest()
