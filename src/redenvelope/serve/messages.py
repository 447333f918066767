"""Messages over HTTP: typed requests and answers, one shape for errors, and conversion to and from ledger records."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from redenvelope.errors import ModelError
from redenvelope.ledger.records import (
    COUNTED,
    LARGEST_REWARD,
    Decided,
    PastStep,
    Refusal,
    Refused,
    Settled,
    Status,
    canonical_user,
)
from redenvelope.serve.active_plan import DecisionQuery, ExpectedFeatures, FeatureFault, LoadedPlan
from redenvelope.serve.funds import FundedBudget

Id = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Label = Annotated[str, Meta(max_length=1_000)]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Feature = bool | Integer | Number | Label | None
Reward = Annotated[float, Meta(ge=-LARGEST_REWARD, le=LARGEST_REWARD)]
Amount = Annotated[int, Meta(ge=0, lt=2**53)]
Unit = Literal["minor units", "actions"]


class ApiError(Exception):
    """An error over HTTP: a stable code, what is wrong, and what to do."""

    def __init__(self, status: int, code: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.remedy = status, code, message, remedy

    def content(self) -> dict[str, str]:
        """The body of the answer."""
        return {"code": self.code, "message": self.message, "remedy": self.remedy}


class DecisionRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Decide for a user."""

    request_id: Id
    """Chosen by the caller; a repeated request gets the same answer."""
    user: Integer | Id
    features: Annotated[dict[Annotated[str, Meta(min_length=1, max_length=500)], Feature], Meta(max_length=2_000)]
    step: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    """The index of the decision; by default the step after the user's last."""
    eligible: (
        Annotated[list[Annotated[str, Meta(max_length=1_000)] | Integer | Number], Meta(max_length=10_000)] | None
    ) = None
    """Labels of the eligible actions; by default all."""


class DecisionBatch(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Decide for several users."""

    decisions: Annotated[list[DecisionRequest], Meta(min_length=1, max_length=1_000)]


class OutcomeRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The outcome of a decision: its reward, and its cost in minor units."""

    decision_id: Id
    reward: Reward
    amount: Amount | dict[Id, Amount] = 0
    """From the only budget that is paid, or by budget."""


class CorrectionRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a recorded outcome should have been, and why."""

    decision_id: Id
    reward: Reward
    reason: Id
    amount: Amount | dict[Id, Amount] = 0
    """As in an outcome."""


class OutcomeBatch(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Several outcomes."""

    outcomes: Annotated[list[OutcomeRequest], Meta(min_length=1, max_length=1_000)]


class PlanRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Activate another plan."""

    plan: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$")] | None = None
    """Name of a folder next to that of the active plan; by default the active folder is loaded again."""


class HoldAnswer(msgspec.Struct, frozen=True):
    """What is held for a decision, and until when."""

    amount: int | None
    """The amount of the only column that is paid, in minor units; null if there are several, which do not add up."""
    amounts: dict[str, int]
    """By budget, each in its own unit."""
    units: dict[str, Unit]
    """Of each budget."""
    expires_at: str


class DecisionAnswer(msgspec.Struct, frozen=True):
    """A decision."""

    decision_id: str
    request_id: str
    user: str
    step: int
    action: str | int | float
    propensity: float
    hold: HoldAnswer
    prices: list[float | None]
    """The price of each budget at which it was decided; null is infinity."""
    plan: str


class OutcomeAnswer(msgspec.Struct, frozen=True):
    """A recorded outcome."""

    decision_id: str
    status: str
    reward: float
    amount: int | None
    """As in the hold of the decision."""
    amounts: dict[str, int]
    units: dict[str, Unit]


def decoded(content: bytes | bytearray, kind: Any) -> Any:
    """Decode and validate the body of a request."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        remedy = "see /openapi.json for the format of requests"
        if ".amount" in str(error):
            remedy = f"amounts are whole numbers of minor units, such as 550 for 5.50; {remedy}"
        raise ApiError(422, "invalid_request", str(error), remedy) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is not valid JSON ({error})", "send a JSON object") from None


_MOST_FAULTS = 3
_DECISION = re.compile(r"d([1-9][0-9]{0,17})(?:(?:_[0-9a-f]{8}){2,3})?")
_STATUS = {
    Refusal.NOTHING_LEFT: (409, "wait until holds expire, or raise the total of the budget"),
    Refusal.REQUEST_DIFFERS: (409, "use a new request_id for a new request"),
    Refusal.STEP_TAKEN: (409, "leave out the step, or send the user's next one"),
    Refusal.UNKNOWN_DECISION: (404, "use a decision_id from an answer of /v1/decisions"),
    Refusal.OTHER_LEDGER: (409, "report it to the service of the campaign that decided"),
    Refusal.OTHER_DECISION: (409, "do not report it; the decision and its hold were lost with the restore"),
    Refusal.OUTCOME_DIFFERS: (
        409,
        "report an outcome once; /v1/log shows the recorded one, /v1/corrections changes it",
    ),
    Refusal.NO_OUTCOME: (409, "report the outcome to /v1/outcomes"),
    Refusal.ABOVE_CEILING: (409, "report at most the ceiling of the offer, in minor units"),
    Refusal.BELOW_COMMITTED: (409, "set a larger total"),
    Refusal.OTHER_CAMPAIGN: (409, "use the ledger of this campaign"),
}


def user_id(user: int | str) -> str:
    """The canonical id of a user."""
    found = canonical_user(user)
    if not found:
        raise ApiError(422, "invalid_request", "the user is empty", "send the id of the user")
    return found


def fingerprint(request: DecisionRequest, user: str) -> str:
    """A hash of the content of a request without its id; `user` is canonical."""
    content = msgspec.json.encode([user, request.step, request.features, request.eligible], order="deterministic")
    return hashlib.sha256(content).hexdigest()


def feature_refusal(expected: ExpectedFeatures, faults: Sequence[FeatureFault]) -> ApiError:
    """The error for features that the plan does not expect; its code and remedy are those of the first fault."""
    said = [expected.described(one) for one in faults[:_MOST_FAULTS]]
    more = f" (and {len(faults) - _MOST_FAULTS} more)" if len(faults) > _MOST_FAULTS else ""
    return ApiError(422, faults[0].code, "; ".join(message for message, _ in said) + more, said[0][1])


def decision_query(
    plan: LoadedPlan,
    request: DecisionRequest,
    features: Mapping[str, Any],
    user: str,
    past: Sequence[PastStep],
    budgets: Sequence[FundedBudget],
) -> DecisionQuery:
    """The query to the plan, with checked features; a request that the plan cannot decide is refused."""
    last = plan.first_step + plan.steps - 1
    step = request.step if request.step is not None else (past[-1].step + 1 if past else plan.first_step)
    if step > last or step < plan.first_step:
        message = f"step {step} is not a step of the campaign ({plan.first_step} to {last})"
        if request.step is None:
            message = f"the user has had all decisions: {message}"
            raise ApiError(409, "campaign_over", message, "send no further requests for this user")
        raise ApiError(422, "invalid_request", message, "leave out the step, or send a step of the campaign")
    rows: list[dict[str, Any]] = []
    if plan.needs_history:
        # Caps count actions that were given; only a state that contains past outcomes has to wait for them.
        needs_outcomes = plan.plan.policy.encoder.history is not None
        rows = [_past_row(one, step, budgets, needs_outcomes) for one in past if one.step < step]
    return DecisionQuery(user, step, features, rows, _mask(plan, request))


def _past_row(one: PastStep, step: int, budgets: Sequence[FundedBudget], needs_outcomes: bool) -> dict[str, Any]:
    if one.status is Status.OPEN and needs_outcomes:
        message = f"the decision at step {step} depends on the outcome of step {one.step}, which is still open"
        raise ApiError(409, "outcome_pending", message, "report its outcome, or wait until its hold expires")
    # Budgets of the cost column that count in some rows only were charged the same cost or nothing: take the largest.
    costs = [one.spent.get(each.name, 0) / each.minor_units for each in budgets if each.measure == "cost"]
    return {"step": one.step, "action": one.action, "reward": one.reward or 0.0, "cost": max(costs, default=0.0)}


def _mask(plan: LoadedPlan, request: DecisionRequest) -> Any:
    if request.eligible is None:
        return None
    known = {_key(label, plan): place for place, label in enumerate(plan.labels)}
    mask = np.zeros(len(plan.labels), dtype=bool)
    for label in request.eligible:
        place = known.get(_key(label, plan))
        if place is None:
            message = f"{str(label)[:60]!r} is not an action of the plan"
            raise ApiError(422, "invalid_request", message, f"the actions are {', '.join(plan.labels)}")
        mask[place] = True
    if not mask.any():
        raise ApiError(422, "invalid_request", "`eligible` is empty", "name at least one action, or leave it out")
    return mask


def _key(label: Any, plan: LoadedPlan) -> Any:
    if not plan.plan.catalogue.numeric:
        return str(label)
    try:
        return float(label)
    except (ValueError, OverflowError):
        return label


def _paid(amounts: Mapping[str, int], measures: Mapping[str, str]) -> tuple[int | None, dict[str, Unit]]:
    """The amount of the only column that is paid, or None, and the unit of each budget, given what each measures.

    Budgets of the same column share its amount; counted actions are not money.
    """
    units: dict[str, Unit] = {
        name: "actions" if measures.get(name, name) == COUNTED else "minor units" for name in amounts
    }
    paid: dict[str, int] = {}
    for name, amount in amounts.items():
        if units[name] != "actions":
            column = measures.get(name, name)
            paid[column] = max(amount, paid.get(column, 0))
    columns = {measure for measure in measures.values() if measure != COUNTED}
    return next(iter(paid.values()), 0) if len(columns | paid.keys()) < 2 else None, units


def decision_answer(record: Decided, measures: Mapping[str, str]) -> DecisionAnswer:
    """The answer for a recorded decision; `measures` are those of the campaign's budgets."""
    amounts = {charge.budget: charge.held for charge in record.charges}
    amount, units = _paid(amounts, measures)
    expires = datetime.fromtimestamp(record.expires_at / 1_000, UTC).isoformat(timespec="milliseconds")
    return DecisionAnswer(
        decision_id=record.public_id,
        request_id=record.request,
        user=record.user,
        step=record.step,
        action=_number(record.action) if record.is_number else record.action,
        propensity=record.propensity,
        hold=HoldAnswer(amount, amounts, units, expires.replace("+00:00", "Z")),
        prices=msgspec.json.decode(record.prices),
        plan=record.plan,
    )


def outcome_answer(settled: Settled, decision_id: str, measures: Mapping[str, str]) -> OutcomeAnswer:
    """The answer for a recorded outcome; `measures` are those of the campaign's budgets."""
    amounts = dict(settled.spent)
    amount, units = _paid(amounts, measures)
    return OutcomeAnswer(decision_id, settled.status.value, settled.reward, amount, amounts, units)


def refused_answer(refused: Refused) -> ApiError:
    """The error for a refusal of the ledger."""
    status, remedy = _STATUS[refused.refusal]
    return ApiError(status, refused.refusal.value, refused.message, remedy)


def decision_number(decision_id: str) -> int:
    """The number of a decision from its id."""
    found = _DECISION.fullmatch(decision_id)
    if found is None:
        message = f"there is no decision {decision_id[:60]!r}"
        raise ApiError(404, "unknown_decision", message, _STATUS[Refusal.UNKNOWN_DECISION][1])
    return int(found[1])


def model_refusal(error: ModelError) -> ApiError:
    """The error for a row that the plan cannot encode."""
    return ApiError(422, "invalid_request", str(error), "send the features that the plan was fitted with")


def _number(label: str) -> int | float:
    number = float(label)
    return int(number) if number.is_integer() else number
