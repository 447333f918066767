"""What goes over the wire: strict requests in, plain answers out, one shape for every error."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from redenvelope.errors import ModelError
from redenvelope.ledger.records import Decided, PastStep, Refusal, Refused, Settled, Status
from redenvelope.serve.active_plan import DecisionQuery, PlanInUse
from redenvelope.serve.funds import FundedBudget

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


# From a request to a question for the plan, and from the books to an answer.


_WHOLE = re.compile(r"(0|-?[1-9][0-9]*)(\.0+)?")
_DECISION = re.compile(r"d([1-9][0-9]{0,17})")
_RESERVED = ("user", "step", "action", "propensity", "reward", "cost", "price", "plan")
_STATUS = {
    Refusal.NOTHING_LEFT: (409, "wait for holds to expire, or raise the budget"),
    Refusal.REQUEST_DIFFERS: (409, "use another request_id for another request"),
    Refusal.STEP_TAKEN: (409, "leave out the step, or ask for the user's next one"),
    Refusal.UNKNOWN_DECISION: (404, "use the decision_id of an answer to /v1/decisions"),
    Refusal.OUTCOME_DIFFERS: (409, "an outcome is reported once; look at /v1/log for what is in the books"),
    Refusal.ABOVE_CEILING: (409, "report at most what the offer could cost, in minor units"),
    Refusal.BELOW_COMMITTED: (409, "give a larger total"),
}


def user_id(user: int | str) -> str:
    """The one form of an id: 7, "7" and "7.0" are the same user."""
    if isinstance(user, int):
        return str(user)
    text = user.strip()
    whole = _WHOLE.fullmatch(text)
    if not text:
        raise ApiError(422, "invalid_request", "the user is empty", "send the user's id")
    return text if whole is None else whole[1]


def fingerprint(request: DecisionRequest, user: str) -> str:
    """Of all that was asked, but the request's own name; `user` is the one form of the id."""
    content = msgspec.json.encode([user, request.step, request.features, request.eligible], order="deterministic")
    return hashlib.sha256(content).hexdigest()


def decision_query(
    plan: PlanInUse, request: DecisionRequest, user: str, past: Sequence[PastStep], kept: Sequence[FundedBudget]
) -> DecisionQuery:
    """A question for the plan; what cannot be asked is refused."""
    reserved = next((name for name in _RESERVED if name in request.features), None)
    if reserved is not None:
        raise ApiError(422, "invalid_request", f"{reserved!r} is no name for a feature", "leave it out, or rename it")
    last = plan.first_step + plan.steps - 1
    step = request.step if request.step is not None else (past[-1].step + 1 if past else plan.first_step)
    if step > last or step < plan.first_step:
        said = f"step {step} is not a step of the campaign ({plan.first_step} to {last})"
        if request.step is None:
            raise ApiError(
                409, "campaign_over", f"the user has had all decisions: {said}", "nothing to do for this user"
            )
        raise ApiError(422, "invalid_request", said, "leave out the step, or give one of the campaign's")
    rows: list[dict[str, Any]] = []
    if plan.needs_history:
        # Caps count what was given; only states that tell what came of it have to wait for that.
        known = plan.plan.policy.encoder.history is None
        rows = [_past_row(one, step, kept, known) for one in past if one.step < step]
    return DecisionQuery(user, step, request.features, rows, _mask(plan, request))


def _past_row(one: PastStep, step: int, kept: Sequence[FundedBudget], known: bool) -> dict[str, Any]:
    if one.status is Status.OPEN and not known:
        raise ApiError(
            409,
            "outcome_pending",
            f"the plan decides step {step} by what came of step {one.step}, which is not known yet",
            "report its outcome, or wait until its hold expires",
        )
    # Budgets of some rows only may share the log's cost: whichever was charged has it.
    cost = max((one.spent.get(each.name, 0) / each.minor_units for each in kept if each.measure == "cost"), default=0.0)
    return {"step": one.step, "action": one.action, "reward": one.reward or 0.0, "cost": cost}


def _mask(plan: PlanInUse, request: DecisionRequest) -> Any:
    if request.eligible is None:
        return None
    known = {_key(label, plan): place for place, label in enumerate(plan.labels)}
    mask = np.zeros(len(plan.labels), dtype=bool)
    for label in request.eligible:
        place = known.get(_key(label, plan))
        if place is None:
            said = f"{str(label)[:60]!r} is no action of the plan"
            raise ApiError(422, "invalid_request", said, f"the actions are {', '.join(plan.labels)}")
        mask[place] = True
    if not mask.any():
        raise ApiError(422, "invalid_request", "no action is eligible", "name at least one, or leave eligible out")
    return mask


def _key(label: Any, plan: PlanInUse) -> Any:
    if not plan.plan.catalogue.numeric:
        return str(label)
    try:
        return float(label)
    except (ValueError, OverflowError):
        return label


def decision_answer(record: Decided) -> DecisionAnswer:
    """What is sent of a decision in the books."""
    amounts = {charge.budget: charge.held for charge in record.charges}
    expires = datetime.fromtimestamp(record.expires_at / 1_000, UTC).isoformat(timespec="milliseconds")
    return DecisionAnswer(
        decision_id=f"d{record.decision}",
        request_id=record.request,
        user=record.user,
        step=record.step,
        action=_written(record.action) if record.is_number else record.action,
        propensity=record.propensity,
        hold=HoldAnswer(sum(amounts.values()), amounts, expires.replace("+00:00", "Z")),
        prices=msgspec.json.decode(record.prices),
        plan=record.plan,
    )


def outcome_answer(settled: Settled) -> OutcomeAnswer:
    """What is sent of an outcome in the books."""
    amounts = dict(settled.spent)
    return OutcomeAnswer(f"d{settled.decision}", settled.status.value, settled.reward, sum(amounts.values()), amounts)


def refused_answer(refused: Refused) -> ApiError:
    """What is sent of a refusal of the ledger's."""
    status, remedy = _STATUS[refused.refusal]
    return ApiError(status, refused.refusal.value, refused.message, remedy)


def decision_number(decision_id: str) -> int:
    """The number of a decision; a name that no decision has is an unknown one."""
    found = _DECISION.fullmatch(decision_id)
    if found is None:
        said = f"there is no decision {decision_id[:60]!r}"
        raise ApiError(404, "unknown_decision", said, "use the decision_id of an answer to /v1/decisions")
    return int(found[1])


def model_refusal(error: ModelError) -> ApiError:
    """A row that the plan cannot be asked about."""
    return ApiError(422, "invalid_request", str(error), "send the features that the plan was made with")


def _written(label: str) -> int | float:
    number = float(label)
    return int(number) if number.is_integer() else number
