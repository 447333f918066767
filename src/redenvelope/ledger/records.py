"""The commands of a ledger and its answers. Amounts are integers of minor units (cents), times are milliseconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from redenvelope.errors import UsageError

THOUSANDTHS = 1_000
"""Expected amounts are in thousandths of a minor unit, because most are far below one."""

COUNTED = ""
"""The measure of budgets that count actions: these are spent with the decision, whatever its outcome."""

LARGEST_AMOUNT = 2**53
"""Larger numbers would be rounded in JSON."""

LARGEST_SUM = 2**63 - 1
"""Of expected amounts, which grow with every closed decision: a database counts no further."""

MOST_MINOR_UNITS = 1_000_000
"""Per unit of currency: amounts stay integers that JSON does not round."""

LARGEST_REWARD = 1e15
"""Either way: a log takes no larger one."""


_INTEGER = re.compile(r"(0|-?[1-9][0-9]*)(\.0+)?")


def canonical_user(user: int | str) -> str:
    """The id of a user in its one form: 7, "7" and "7.0" are the same."""
    text = str(user).strip()
    integer = _INTEGER.fullmatch(text)
    return text if integer is None else integer[1]


class Status(StrEnum):
    """The state of a decision and its hold."""

    OPEN = "open"
    SETTLED = "settled"
    """An outcome was reported, and something was spent."""
    RELEASED = "released"
    """An outcome was reported, and nothing was spent."""
    EXPIRED = "expired"
    """No outcome was reported in time: the money can be held again."""


class Refusal(StrEnum):
    """Why a command changed nothing."""

    NOTHING_LEFT = "nothing_left"
    """What is left in a budget does not pay for it."""
    REQUEST_DIFFERS = "request_differs"
    """The same request was sent before with different content."""
    STEP_TAKEN = "step_taken"
    """Another request has decided this step of the user."""
    UNKNOWN_DECISION = "unknown_decision"
    OTHER_LEDGER = "other_ledger"
    """The id of the decision was given by another ledger."""
    OTHER_DECISION = "other_decision"
    """The ledger has another decision of that number: it was restored from a back-up made before the id was given."""
    OUTCOME_DIFFERS = "outcome_differs"
    """The decision was settled with a different outcome."""
    NO_OUTCOME = "no_outcome"
    """There is no recorded outcome to correct."""
    ABOVE_CEILING = "above_ceiling"
    """More than the decision can cost."""
    BELOW_COMMITTED = "below_committed"
    """The total would be below what is already spent and held."""
    OTHER_CAMPAIGN = "other_campaign"
    """The ledger is of a campaign with other budgets, totals, caps or another mode."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What a decision may cost a budget."""

    budget: str
    held: int
    """Set aside until the outcome is known."""
    ceiling: int
    """The most it can cost; what exceeds `held` is paid only if it is left when the outcome is reported."""
    expected_thousandths: int = 0
    """The expected cost under the plan, in thousandths of a minor unit."""

    def __post_init__(self) -> None:
        if not 0 <= self.held <= self.ceiling < LARGEST_AMOUNT:
            raise UsageError(
                f"a charge must satisfy 0 <= held <= ceiling < {LARGEST_AMOUNT:,}, not {self.held} and {self.ceiling}"
            )
        if not 0 <= self.expected_thousandths <= THOUSANDTHS * LARGEST_AMOUNT:
            raise UsageError(f"{self.expected_thousandths} thousandths cannot be what a charge is expected to cost")


@dataclass(frozen=True, slots=True)
class Choice:
    """The action drawn for a user from those that can be paid."""

    action: str
    propensity: float
    probabilities: str
    """JSON: the probabilities it was drawn with, by label."""
    charges: tuple[Charge, ...]
    is_number: bool = False
    """Whether the action is a number in JSON: it stays one in repeated answers, whatever plan is active then."""
    eligible: str = ""
    """JSON: the labels of the actions that the draw could give; empty: all."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Decide for a user, and hold what the decision may cost."""

    request: str
    """A repeated request gets the same answer, and nothing is held twice."""
    fingerprint: str
    """A hash of the request's content: the same request with different content is refused."""
    user: str
    step: int
    choose: Callable[[Mapping[str, int]], Choice | None]
    """Draws an action, given what each budget can still pay for this user; None where no action can be paid."""
    prices: str
    """JSON: the price of each budget."""
    plan: str
    """Hash of the plan."""
    features: str
    """JSON, as they were sent."""
    at: int
    expires_at: int
    rules: str = ""
    """JSON: the rules that ruled an action out."""
    state: str = ""
    """JSON: what the plan decided by."""
    holdout: bool = False
    """Whether the user is in the control group."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Report the outcome of a decision. What is held and not spent is released."""

    decision: int
    reward: float
    amounts: Mapping[str, int]
    """By budget. A budget that is not named takes the amount of a named one with the same measure; otherwise what was
    counted where it counts actions, and 0 where it does not."""
    at: int
    public_id: str = ""
    """The id by which the caller knows the decision; empty: only the number is compared."""

    def __post_init__(self) -> None:
        if not abs(self.reward) <= LARGEST_REWARD:
            raise UsageError(f"the reward of an outcome must be a number of at most {LARGEST_REWARD:g}, either way")
        if any(not 0 <= amount < LARGEST_AMOUNT for amount in self.amounts.values()):
            raise UsageError(f"the amounts of an outcome must be at least 0 and below {LARGEST_AMOUNT:,}")


@dataclass(frozen=True, slots=True)
class Correct(Settle):
    """Replace a recorded outcome that was wrong. What it costs more has to be left; what it costs less is left anew."""

    by: str = ""
    """Who wants it."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Expire:
    """Expire the holds whose time is over at `at`, oldest first."""

    at: int
    most: int = 1_000


@dataclass(frozen=True, slots=True)
class Fund:
    """Set the total of a budget and the cap per user (None: no cap)."""

    budget: str
    total: int
    at: int
    user_cap: int | None = None
    measure: str | None = None
    """What part of an outcome it is charged: budgets with one measure share its amount. None: the budget's own name."""
    minor_units: int = 100
    """Minor units per unit."""
    by: str = ""
    """Who wants it."""
    before: tuple[int, int | None] | None = None
    """Total and cap that are to be changed: with others, somebody else has changed them meanwhile."""

    def __post_init__(self) -> None:
        if not (0 <= self.total < LARGEST_AMOUNT and 0 <= (self.user_cap or 0) < LARGEST_AMOUNT):
            raise UsageError(
                f"a total and a cap per user must be at least 0 and below {LARGEST_AMOUNT:,}, not {self.total} and "
                f"{self.user_cap}"
            )
        if not 1 <= self.minor_units <= MOST_MINOR_UNITS:
            raise UsageError(f"a unit of currency has 1 to {MOST_MINOR_UNITS:,} minor units, not {self.minor_units:,}")


@dataclass(frozen=True, slots=True)
class PriceNote:
    """Record a change of the price and its reason."""

    at: int
    content: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class Identify:
    """Say what the campaign of a ledger is; None leaves a part as it is."""

    at: int
    campaign: str | None = None
    currency: str | None = None
    mode: str | None = None
    """`strict` or `overbook`: what a decision holds."""
    by: str = ""
    """Who wants it."""


@dataclass(frozen=True, slots=True)
class PlanNote:
    """Record what a plan is that decides from now on; it is recorded once."""

    at: int
    content: str
    """JSON: plan, labels, features with their kinds, and the budgets and rules of its campaign."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a campaign in a new ledger, or find that the ledger is of the same one."""

    identity: Identify
    funds: tuple[Fund, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Erase what identifies a user, and keep all amounts."""

    user: str
    at: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """Begin a new epoch: what was decided after the back-up that was restored is not known here."""

    at: int
    by: str = ""


Command = Hold | Settle | Expire | Fund | PriceNote | PlanNote | Identify | Begin | Forget | NewEpoch


@dataclass(frozen=True, slots=True)
class Decided:
    """A recorded decision."""

    decision: int
    request: str
    fingerprint: str
    user: str
    step: int
    action: str
    propensity: float
    probabilities: str
    prices: str
    plan: str
    features: str
    eligible: str
    rules: str
    state: str
    holdout: bool
    decided_at: int
    expires_at: int
    status: Status
    reward: float | None
    closed_at: int | None
    charges: tuple[Charge, ...]
    spent: Mapping[str, int]
    """By budget, for the budgets it is charged to."""
    is_number: bool
    """Whether the action is a number in JSON."""
    public_id: str
    """The id for callers: its number, the number of the ledger and its epoch, and a random one that no other decision
    has, whichever copy the ledger is restored from."""
    repeated: bool = False
    """The request had been answered before."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A recorded outcome."""

    decision: int
    status: Status
    reward: float
    spent: Mapping[str, int]
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """A command that changed nothing, and why."""

    refusal: Refusal
    message: str


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command without a record of its own."""

    count: int = 0
    """Holds that expired, or decisions of a user that was forgotten."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to a decision; or a user was forgotten, or the ledger restored."""

    number: int
    """That of the event; changes are read in this order."""
    at: int
    kind: str
    public_id: str
    """Empty where it is of no decision, or of several."""
    reward: float | None
    content: str
    """JSON of an outcome: amounts and the status after it; of a correction also who and why; of a user who was
    forgotten: the ids of their decisions; of a restore: the new epoch."""
    decided: Decided | None
    """The decision, where it is new."""


@dataclass(frozen=True, slots=True)
class Balance:
    """A budget now."""

    budget: str
    total: int
    held: int
    spent: int
    expected_thousandths: int
    """The expected cost of open decisions under the plan, in thousandths of a minor unit."""
    closed_thousandths: int
    """The expected cost of closed decisions; what was spent on them shows how far off the plan is."""
    user_cap: int | None
    measure: str = ""
    minor_units: int = 100

    @property
    def left(self) -> int:
        """Neither spent nor held."""
        return self.total - self.held - self.spent


@dataclass(frozen=True, slots=True)
class PastStep:
    """An earlier decision of a user."""

    step: int
    action: str
    status: Status
    reward: float | None
    spent: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of the decisions for one action at one step."""

    step: int
    action: str
    decided: int
    settled: int
    released: int
    expired: int
    reward: float
    spent: int
    """From the first budget."""
