"""The hash chain through all events of a ledger: a row that is changed, added or removed later breaks it.

Columns that identify a user enter the chain through a salted digest. When the user is forgotten, the digest is stored
in place of the salt: the chain stays valid, and nobody can recover the columns by trying values.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

PERSONAL = ("request", "fingerprint", "user_id", "features", "eligible", "state")
"""Columns of a decision that identify a user, or may do so."""
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
    """The salted digest of the columns PERSONAL."""
    return sha256(_encode([salt, personal])).hexdigest()


def forgotten(name: str, decision: int) -> tuple[str, ...]:
    """The columns PERSONAL of a decision after its user was forgotten; `name` replaces the user's id."""
    return f"{name}-{decision}", "", name, "{}", "", ""


def next_link(chain: str, event: Row, digest: str = "", lasting: Row = (), charges: Sequence[Row] = ()) -> str:
    """The hash after an event, from its number, time, kind, decision, reward, content and entries.

    The event of a decision also includes the digest of PERSONAL, the columns LASTING, and the columns CHARGED in order
    of the budgets' names. Floats are hashed as text, which is the same on every machine.
    """
    number, at, kind, decision, reward, *rest = event
    row: list[Any] = [chain or _BEGINNING, number, at, kind, decision, None if reward is None else repr(reward), *rest]
    if lasting:
        row += [repr(lasting[1]), lasting[0], *lasting[2:], digest, charges]
    return sha256(_encode(row)).hexdigest()


def seed_digest(seed: int) -> str:
    """The digest of the seed of all draws; the seed itself stays secret."""
    return sha256(str(seed).encode()).hexdigest()
