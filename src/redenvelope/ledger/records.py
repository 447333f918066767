"""What a ledger is asked and what it answers. Amounts are integers of minor units (cents), times are milliseconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from redenvelope.errors import UsageError

THOUSANDTHS = 1_000
"""Expected amounts are counted in thousandths of a minor unit: most are far below one."""

COUNTED = ""
"""The measure of budgets that count actions: they are spent with the decision, whatever comes of it."""

LARGEST_AMOUNT = 2**53
"""Beyond, JSON's numbers would be rounded."""


class Status(StrEnum):
    """What became of a decision."""

    OPEN = "open"
    SETTLED = "settled"
    """An outcome came, and something was spent."""
    RELEASED = "released"
    """An outcome came, and nothing was spent."""
    EXPIRED = "expired"
    """No outcome came in time: the money was given back."""


class Refusal(StrEnum):
    """Why a command changed nothing."""

    NOTHING_LEFT = "nothing_left"
    """What is left does not pay for it."""
    REQUEST_DIFFERS = "request_differs"
    """The same request was made before, with other content."""
    STEP_TAKEN = "step_taken"
    """Another request has decided for this user at this step."""
    UNKNOWN_DECISION = "unknown_decision"
    OUTCOME_DIFFERS = "outcome_differs"
    """Another outcome of the decision is in the books."""
    ABOVE_CEILING = "above_ceiling"
    """More than the decision may ever cost."""
    BELOW_COMMITTED = "below_committed"
    """A total below what is spent and held already."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What a decision takes from a budget."""

    budget: str
    held: int
    """Put aside until the outcome is known."""
    ceiling: int
    """The most it can cost; above `held`, only if there is still money when the outcome comes."""
    expected_thousandths: int = 0
    """What the plan believes it will cost, in thousandths of a minor unit."""

    def __post_init__(self) -> None:
        if not 0 <= self.held <= self.ceiling < LARGEST_AMOUNT:
            raise UsageError(f"a charge of {self.held} with a ceiling of {self.ceiling} makes no sense")


@dataclass(frozen=True, slots=True)
class Choice:
    """What was drawn for a user from what can be paid."""

    action: str
    propensity: float
    probabilities: str
    """JSON, by label: of what it was drawn from."""
    charges: tuple[Charge, ...]
    is_number: bool = False
    """Whether the action is a number to whoever asks: it stays so in answers, whatever plan comes later."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Decide for a user, and hold the money that the decision may cost."""

    request: str
    """Whoever asks again with it gets the same answer, and nothing is held twice."""
    fingerprint: str
    """Of what was asked: the same request with other content is a mistake."""
    user: str
    step: int
    choose: Callable[[Mapping[str, int]], Choice | None]
    """Given what each budget can still pay for this user, draw; None where nothing can be paid."""
    prices: str
    """JSON: the price of each budget."""
    plan: str
    """Hash of the plan."""
    features: str
    """JSON, as they were sent."""
    at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Settle:
    """An outcome: what came of a decision and what it cost. Nothing spent gives the held money back."""

    decision: int
    reward: float
    amounts: Mapping[str, int]
    """By budget. One that is not named has the amount of a named one of its measure; else, if it counts actions, what
    was counted, and nothing if it does not."""
    at: int

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            raise UsageError("the reward of an outcome must be a finite number")
        if any(not 0 <= amount < LARGEST_AMOUNT for amount in self.amounts.values()):
            raise UsageError(f"the amounts of an outcome must be at least 0 and below {LARGEST_AMOUNT:,}")


@dataclass(frozen=True, slots=True)
class Expire:
    """Give back what is held for decisions whose time is over at `at`, oldest first."""

    at: int
    most: int = 1_000


@dataclass(frozen=True, slots=True)
class Fund:
    """Set the total of a budget, and the most that one user may cost it (None: no cap)."""

    budget: str
    total: int
    at: int
    user_cap: int | None = None
    measure: str | None = None
    """What of an outcome it is charged: budgets of one measure share its amount. None: the budget's own name."""
    minor_units: int = 100
    """In a unit of what it is counted in."""

    def __post_init__(self) -> None:
        if not 0 <= self.total < LARGEST_AMOUNT or (self.user_cap is not None and self.user_cap < 0):
            raise UsageError(f"a total of {self.total} and a cap of {self.user_cap} make no sense")
        if self.minor_units < 1:
            raise UsageError(f"there are at least 1 minor units in a unit, not {self.minor_units}")


@dataclass(frozen=True, slots=True)
class PriceNote:
    """Remember that the price changed, and why."""

    at: int
    content: str
    """JSON."""


Command = Hold | Settle | Expire | Fund | PriceNote


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision in the books."""

    decision: int
    request: str
    user: str
    step: int
    action: str
    propensity: float
    probabilities: str
    prices: str
    plan: str
    features: str
    status: Status
    decided_at: int
    expires_at: int
    reward: float | None
    closed_at: int | None
    charges: tuple[Charge, ...]
    spent: Mapping[str, int]
    """By budget, for budgets that it is charged to."""
    repeated: bool = False
    """The request had been answered before."""
    is_number: bool = False
    """Whether the action is a number to whoever asks."""


@dataclass(frozen=True, slots=True)
class Settled:
    """An outcome in the books."""

    decision: int
    status: Status
    reward: float
    spent: Mapping[str, int]
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was changed, and why."""

    refusal: Refusal
    message: str


@dataclass(frozen=True, slots=True)
class Done:
    """What needs no answer is in the books."""

    count: int = 0
    """Of decisions that expired."""


@dataclass(frozen=True, slots=True)
class Balance:
    """A budget now."""

    budget: str
    total: int
    held: int
    spent: int
    expected_thousandths: int
    """What the plan believes that open decisions will cost, in thousandths of a minor unit."""
    closed_thousandths: int
    """What it believed of those that are closed: beside what was spent, how far it is off."""
    user_cap: int | None
    measure: str = ""
    minor_units: int = 100

    @property
    def left(self) -> int:
        """Neither spent nor held."""
        return self.total - self.held - self.spent


@dataclass(frozen=True, slots=True)
class PastStep:
    """An earlier decision for a user."""

    step: int
    action: str
    status: Status
    reward: float | None
    spent: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tally:
    """Decisions for an action at a step."""

    step: int
    action: str
    decided: int
    settled: int
    released: int
    expired: int
    reward: float
    spent: int
    """From the first budget."""
