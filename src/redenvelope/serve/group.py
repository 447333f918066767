"""A group of requests that wait together: from requests to holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec

from redenvelope.errors import ModelError
from redenvelope.ledger.ledger import Ledger
from redenvelope.ledger.records import Hold
from redenvelope.ledger.session import chunks, marks
from redenvelope.policies.pricing import Pricing
from redenvelope.serve.affordable import choose
from redenvelope.serve.answers import ApiError, DecisionAnswer, DecisionRequest
from redenvelope.serve.deciding import Asked, Proposal
from redenvelope.serve.requests import asked_of, fingerprint, model_refusal
from redenvelope.serve.settings import ServeSettings
from redenvelope.serve.use import InUse

__all__ = ["PlannedGroup", "Waiting", "plan_group"]


@dataclass(eq=False)
class Waiting:
    """Somebody who waits for a decision."""

    request: DecisionRequest
    user: str
    answer: asyncio.Future[DecisionAnswer | ApiError]
    tries: int = 0


class PlannedGroup(NamedTuple):
    """What becomes of a group."""

    holds: list[tuple[Waiting, Hold]]
    refused: list[tuple[Waiting, ApiError]]


def plan_group(
    use: InUse, pricing: Pricing, ledger: Ledger, group: Sequence[Waiting], settings: ServeSettings, now: int
) -> PlannedGroup:
    """Look up what happened before, and plan for all of a group together; nobody in it is of the same user."""
    pasts = ledger.pasts([one.user for one in group])
    known = _known(ledger, [one.request.request_id for one in group])
    found = PlannedGroup([], [])
    asked: list[tuple[Waiting, Asked, Any]] = []
    ends = now + settings.hold_milliseconds
    for one in group:
        if one.request.request_id in known:
            found.holds.append((one, _hold(one, use, (now, ends), None, None)))
            continue
        try:
            question = asked_of(use.plan, one.request, one.user, pasts.get(one.user, ()), use.tariff.kept)
            asked.append((one, question, use.plan.encode(question)))
        except ApiError as error:
            found.refused.append((one, error))
        except ModelError as error:
            found.refused.append((one, model_refusal(error)))
    if asked:
        proposals = use.plan.propose([row[1] for row in asked], pricing, [row[2] for row in asked])
        for (one, question, _), proposal in zip(asked, proposals, strict=True):
            found.holds.append((one, _hold(one, use, (now, ends), question, proposal)))
    return found


def _known(ledger: Ledger, requests: Sequence[str]) -> set[str]:
    """Which requests are in the books already: nothing is planned for them again."""
    found: set[str] = set()
    for some in chunks(requests):
        query = f"SELECT request FROM decisions WHERE request IN ({marks(len(some))})"
        found.update(row[0] for row in ledger.query(query, some))
    return found


def _hold(one: Waiting, use: InUse, times: tuple[int, int], question: Asked | None, proposal: Proposal | None) -> Hold:
    """The command; without a proposal, of a request that is in the books already."""
    draw: Any = lambda left: None  # noqa: E731
    step, prices = 0, "[]"
    if question is not None and proposal is not None:
        step, prices = question.step, msgspec.json.encode(proposal.prices).decode()
        tariff = use.tariff.at(question.features, question.step)
        allowed = None if proposal.allowed is None else proposal.allowed.tolist()
        draw = partial(
            choose, tariff, proposal.probabilities.tolist(), proposal.costs.tolist(), allowed, proposal.uniform
        )
    return Hold(
        request=one.request.request_id,
        fingerprint=fingerprint(one.request, one.user),
        user=one.user,
        step=step,
        choose=draw,
        prices=prices,
        plan=use.plan.sha256,
        features=msgspec.json.encode(one.request.features).decode(),
        at=times[0],
        expires_at=times[1],
    )
