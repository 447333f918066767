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
    *("decision", "step", "action", "propensity", "probabilities", "prices", "plan", "rules", "decided_at"),
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


def decision_digest(personal: str, lasting: Row, charges: Sequence[Row]) -> str:
    """The digest of a decision: of PERSONAL, and the columns LASTING and CHARGED, by rising name of the budget."""
    row = [repr(value) if type(value) is float else value for value in lasting]
    return sha256(_encode([personal, row, charges])).hexdigest()


def next_link(chain: str, event: Row, decision: str, entries: Sequence[Row]) -> str:
    """The chain after an event (number, at, kind, decision, reward, content) with its entries.

    `decision` is the digest of what was decided by it, or empty. Floats go in as text, which is the same everywhere.
    """
    number, at, kind, of, reward, content = event
    row = (number, at, kind, of, None if reward is None else repr(float(reward)), content)
    return sha256(_encode([chain or _BEGINNING, row, decision, entries])).hexdigest()


def seed_digest(seed: int) -> str:
    """The digest of the seed of all draws, which stays secret."""
    return sha256(str(seed).encode()).hexdigest()
