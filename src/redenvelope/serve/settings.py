"""How a campaign is served."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from redenvelope.errors import UsageError

Mode = Literal["strict", "overbook"]
"""`strict` holds what an offer can cost at most; `overbook` what it is expected to cost, with a margin."""


LONGEST_HOLD_HOURS = 10 * 365 * 24
"""Nobody keeps an offer for longer, and dates end with the year 9999."""


@dataclass(frozen=True)
class Limits:
    """What a caller may ask of the service."""

    body_bytes: int = 64 * 1024
    batch_bytes: int = 4 * 1024 * 1024
    batch_rows: int = 1_000
    body_seconds: float = 10.0
    """To send a request's headers, and again its body."""
    answer_seconds: float = 20.0
    requests_a_second: float = 5_000.0
    """Of one caller, on average."""
    burst: int = 10_000
    """That a caller may make at once."""
    waiting: int = 20_000
    """Decisions that wait for an answer, of all callers."""


@dataclass(frozen=True)
class PacingSettings:
    """How the price follows the money."""

    every: int | None = None
    """Decisions between two solutions; None: a five-hundredth of the campaign."""
    dead_band: float = 0.02
    """A change of the target by less than this share is not worth a new price."""
    largest_step: float = 0.1
    """The target moves by at most this share at once."""
    prior_share: float = 0.02
    """The plan's own belief of what decisions cost counts like this share of the campaign."""
    memory_share: float = 0.1
    """What was seen longer ago than this share of the campaign counts little: the world drifts."""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise UsageError(f"the price is solved again after at least 1 decision, not {self.every}")
        if not (0 <= self.dead_band < 1 and 0 < self.largest_step <= 1):
            raise UsageError("the dead band must be in [0, 1) and the largest step in (0, 1]")


@dataclass(frozen=True)
class ServeSettings:
    """How a campaign is served."""

    mode: Mode = "strict"
    hold_milliseconds: int = 7 * 24 * 3_600 * 1_000
    """How long an offer stands."""
    minor_units: int = 100
    """In a unit of the currency."""
    overbook_margin: float = 0.25
    """Held above what is expected, in `overbook`."""
    audience: int | None = None
    """Users that the budget is for; without, the price stays as it is."""
    batch: int = 256
    """Decisions that are planned together at most."""
    log_features: bool = False
    """Write features to the program's own log: off, for they are people's data."""
    limits: Limits = field(default_factory=Limits)
    pacing: PacingSettings | None = field(default_factory=PacingSettings)
    """None: the price stays as it is."""

    def __post_init__(self) -> None:
        if self.mode not in ("strict", "overbook"):
            raise UsageError(f"the mode is strict or overbook, not {self.mode!r}")
        if self.hold_milliseconds < 1 or self.minor_units < 1 or self.overbook_margin < 0 or self.batch < 1:
            raise UsageError("times, minor units and batches must be at least 1, the margin at least 0")
        if self.hold_milliseconds > LONGEST_HOLD_HOURS * 3_600_000:
            raise UsageError(f"an offer stands for at most {LONGEST_HOLD_HOURS:,} hours; give a shorter hold")
        if self.audience is not None and self.audience < 1:
            raise UsageError(f"the audience must be at least 1, not {self.audience}")
