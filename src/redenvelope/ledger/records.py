"""The commands of a ledger and its answers. Amounts are integers in minor units (cents), times in milliseconds.

A decision holds what it may cost. Its outcome settles the hold, or releases it if nothing was spent; a hold without an
outcome in time expires. A command that cannot be executed is `Refused` and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from redenvelope.errors import UsageError

THOUSANDTHS = 1_000
"""Expected costs are stored in thousandths of a minor unit, because most are far below one."""

COUNTED = ""
"""The measure of budgets that count actions; a count is spent with the decision, whatever its outcome."""

LARGEST_AMOUNT = 2**53
"""Upper limit of amounts, because JSON readers would round larger numbers."""

LARGEST_SUM = 2**63 - 1
"""The largest sum of expected costs, which grow with every closed decision: the largest integer of the databases."""

MOST_MINOR_UNITS = 1_000_000
"""Minor units per unit of currency, limited so that amounts stay integers that JSON does not round."""

LARGEST_REWARD = 1e15
"""The largest absolute value of a reward, the same as in a log."""


_INTEGER = re.compile(r"(0|-?[1-9][0-9]*)(\.0+)?")


def canonical_user(user: int | str) -> str:
    """The canonical id of a user: 7, "7" and "7.0" are the same."""
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
    """No outcome was reported in time; the money is free again."""


class Refusal(StrEnum):
    """Why a command changed nothing."""

    NOTHING_LEFT = "nothing_left"
    """What is left in a budget does not cover the cost."""
    REQUEST_DIFFERS = "request_differs"
    """The same request was sent before with different content."""
    STEP_TAKEN = "step_taken"
    """Another request has decided this step of the user."""
    UNKNOWN_DECISION = "unknown_decision"
    OTHER_LEDGER = "other_ledger"
    """The decision id is from another ledger."""
    OTHER_DECISION = "other_decision"
    """The ledger has another decision of that number: it was restored from a back-up made before the id was given."""
    OUTCOME_DIFFERS = "outcome_differs"
    """The decision was settled with a different outcome."""
    NO_OUTCOME = "no_outcome"
    """There is no recorded outcome to correct."""
    ABOVE_CEILING = "above_ceiling"
    """The amount exceeds the most that the decision can cost."""
    BELOW_COMMITTED = "below_committed"
    """The total would be below what is already spent and held."""
    OTHER_CAMPAIGN = "other_campaign"
    """The ledger belongs to a campaign with other budgets, totals, caps or another mode."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What a decision may cost a budget."""

    budget: str
    held: int
    """The amount reserved until the outcome is known."""
    ceiling: int
    """The most it can cost; the part above `held` is paid only if it is left when the outcome is reported."""
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
    """The action drawn for a user from the actions that can be paid."""

    action: str
    propensity: float
    probabilities: str
    """JSON: the probabilities of the draw, by label."""
    charges: tuple[Charge, ...]
    is_number: bool = False
    """Whether the action is a number in JSON, so that repeated answers show it as one whatever plan is active then."""
    eligible: str = ""
    """JSON: the labels of the actions that could be drawn; empty: all."""


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
    """Draws an action, given what each budget can still pay for this user; None if no action can be paid."""
    prices: str
    """JSON: the price of each budget."""
    plan: str
    """Hash of the plan."""
    features: str
    """JSON, as sent by the caller."""
    at: int
    expires_at: int
    rules: str = ""
    """JSON: the rules that excluded an action."""
    state: str = ""
    """JSON: the state that the plan decided by, besides the features."""
    holdout: bool = False
    """Whether the user is in the control group."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Report the outcome of a decision; whatever is held and not spent is released."""

    decision: int
    reward: float
    amounts: Mapping[str, int]
    """By budget. A budget that is not named takes the amount of a named one with the same measure; otherwise its own
    count if it counts actions, else 0."""
    at: int
    public_id: str = ""
    """The id by which the caller knows the decision; if empty, only the number is compared."""

    def __post_init__(self) -> None:
        if not abs(self.reward) <= LARGEST_REWARD:
            raise UsageError(f"the reward of an outcome must be a number of at most {LARGEST_REWARD:g}, either way")
        if any(not 0 <= amount < LARGEST_AMOUNT for amount in self.amounts.values()):
            raise UsageError(f"the amounts of an outcome must be at least 0 and below {LARGEST_AMOUNT:,}")
        # SQLite stores -0.0 as 0.0, so the chain must not have it either.
        object.__setattr__(self, "reward", self.reward + 0.0)


@dataclass(frozen=True, slots=True)
class Correct(Settle):
    """Replace a wrong recorded outcome. A higher cost must be covered by what is left; a lower one frees money."""

    by: str = ""
    """The person who asks for it."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Expire:
    """Expire the holds that are due at `at`, oldest first."""

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
    """The part of an outcome it is charged; budgets with one measure share its amount. None: the budget's own name."""
    minor_units: int = 100
    """Minor units per unit of currency."""
    by: str = ""
    """The person who asks for it."""
    before: tuple[int, int | None] | None = None
    """The total and cap that the change starts from; an error if somebody has changed them in the meantime."""

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
    """Set the campaign, currency and mode of a ledger; None leaves a value unchanged."""

    at: int
    campaign: str | None = None
    currency: str | None = None
    mode: str | None = None
    """`strict` or `overbook`: which amount a decision holds."""
    by: str = ""
    """The person who asks for it."""


@dataclass(frozen=True, slots=True)
class PlanNote:
    """Record the description of a plan that decides from now on; the same description is recorded only once."""

    at: int
    content: str
    """JSON: plan, labels, features with their kinds, and the budgets and rules of its campaign."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a campaign in a new ledger, or check that the ledger belongs to this campaign."""

    identity: Identify
    funds: tuple[Fund, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Erase what identifies a user; amounts stay."""

    user: str
    at: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """Begin a new epoch after a restore: decisions made after the back-up are unknown here."""

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
    """By budget, for the budgets that it is charged to."""
    is_number: bool
    """Whether the action is a number in JSON."""
    public_id: str
    """The id for callers: the decision's number, the ledger's number and epoch, and a random part that makes the id
    unique, whichever copy the ledger is restored from."""
    repeated: bool = False
    """Whether the request had been answered before."""


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
    """A result without a record of its own."""

    count: int = 0
    """Holds that expired, or decisions of a user who was forgotten."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a decision; or a user was forgotten, or the ledger restored."""

    number: int
    """The number of the event; changes are read in this order."""
    at: int
    kind: str
    public_id: str
    """Empty if it concerns no decision, or several."""
    reward: float | None
    content: str
    """JSON. Of an outcome: its amounts and the status after it; of a correction also who and why; of a forgotten user:
    the ids of the decisions; of a restore: the new epoch."""
    decided: Decided | None
    """The decision, if it is new."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The current state of a budget."""

    budget: str
    total: int
    held: int
    spent: int
    expected_thousandths: int
    """The expected cost of open decisions under the plan, in thousandths of a minor unit."""
    closed_thousandths: int
    """The expected cost of closed decisions; compared with `spent`, it shows how far off the plan is."""
    user_cap: int | None
    measure: str = ""
    minor_units: int = 100

    @property
    def left(self) -> int:
        """What is neither spent nor held."""
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
    """Counts and sums over the decisions for one action at one step."""

    step: int
    action: str
    decided: int
    settled: int
    released: int
    expired: int
    reward: float
    spent: int
    """The amount charged to the first budget."""
