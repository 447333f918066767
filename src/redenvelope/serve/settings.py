"""Settings of the service: holds, pacing, and the limits on what callers may send."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from redenvelope.errors import UsageError
from redenvelope.ledger.records import MOST_MINOR_UNITS

Mode = Literal["strict", "overbook"]
"""`strict` holds the most that an offer can cost; `overbook` holds its expected cost with a margin."""

WrongFeatures = Literal["refuse", "count"]
"""What happens to a request with features that the plan does not know, lacks, or cannot read: `refuse` it, or decide
without them and `count`."""

LONGEST_HOLD_HOURS = 10 * 365 * 24
"""Ten years. Dates end with the year 9999."""
MOST_USERS = 10**12


@dataclass(frozen=True)
class Limits:
    """Limits on what callers may send."""

    head_bytes: int = 16 * 1024
    """Of the address and all headers of a request."""
    headers: int = 100
    connections: int = 2_000
    """Open at once, of all callers."""
    pipelined: int = 8
    """Requests that a connection may send ahead of an answer."""
    body_bytes: int = 64 * 1024
    batch_bytes: int = 4 * 1024 * 1024
    body_seconds: float = 10.0
    """For the headers of a request, and again for its body."""
    bodies_bytes: int = 8 * 1024 * 1024
    """Of all requests in progress."""
    unsent_bytes: int = 16 * 1024 * 1024
    """Of all answers that clients have not yet read."""
    write_seconds: float = 30.0
    """Until a client has read its answer."""
    answer_seconds: float = 20.0
    requests_per_second: float = 5_000.0
    """Per caller, on average."""
    burst: int = 10_000
    """Requests that a caller may send at once."""
    failed_login_seconds: float = 2.0
    """The longest that an answer to a failed login is delayed."""
    waiting: int = 20_000
    """Pending decisions of all callers."""


@dataclass(frozen=True)
class PacingSettings:
    """How often and how fast pacing changes the prices."""

    every: int | None = None
    """Decisions between two changes of the prices; None: 1/500 of the campaign."""
    dead_band: float = 0.02
    """The prices stay if the target would change by less than this share."""
    largest_step: float = 0.1
    """The target changes by at most this share at a time."""
    prior_share: float = 0.02
    """The weight of the prior that users cost what the plan expects, as a share of the total."""
    memory_share: float = 0.1
    """Older costs decay over this share of the total, because costs drift."""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise UsageError(f"pacing needs at least 1 decision between two changes of the prices, not {self.every}")
        if not (0 <= self.dead_band < 1 and 0 < self.largest_step <= 1):
            raise UsageError("the dead band must be in [0, 1) and the largest step in (0, 1]")


@dataclass(frozen=True)
class ServeSettings:
    """All settings of a service."""

    mode: Mode = "strict"
    hold_milliseconds: int = 7 * 24 * 3_600 * 1_000
    """Time until a hold expires."""
    minor_units: int = 100
    """Per unit of currency."""
    overbook_margin: float = 0.25
    """What `overbook` holds above the expected cost, as a share of it."""
    audience: int | None = None
    """The number of users that the budget is for; without it, there is no pacing."""
    batch: int = 256
    """The most decisions that are planned together."""
    wrong_features: WrongFeatures = "refuse"
    """Refused by default: a user decided for with wrong features gets what is meant for somebody else, and the next log
    records it as meant for them. A refusal shows with the first request, a count only to those who look."""
    verify_seconds: float = 3_600.0
    """Between two verifications of the ledger while it is served."""
    limits: Limits = field(default_factory=Limits)
    pacing: PacingSettings | None = field(default_factory=PacingSettings)
    """None: no pacing."""

    def __post_init__(self) -> None:
        if self.mode not in ("strict", "overbook"):
            raise UsageError(f"the mode must be strict or overbook, not {self.mode!r}")
        if self.wrong_features not in ("refuse", "count"):
            raise UsageError(f"wrong features are refused (refuse) or counted (count), not {self.wrong_features!r}")
        if self.hold_milliseconds < 1 or self.minor_units < 1 or self.overbook_margin < 0 or self.batch < 1:
            raise UsageError("hold time, minor units and batch must be at least 1, and the margin at least 0")
        if self.minor_units > MOST_MINOR_UNITS:
            raise UsageError(f"a unit of currency has at most {MOST_MINOR_UNITS:,} minor units; give fewer")
        if self.hold_milliseconds > LONGEST_HOLD_HOURS * 3_600_000:
            raise UsageError(f"a hold lasts at most {LONGEST_HOLD_HOURS:,} hours; give a shorter time")
        if self.audience is not None and self.audience < 1:
            raise UsageError(f"the audience must be at least 1, not {self.audience}")
        if self.audience is not None and self.audience > MOST_USERS:
            raise UsageError(f"the audience is at most {MOST_USERS:,} users; give the number of users of the campaign")
        if not 0 < self.verify_seconds <= LONGEST_HOLD_HOURS * 3_600:
            raise UsageError("the ledger is verified after more than 0 seconds and at most ten years")
