"""What goes over the wire: strict requests in, plain answers out, one shape for every error."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

__all__ = [
    "ApiError",
    "DecisionAnswer",
    "DecisionBatch",
    "DecisionRequest",
    "HoldAnswer",
    "OutcomeAnswer",
    "OutcomeBatch",
    "OutcomeRequest",
    "PlanRequest",
    "decoded",
]

Id = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Label = Annotated[str, Meta(max_length=1_000)]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Feature = bool | Integer | Number | Label | None
Amount = Annotated[int, Meta(ge=0, lt=2**53)]
MOST_FEATURES = 2_000
MOST_ROWS = 1_000


class ApiError(Exception):
    """A refusal: a stable code, what is wrong, and what to do."""

    def __init__(self, status: int, code: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.remedy = status, code, message, remedy

    def content(self) -> dict[str, str]:
        """As it is sent."""
        return {"code": self.code, "message": self.message, "remedy": self.remedy}


class DecisionRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Decide for a user."""

    request_id: Id
    """Of the caller's choice: asking again with it gives the same answer."""
    user: Integer | Id
    features: Annotated[dict[Annotated[str, Meta(min_length=1, max_length=500)], Feature], Meta(max_length=2_000)]
    step: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    """Without it, the step after the user's last."""
    eligible: (
        Annotated[list[Annotated[str, Meta(max_length=1_000)] | Integer | Number], Meta(max_length=10_000)] | None
    ) = None
    """Labels of the actions that the user may get; without it, all."""


class DecisionBatch(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Decide for several users."""

    decisions: Annotated[list[DecisionRequest], Meta(min_length=1, max_length=1_000)]


class OutcomeRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What came of a decision, and what it cost in minor units."""

    decision_id: Id
    reward: Number
    amount: Amount | dict[Id, Amount] = 0
    """Of the only budget, or by budget."""


class OutcomeBatch(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Several outcomes."""

    outcomes: Annotated[list[OutcomeRequest], Meta(min_length=1, max_length=1_000)]


class PlanRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Take another plan."""

    plan: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$")] | None = None
    """Name of a folder beside that of the present plan; without it, the present folder is read again."""


class HoldAnswer(msgspec.Struct, frozen=True):
    """What is held for a decision, in minor units, and until when."""

    amount: int
    amounts: dict[str, int]
    """By budget."""
    expires_at: str


class DecisionAnswer(msgspec.Struct, frozen=True):
    """What a user gets."""

    decision_id: str
    request_id: str
    user: str
    step: int
    action: str | int | float
    propensity: float
    hold: HoldAnswer
    prices: list[float | None]
    """Of each budget, that the decision was made at; null is infinity."""
    plan: str


class OutcomeAnswer(msgspec.Struct, frozen=True):
    """What is in the books for a decision."""

    decision_id: str
    status: str
    reward: float
    amount: int
    amounts: dict[str, int]


def decoded(content: bytes, kind: Any) -> Any:
    """A request's body as its type; whatever does not fit is refused in words."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise ApiError(422, "invalid_request", str(error), "see /openapi.json for what a request looks like") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is no JSON ({error})", "send a JSON object") from None
