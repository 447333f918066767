"""The service between HTTP and the ledger: it decides for users, records outcomes, expires holds and paces prices.

Requests that are pending at the same time form a group, at most one per user. A group is planned together in one thread
and submitted to the ledger, where each action is drawn and its amount held inside a transaction. An answer leaves once
its hold is durable; meanwhile the next group is planned.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from redenvelope.engine.memory import give_back
from redenvelope.errors import LedgerError, ModelError, PlanError, RedenvelopeError, UsageError
from redenvelope.ledger.holds import Result
from redenvelope.ledger.ledger import Clock, Ledger, Writer, steady_clock, verify
from redenvelope.ledger.records import (
    COUNTED,
    Balance,
    Begin,
    Choice,
    Correct,
    Decided,
    Expire,
    Fund,
    Hold,
    Identify,
    PlanNote,
    Refusal,
    Refused,
    Settle,
    Settled,
)
from redenvelope.policies.pricing import Pricing
from redenvelope.serve.active_plan import (
    ActionDistribution,
    ActivePlan,
    DecisionQuery,
    LoadedPlan,
    load_active_plan,
)
from redenvelope.serve.alerts import Alerts, Webhook, WebhookSettings, capacity
from redenvelope.serve.funds import Amounts, choose
from redenvelope.serve.messages import (
    ApiError,
    CorrectionRequest,
    DecisionAnswer,
    DecisionRequest,
    OutcomeAnswer,
    OutcomeRequest,
    decision_answer,
    decision_number,
    decision_query,
    feature_refusal,
    fingerprint,
    model_refusal,
    outcome_answer,
    refused_answer,
    user_id,
)
from redenvelope.serve.monitoring import Metrics, in_thread
from redenvelope.serve.settings import ServeSettings

_LOG = logging.getLogger("redenvelope.serve")
Found = TypeVar("Found")
_EXPIRE_SECONDS = 1.0
_WATCH_SECONDS = 1.0
_MOST_TRIES = 8
_GATHER_SECONDS = 0.002
"""How long a request waits for others while some are in flight: clients that were answered together send their next
requests together, and a group takes little longer than one request. A lone request does not wait."""


class Service:
    """Decides, holds, settles, expires and paces. Call `start` first; `stop` answers pending requests, then closes."""

    def __init__(
        self,
        plan: Path,
        ledger: Ledger,
        budgets: Sequence[Fund],
        settings: ServeSettings | None = None,
        amounts: Amounts | None = None,
        clock: Clock | None = None,
        webhook: WebhookSettings | None = None,
    ) -> None:
        self.settings = settings or ServeSettings()
        self.folder, self.ledger = plan, ledger
        self.metrics = Metrics(ledger, lambda: self.active)
        self.clock = clock or steady_clock(ledger.now())
        self._webhook = None if webhook is None else Webhook(webhook, ledger.database.ledger, self.metrics.sent)
        self.alerts = Alerts(None if self._webhook is None else self._webhook.send)
        self._amounts = amounts
        self._budgets = list(budgets)
        self._writer = Writer(ledger)
        self._pending: deque[PendingRequest] = deque()
        self._in_flight: dict[str, PendingRequest] = {}
        """By user."""
        self._wake = asyncio.Event()
        self._swapping = asyncio.Lock()
        # One thread plans, while the event loop reads and answers requests.
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="planner")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._since_paced = 0
        self._has_company = False
        self._stopping = False
        self.is_stuck = False
        """Stopped while a thread still waits for a ledger that does not answer."""
        self.active: ActivePlan | None = None
        self.reloads: list[Callable[[], None]] = []
        """Called by SIGHUP, before the plan is loaded again."""

    @property
    def is_ready(self) -> bool:
        """Whether the plan is loaded and the service is not stopping."""
        return self.active is not None and not self._stopping

    async def start(self) -> None:
        """Load and compile the plan, fund the budgets, and begin to decide and to expire holds."""
        if self.ledger.database.is_back_up:
            raise UsageError("the ledger is a back-up; restore it first: redenvelope ledger restore FILE URL")
        self.active, self._budgets = await self._run(partial(self._load, self.folder))
        self._require_fit(self.active, self._budgets)
        identity = Identify(self.clock(), None, self.active.plan.plan.record.money.currency or None, self.settings.mode)
        begin = Begin(replace(identity, by="serve"), tuple(replace(fund, by="serve") for fund in self._budgets))
        (result,) = await asyncio.wrap_future(self._writer.submit([begin]))
        if isinstance(result, Refused):
            self.active = None
            raise UsageError(
                f"the ledger is not of this campaign: {result.message}. Leave out what the ledger says itself "
                "(--budget-total, --user-cap, --mode, --minor-units), alter it with redenvelope ledger change, or give "
                "another campaign a ledger of its own"
            )
        await self._note(self.active)
        await self._pace()
        await self.read(self._tell_capacity)
        self._begin(self._decide_forever())
        self._begin(self._expire_holds_forever())
        self._begin(self._watch_forever())
        self._begin(self._verify_forever())

    async def _note(self, active: ActivePlan) -> None:
        """Record the plan's labels, features and rules, so that the log of decisions can be read without the plan."""
        await asyncio.wrap_future(self._writer.submit([PlanNote(self.clock(), active.described())]))

    def _tell_capacity(self) -> None:
        """Log how many users can have an open hold at once; warn if fewer than the audience: holds may starve it."""
        assert self.active is not None
        for users, said in capacity(self.active, self.ledger.balances(), self.settings):
            few = self.settings.audience is not None and users < self.settings.audience
            _LOG.log(logging.WARNING if few else logging.INFO, "%s", said)

    async def stop(self) -> None:
        """Answer pending requests, then close the ledger; each of the two takes at most `answer_seconds`."""
        self._stopping = True
        seconds = self.settings.limits.answer_seconds
        ends = time.monotonic() + seconds
        while (self._pending or self._in_flight) and time.monotonic() < ends:
            await asyncio.sleep(0.005)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        left, self._pending = [*self._in_flight.values(), *self._pending], deque()
        self._answer_all(left, _not_ready())
        if self._webhook is not None:
            self._webhook.close()
        # Threads that wait for a database cannot be stopped: they are left behind.
        closing = threading.Thread(target=self._close, name="closing", daemon=True)
        closing.start()
        await asyncio.get_running_loop().run_in_executor(None, closing.join, seconds)
        self.is_stuck = closing.is_alive()

    def _close(self) -> None:
        self._writer.close()
        self._planner.shutdown()
        self._reader.shutdown()
        with suppress(LedgerError):
            self.ledger.database.remember()
        self.ledger.close()

    async def decide(self, requests: Sequence[DecisionRequest]) -> list[DecisionAnswer | ApiError]:
        """Decide for users; each answer is given once its hold is durable."""
        if self._stopping or self.active is None:
            raise _not_ready()
        if len(self._pending) + len(requests) > self.settings.limits.waiting:
            raise ApiError(503, "overloaded", "too many decisions are pending", "retry later with the same request_id")
        answers: list[asyncio.Future[DecisionAnswer | ApiError]] = []
        for request in requests:
            answers.append(asyncio.get_running_loop().create_future())
            try:
                self._pending.append(PendingRequest(request, user_id(request.user), answers[-1]))
            except ApiError as error:
                answers[-1].set_result(self._counted(error))
        self._wake.set()
        return [await one for one in answers]

    async def correct(self, correction: CorrectionRequest, by: str) -> OutcomeAnswer | ApiError:
        """Replace a recorded outcome."""
        (answer,) = await self._outcomes([correction], partial(Correct, by=by, reason=correction.reason))
        return answer

    async def settle(self, outcomes: Sequence[OutcomeRequest]) -> list[OutcomeAnswer | ApiError]:
        """Settle or release the holds of decisions by their outcomes."""
        return await self._outcomes(outcomes, Settle)

    async def _outcomes(
        self, outcomes: Sequence[OutcomeRequest | CorrectionRequest], command: Callable[..., Settle]
    ) -> list[OutcomeAnswer | ApiError]:
        now = self.clock()
        answers: list[OutcomeAnswer | ApiError | None] = [None] * len(outcomes)
        commands: dict[int, Settle] = {}
        for place, outcome in enumerate(outcomes):
            try:
                number = decision_number(outcome.decision_id)
                commands[place] = command(number, outcome.reward, self._amounts_of(outcome), now, outcome.decision_id)
            except ApiError as error:
                answers[place] = error
        try:
            results = await asyncio.wrap_future(self._writer.submit(list(commands.values()))) if commands else []
        except LedgerError as error:
            raise _unavailable(error) from error
        for place, result in zip(commands, results, strict=True):
            if isinstance(result, Refused):
                answers[place] = self._counted(refused_answer(result))
            else:
                assert isinstance(result, Settled)
                answers[place] = outcome_answer(result, outcomes[place].decision_id, self._measures())
        return [answer for answer in answers if answer is not None]

    async def swap(self, name: str | None) -> str:
        """Activate another plan, or load the active folder again; requests in flight keep the plan they began with."""
        async with self._swapping:  # the last one that is asked for is the last one that is loaded
            folder = self.folder if name is None else self.folder.parent / name
            try:
                active, funds = await asyncio.get_running_loop().run_in_executor(None, self._load, folder)
                self._require_same(funds)
                currency = (await self.read(self.ledger.identity))["currency"]
                self._require_fit(active, await self.read(self.ledger.balances), currency)
                await self._note(active)
            except LedgerError as error:
                raise _unavailable(error) from error
            except (PlanError, UsageError, ModelError, OSError) as error:
                message = f"plan rejected: {error}; the current plan stays active"
                raise ApiError(409, "plan_refused", message, "correct the plan and activate it again") from None
            self.active, self.folder = active, folder
            await self._pace()
        _LOG.info("plan %s activated", active.plan.sha256[:12])
        return active.plan.sha256

    def _load(self, folder: Path) -> tuple[ActivePlan, list[Fund]]:
        """Load a plan, return the memory that compiling took, and exclude what stays from garbage collection, which
        would halt the process for a tenth of a second each time."""
        loaded = load_active_plan(folder, self._budgets, self._amounts, self.settings, self.ledger.seed)
        gc.unfreeze()
        give_back()
        gc.freeze()
        return loaded

    def _require_same(self, funds: Sequence[Fund]) -> None:
        """Refuse a plan with a budget that measures something else: amounts in the ledger keep their meaning."""
        for one, other in zip(self._budgets, funds, strict=True):
            if (one.budget, one.measure) != (other.budget, other.measure):
                raise UsageError(f"budget {one.budget!r} of the running campaign measures something else in this plan")

    def _require_fit(self, active: ActivePlan, funds: Sequence[Fund | Balance], currency: str = "") -> None:
        """Refuse a plan that is certified for a lower cap per user, or whose amounts are in another currency."""
        own, most = active.plan.plan.record.money.currency, active.plan.plan.certificate.most_per_user
        cap = funds[0].user_cap
        if most is not None and (cap is None or cap > most * self.settings.minor_units + 1e-6):
            raise UsageError(
                f"the plan is certified for at most {most:.10g} per user, and the ledger allows more; lower its cap: "
                f"redenvelope ledger change URL --user-cap {most:.10g}"
            )
        if currency and own and currency != own:
            raise UsageError(f"the ledger has amounts in {currency!r}, and the plan in {own!r}")

    def _measures(self) -> dict[str, str]:
        return {fund.budget: fund.budget if fund.measure is None else fund.measure for fund in self._budgets}

    def _amounts_of(self, outcome: OutcomeRequest | CorrectionRequest) -> Mapping[str, int]:
        if isinstance(outcome.amount, int):
            paid = {fund.measure: fund.budget for fund in reversed(self._budgets) if fund.measure != COUNTED}
            if len(paid) != 1 and outcome.amount:
                names = ", ".join(paid.values()) or "none"
                message = f"a single amount needs exactly one budget that is paid; there are: {names}"
                raise ApiError(422, "invalid_request", message, "send the amounts by budget")
            return dict.fromkeys(list(paid.values())[:1], outcome.amount)
        named = () if self.active is None else self.active.plan.plan.certificate.budgets
        if len(self._budgets) == len(named) == 1 and set(outcome.amount) == {named[0].name}:
            # The plan's own name of the same budget.
            return dict.fromkeys([self._budgets[0].budget], *outcome.amount.values())
        unknown = set(outcome.amount) - {fund.budget for fund in self._budgets}
        if unknown:
            message = f"the campaign has no budget {min(unknown)!r}"
            raise ApiError(422, "invalid_request", message, "use the names of the campaign's budgets")
        return outcome.amount

    async def _decide_forever(self) -> None:
        """Plan pending requests group by group, while earlier groups are committed."""
        while True:
            await self._wake.wait()
            if self._has_company:
                await asyncio.sleep(_GATHER_SECONDS)
            group = self._group()
            self._has_company = len(self._in_flight) > 1
            if not group:
                self._wake.clear()
                continue
            assert self.active is not None
            active = self.active
            try:
                planned, durable = await self._run(partial(self._plan, active, group))
            except Exception as error:
                _LOG.exception("a group could not be planned")
                self._answer_all(group, _unavailable(error))
                continue
            self.metrics.planned(len(group))
            for one, refused in planned.refused:
                self._answer(one, self._counted(refused))
            if durable is not None:
                self._begin(self._commit(active, planned.holds, durable))

    def _plan(
        self, active: ActivePlan, group: Sequence[PendingRequest]
    ) -> tuple[PlannedGroup, Future[list[Result]] | None]:
        """Plan for a group and submit its holds in the same thread, without a detour through the event loop."""
        planned = plan_group(active, self.ledger, group, self.settings, self.clock(), self.metrics)
        return planned, self._writer.submit([hold for _, hold in planned.holds]) if planned.holds else None

    def _group(self) -> list[PendingRequest]:
        """The oldest pending requests, without users who have a request in flight."""
        group: list[PendingRequest] = []
        later: list[PendingRequest] = []
        while self._pending and len(group) < self.settings.batch:
            one = self._pending.popleft()
            if one.user in self._in_flight:
                later.append(one)
                continue
            self._in_flight[one.user] = one
            group.append(one)
        self._pending.extendleft(reversed(later))
        return group

    async def _commit(
        self, active: ActivePlan, holds: Sequence[tuple[PendingRequest, Hold]], durable: Future[list[Result]]
    ) -> None:
        """Wait until holds are durable, and answer."""
        try:
            results = await asyncio.wrap_future(durable)
        except Exception as error:
            if not isinstance(error, LedgerError):
                _LOG.exception("a group could not be committed")
            self._answer_all([one for one, _ in holds], _unavailable(error))
            return
        for (one, _), result in zip(holds, results, strict=True):
            try:
                self._conclude(one, result)
            except Exception:  # the decision is recorded, and the rest of the group must be answered
                _LOG.exception("an answer could not be written")
                self._answer(one, self._counted(_unanswerable()))
        self._since_paced += len(holds)
        if active.pacer is not None and self._since_paced >= active.pacer.every:
            await self._pace()

    def _conclude(self, one: PendingRequest, result: Result) -> None:
        if isinstance(result, Decided):
            if not result.repeated:
                self.metrics.decided(result.action)
            self._answer(one, decision_answer(result, self._measures()))
            return
        assert isinstance(result, Refused)
        if result.refusal is Refusal.STEP_TAKEN and one.request.step is None and one.tries < _MOST_TRIES:
            # Another process has decided this step of the user in the meantime: plan for the next step.
            one.tries += 1
            self._in_flight.pop(one.user, None)
            self._pending.append(one)
            self._wake.set()
            return
        self._answer(one, self._counted(refused_answer(result)))

    def _answer(self, one: PendingRequest, answer: DecisionAnswer | ApiError) -> None:
        self._in_flight.pop(one.user, None)
        if not one.answer.done():  # the caller may have disconnected
            one.answer.set_result(answer)
        if self._pending:
            self._wake.set()

    def _answer_all(self, group: Sequence[PendingRequest], error: ApiError) -> None:
        for one in group:
            self._answer(one, self._counted(error))

    def _counted(self, error: ApiError) -> ApiError:
        self.metrics.refused(error.code)
        return error

    async def _pace(self) -> None:
        """Let pacing update the prices."""
        active, self._since_paced = self.active, 0
        if active is None or active.pacer is None:
            return
        try:
            changed = await self._run(partial(active.solve, self.ledger, self.clock()))
            if changed:
                await asyncio.wrap_future(self._writer.submit([changed]))
        except LedgerError as error:
            _LOG.warning("the prices were not updated: %s", error)

    async def _expire_holds_forever(self) -> None:
        """Expire the holds that are due, once per second."""
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            try:
                await asyncio.wrap_future(self._writer.submit([Expire(self.clock())]))
            except Exception as error:  # whatever the error, later holds must still expire
                _LOG.warning("holds could not expire: %s", error)

    async def _watch_forever(self) -> None:
        """Update the alerts once per second."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                await self.read(self._watch)
            except Exception as error:
                _LOG.warning("the balances could not be looked at: %s", error)

    def _watch(self) -> None:
        self.ledger.database.remember()
        if self.active is not None:
            balances, short = self.ledger.balances(), self.metrics.short_decisions
            self.alerts.look(self.active, balances, self.settings, short, self.ledger.unpaid)

    async def _verify_forever(self) -> None:
        """Verify the ledger every `verify_seconds`, in a separate thread."""
        while True:
            await asyncio.sleep(self.settings.verify_seconds)
            try:
                self.alerts.verified(await asyncio.wrap_future(in_thread(partial(verify, self.ledger), "verify")))
            except Exception as error:
                _LOG.warning("the ledger could not be verified: %s", error)

    async def read(self, work: Callable[[], Found]) -> Found:
        """Read from the ledger in a separate thread, so that decisions do not wait."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, work)
        except LedgerError as error:
            raise _unavailable(error) from error

    async def _run(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._planner, work)

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _not_ready() -> ApiError:
    return ApiError(503, "not_ready", "the service is starting or stopping", "retry with the same request_id")


def _unanswerable() -> ApiError:
    message = "the decision is recorded, but its answer failed; see the log of the service"
    return ApiError(500, "internal", message, "read the decision from /v1/log")


def _unavailable(error: BaseException) -> ApiError:
    message = str(error) if isinstance(error, RedenvelopeError) else "internal error; see the log of the service"
    return ApiError(503, "unavailable", message, "retry with the same request_id: nothing is held twice")


@dataclass(eq=False)
class PendingRequest:
    """A request that waits for its decision."""

    request: DecisionRequest
    user: str
    answer: asyncio.Future[DecisionAnswer | ApiError]
    tries: int = 0


class PlannedGroup(NamedTuple):
    """The holds to submit for a group, and the requests that are refused."""

    holds: list[tuple[PendingRequest, Hold]]
    refused: list[tuple[PendingRequest, ApiError]]


def plan_group(
    active: ActivePlan,
    ledger: Ledger,
    group: Sequence[PendingRequest],
    settings: ServeSettings,
    now: int,
    metrics: Metrics,
) -> PlannedGroup:
    """Read the users' past steps from the ledger, and plan for a group of requests together, one request per user."""
    pasts, known = ledger.pasts([one.user for one in group], [one.request.request_id for one in group])
    found = PlannedGroup([], [])
    asked: list[tuple[PendingRequest, DecisionQuery]] = []
    times = (now, now + settings.hold_milliseconds)
    for one in group:
        if one.request.request_id in known:
            found.holds.append((one, _hold(one, active, times, metrics)))
            continue
        try:
            features, faults = active.expected.admitted(one.request.features)
            if faults:
                metrics.wrong_features(active.expected, faults)
            if faults and settings.wrong_features == "refuse":
                raise feature_refusal(active.expected, faults)
            past = pasts.get(one.user, ())
            query = decision_query(active.plan, one.request, features, one.user, past, active.charges.budgets)
            asked.append((one, query))
        except ApiError as error:
            found.refused.append((one, error))
    chances = _distributions(active.plan, active.pricing, [query for _, query in asked])
    for (one, query), found_one in zip(asked, chances, strict=True):
        if isinstance(found_one, ApiError):
            found.refused.append((one, found_one))
        else:
            found.holds.append((one, _hold(one, active, times, metrics, (query, found_one))))
    return found


def _distributions(
    plan: LoadedPlan, pricing: Pricing, asked: Sequence[DecisionQuery]
) -> list[ActionDistribution | ApiError]:
    """The action probabilities of each request, or its error if it cannot be encoded or planned."""
    states = _each(plan.encode, asked)
    places = [place for place, state in enumerate(states) if not isinstance(state, ApiError)]
    proposed = _each(
        lambda some: plan.propose([asked[place] for place in some], pricing, [states[place] for place in some]), places
    )
    by_place = dict(zip(places, proposed, strict=True))
    return [by_place.get(place, state) for place, state in enumerate(states)]


def _each(work: Callable[[Sequence[Any]], Iterable[Any]], asked: Sequence[Any]) -> list[Any]:
    """The results of `work` on all together; if that fails, on each alone, with an error for each that fails."""
    try:
        return list(work(asked)) if asked else []
    except ModelError as error:
        if len(asked) == 1:
            return [model_refusal(error)]
    return [found for one in asked for found in _each(work, [one])]


def _hold(
    one: PendingRequest,
    active: ActivePlan,
    times: tuple[int, int],
    metrics: Metrics,
    planned: tuple[DecisionQuery, ActionDistribution] | None = None,
) -> Hold:
    """The hold command of a request; `planned` is None if the ledger already knows the request id."""
    step, prices, features, state, holdout = 0, "[]", "{}", "", False
    draw: Callable[[Mapping[str, int]], Choice | None] = _no_draw
    if planned is not None:
        query, chances = planned
        step, prices = query.step, msgspec.json.encode(chances.prices).decode()
        features, holdout = msgspec.json.encode(query.features).decode(), not chances.prices
        state = msgspec.json.encode(query.past).decode() if query.past else ""
        table = active.charges.at(query.features, query.step)
        given = (chances.probabilities, chances.costs, chances.allowed, chances.uniform)
        draw = partial(choose, table, *given, short=metrics.short)
    return Hold(
        request=one.request.request_id,
        fingerprint=fingerprint(one.request, one.user),
        user=one.user,
        step=step,
        choose=draw,
        prices=prices,
        plan=active.plan.sha256,
        features=features,
        state=state,
        holdout=holdout,
        at=times[0],
        expires_at=times[1],
    )


def _no_draw(left: Mapping[str, int]) -> Choice | None:
    return None
