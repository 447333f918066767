"""Who may ask what: tokens with roles, kept as hashes only."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from redenvelope.errors import UsageError
from redenvelope.files import read_regular

__all__ = ["ROLES", "Caller", "Tokens", "new_token"]

ROLES = {
    "decide": "ask for decisions",
    "settle": "report outcomes",
    "read": "look at the campaign, its log and its metrics",
    "admin": "all of that, and take another plan",
}
"""What a token may be for."""

_LARGEST_BYTES = 2**20
_LINE = re.compile(r"(?P<name>\S{1,100})\s+(?P<roles>[a-z,]+)\s+(?P<hash>[0-9a-f]{64})")


@dataclass(frozen=True)
class Caller:
    """Somebody who was recognised."""

    name: str
    roles: frozenset[str]

    def may(self, role: str) -> bool:
        """Whether the caller has a role."""
        return role in self.roles or "admin" in self.roles


@dataclass(frozen=True)
class Tokens:
    """The tokens of a file: a name, its roles, and the SHA-256 of the secret, a line each.

    The secrets are 256 random bits, which no dictionary holds: a plain hash is as good as a slow one.
    """

    callers: tuple[tuple[bytes, Caller], ...]

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Of a file; # begins a comment."""
        try:
            text = read_regular(path, _LARGEST_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: cannot be read as tokens ({error}); redenvelope token makes them") from None
        callers = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            found = _LINE.fullmatch(line.strip())
            if found is None:
                raise UsageError(
                    f"{path}, line {number}: is no token (name, roles, SHA-256); redenvelope token makes one"
                )
            roles = _checked(found["roles"].split(","))
            callers.append((found["hash"].encode(), Caller(found["name"], roles)))
        if not callers:
            raise UsageError(f"{path}: holds no token; redenvelope token makes one")
        return cls(tuple(callers))

    def caller(self, header: str | None) -> Caller | None:
        """Whose token an Authorization header holds; as long as it takes for any other."""
        scheme, _, secret = (header or "").partition(" ")
        hashed = hashlib.sha256(secret.strip().encode("utf-8", "surrogatepass")).hexdigest().encode()
        found = None
        for known, caller in self.callers:
            if hmac.compare_digest(known, hashed):
                found = caller
        return found if scheme.lower() == "bearer" else None


def new_token(name: str, roles: Iterable[str]) -> tuple[str, str]:
    """A secret for a caller, and the line to keep of it."""
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,100}", name):
        raise UsageError(f"{name!r} is no name of a token; use letters, digits and . _ @ -")
    checked = _checked(roles)
    secret = secrets.token_urlsafe(32)
    hashed = hashlib.sha256(secret.encode()).hexdigest()
    return secret, f"{name} {','.join(sorted(checked))} {hashed}"


def _checked(roles: Iterable[str]) -> frozenset[str]:
    found = frozenset(role.strip() for role in roles if role.strip())
    unknown = found - set(ROLES)
    if unknown or not found:
        raise UsageError(f"{', '.join(sorted(unknown)) or 'nothing'} is no role; there are {', '.join(ROLES)}")
    return found
