"""From a request to a question for the plan, and from the books to an answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from redenvelope.errors import ModelError
from redenvelope.ledger.records import Decided, PastStep, Refusal, Refused, Settled, Status
from redenvelope.serve.answers import (
    ApiError,
    DecisionAnswer,
    DecisionRequest,
    HoldAnswer,
    OutcomeAnswer,
)
from redenvelope.serve.deciding import Asked, PlanInUse
from redenvelope.serve.funds import Kept

__all__ = [
    "asked_of",
    "decision_answer",
    "decision_number",
    "fingerprint",
    "model_refusal",
    "outcome_answer",
    "refused_answer",
    "user_id",
]

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


def asked_of(
    plan: PlanInUse, request: DecisionRequest, user: str, past: Sequence[PastStep], kept: Sequence[Kept]
) -> Asked:
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
    return Asked(user, step, request.features, rows, _mask(plan, request))


def _past_row(one: PastStep, step: int, kept: Sequence[Kept], known: bool) -> dict[str, Any]:
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


def decision_answer(record: Decided, numeric: bool) -> DecisionAnswer:
    """What is sent of a decision in the books."""
    amounts = {charge.budget: charge.held for charge in record.charges}
    expires = datetime.fromtimestamp(record.expires_at / 1_000, UTC).isoformat(timespec="milliseconds")
    return DecisionAnswer(
        decision_id=f"d{record.decision}",
        request_id=record.request,
        user=record.user,
        step=record.step,
        action=_written(record.action) if numeric else record.action,
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
