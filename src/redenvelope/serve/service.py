"""A campaign in use: those who wait together are planned together and committed together."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from redenvelope.errors import LedgerError, ModelError, PlanError, RedenvelopeError, UsageError
from redenvelope.ledger.holds import Result
from redenvelope.ledger.ledger import Clock, Ledger, Writer, steady_clock
from redenvelope.ledger.records import COUNTED, Decided, Done, Expire, Fund, Hold, Refusal, Refused, Settle, Settled
from redenvelope.policies.pricing import Pricing
from redenvelope.serve.active_plan import DecisionQuery, InUse, Proposal, load_use
from redenvelope.serve.funds import Amounts, choose
from redenvelope.serve.messages import (
    ApiError,
    DecisionAnswer,
    DecisionRequest,
    OutcomeAnswer,
    OutcomeRequest,
    decision_answer,
    decision_number,
    decision_query,
    fingerprint,
    model_refusal,
    outcome_answer,
    refused_answer,
    user_id,
)
from redenvelope.serve.settings import ServeSettings
from redenvelope.serve.view import Metrics

_LOG = logging.getLogger("redenvelope.serve")
Found = TypeVar("Found")
_SWEEP_SECONDS = 1.0
_MOST_TRIES = 8
# With others on their way, who comes waits so long for company: clients that were answered together ask again together,
# and a group takes little longer than one of them. Who is alone does not wait.
_GATHER_SECONDS = 0.001


class Service:
    """Decides, holds, settles and paces. `start` before use, `stop` after: what waits is answered first."""

    def __init__(
        self,
        plan: Path,
        ledger: Ledger,
        budgets: Sequence[Fund],
        settings: ServeSettings | None = None,
        amounts: Amounts | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings or ServeSettings()
        self.folder, self.ledger, self.metrics = plan, ledger, Metrics()
        self.clock = clock or steady_clock()
        self._amounts = amounts
        self._budgets = list(budgets)
        self._writer = Writer(ledger)
        self._waiting: deque[Waiting] = deque()
        self._in_flight: dict[str, Waiting] = {}
        """By user."""
        self._wake = asyncio.Event()
        # One thread plans, so that requests are read and answered meanwhile.
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="planner")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._since_solved = 0
        self._company = False
        self._stopping = False
        self.is_stuck = False
        """Stopped, but something still waits for a ledger that does not answer."""
        self.use: InUse | None = None

    @property
    def is_ready(self) -> bool:
        """Warm, and not about to stop."""
        return self.use is not None and not self._stopping

    async def start(self) -> None:
        """Load the plan, warm it up and open the books."""
        self.use, self._budgets = await self._run(partial(self._load, self.folder))
        for result in await asyncio.wrap_future(self._writer.submit(self._budgets)):
            if isinstance(result, Refused):
                self.use = None
                raise UsageError(result.message)
        await self._solve()
        self._begin(self._decide_forever())
        self._begin(self._sweep_forever())

    async def stop(self) -> None:
        """Answer who waits, write what is to be written, and let go; each takes no longer than an answer may."""
        self._stopping = True
        seconds = self.settings.limits.answer_seconds
        ends = time.monotonic() + seconds
        while (self._waiting or self._in_flight) and time.monotonic() < ends:
            await asyncio.sleep(0.005)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        left, self._waiting = [*self._in_flight.values(), *self._waiting], deque()
        self._answer_all(left, _not_ready())
        # Threads that wait for a database cannot be stopped: they are left behind.
        letting_go = threading.Thread(target=self._let_go, name="letting go", daemon=True)
        letting_go.start()
        await asyncio.get_running_loop().run_in_executor(None, letting_go.join, seconds)
        self.is_stuck = letting_go.is_alive()

    def _let_go(self) -> None:
        self._writer.close()
        self._planner.shutdown()
        self._reader.shutdown()
        self.ledger.close()

    async def decide(self, requests: Sequence[DecisionRequest]) -> list[DecisionAnswer | ApiError]:
        """Decide; an answer comes when its hold is durable."""
        if self._stopping or self.use is None:
            raise _not_ready()
        if len(self._waiting) + len(requests) > self.settings.limits.waiting:
            raise ApiError(503, "overloaded", "too many decisions wait", "ask again with the same request_id, later")
        loop = asyncio.get_running_loop()
        waiting = [Waiting(request, user_id(request.user), loop.create_future()) for request in requests]
        self._waiting.extend(waiting)
        self._wake.set()
        return [await one.answer for one in waiting]

    async def settle(self, outcomes: Sequence[OutcomeRequest]) -> list[OutcomeAnswer | ApiError]:
        """Put outcomes into the books."""
        now = self.clock()
        answers: list[OutcomeAnswer | ApiError | None] = [None] * len(outcomes)
        commands: dict[int, Settle] = {}
        for place, outcome in enumerate(outcomes):
            try:
                number = decision_number(outcome.decision_id)
                commands[place] = Settle(number, outcome.reward, self._amounts_of(outcome), now)
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
                answers[place] = outcome_answer(result)
        return [answer for answer in answers if answer is not None]

    async def swap(self, name: str | None) -> str:
        """Take another plan, or the present folder again; requests on their way keep the plan they began with."""
        folder = self.folder if name is None else self.folder.parent / name
        try:
            use, funds = await asyncio.get_running_loop().run_in_executor(None, self._load, folder)
            self._require_same(funds)
        except (PlanError, UsageError, ModelError, OSError) as error:
            raise ApiError(
                409, "plan_refused", f"the plan is not taken: {error}", "mend it; the old one goes on"
            ) from None
        self.use, self.folder = use, folder
        await self._solve()
        _LOG.info("plan %s taken", use.plan.sha256[:12])
        return use.plan.sha256

    def _load(self, folder: Path) -> tuple[InUse, list[Fund]]:
        return load_use(folder, self._budgets, self._amounts, self.settings, self.ledger.seed)

    def _require_same(self, funds: Sequence[Fund]) -> None:
        """A plan of the same budgets: the money of a running campaign does not change its meaning."""
        for one, other in zip(self._budgets, funds, strict=True):
            if (one.budget, one.measure) != (other.budget, other.measure):
                raise UsageError(f"the budget {one.budget!r} of the running campaign is another in this plan")

    def _amounts_of(self, outcome: OutcomeRequest) -> Mapping[str, int]:
        if isinstance(outcome.amount, int):
            paid = {fund.measure: fund.budget for fund in reversed(self._budgets) if fund.measure != COUNTED}
            if len(paid) != 1 and outcome.amount:
                names = ", ".join(paid.values()) or "none"
                said = "a number is of the only budget that is paid"
                raise ApiError(422, "invalid_request", said, f"give amounts by name; there are: {names}")
            return dict.fromkeys(list(paid.values())[:1], outcome.amount)
        unknown = set(outcome.amount) - {fund.budget for fund in self._budgets}
        if unknown:
            raise ApiError(
                422, "invalid_request", f"there is no budget {min(unknown)!r}", "name the campaign's budgets"
            )
        return outcome.amount

    async def _decide_forever(self) -> None:
        """Groups of those who wait, planned one group after the other; commits go on beside."""
        while True:
            await self._wake.wait()
            if self._company:
                await asyncio.sleep(_GATHER_SECONDS)
            group = self._group()
            self._company = len(self._in_flight) > 1
            if not group:
                self._wake.clear()
                continue
            assert self.use is not None
            use = self.use
            try:
                planned, durable = await self._run(partial(self._plan, use, group))
            except Exception as error:
                _LOG.exception("a group could not be planned")
                self._answer_all(group, _unavailable(error))
                continue
            self.metrics.batches += 1
            self.metrics.batched += len(group)
            for one, refused in planned.refused:
                self._answer(one, self._counted(refused))
            if durable is not None:
                self._begin(self._commit(use, planned.holds, durable))

    def _plan(self, use: InUse, group: Sequence[Waiting]) -> tuple[PlannedGroup, Future[list[Result]] | None]:
        """Plan for a group and hand its holds to the writer at once: no way through the loop between the two."""
        planned = plan_group(use, use.pricing, self.ledger, group, self.settings, self.clock())
        return planned, self._writer.submit([hold for _, hold in planned.holds]) if planned.holds else None

    def _group(self) -> list[Waiting]:
        """Those at the head of the line; of a user whose decision is on its way, nobody."""
        group: list[Waiting] = []
        later: list[Waiting] = []
        while self._waiting and len(group) < self.settings.batch:
            one = self._waiting.popleft()
            if one.user in self._in_flight:
                later.append(one)
                continue
            self._in_flight[one.user] = one
            group.append(one)
        self._waiting.extendleft(reversed(later))
        return group

    async def _commit(self, use: InUse, holds: Sequence[tuple[Waiting, Hold]], durable: Future[list[Result]]) -> None:
        """Wait until holds are durable, and answer."""
        try:
            results = await asyncio.wrap_future(durable)
        except LedgerError as error:
            self._answer_all([one for one, _ in holds], _unavailable(error))
            return
        except Exception as error:
            _LOG.exception("a group could not be committed")
            self._answer_all([one for one, _ in holds], _unavailable(error))
            return
        for (one, _), result in zip(holds, results, strict=True):
            try:
                self._conclude(one, result)
            except Exception:  # it is in the books; whoever waits beside it is answered all the same
                _LOG.exception("an answer could not be written")
                self._answer(one, self._counted(_unsaid()))
        self._since_solved += len(holds)
        if use.pacer is not None and self._since_solved >= use.pacer.every:
            await self._solve()

    def _conclude(self, one: Waiting, result: Result) -> None:
        if isinstance(result, Decided):
            if not result.repeated:
                self.metrics.decisions[result.action] += 1
            self._answer(one, decision_answer(result))
            return
        assert isinstance(result, Refused)
        if result.refusal is Refusal.STEP_TAKEN and one.request.step is None and one.tries < _MOST_TRIES:
            # Another process has decided for this user meanwhile: the next step, then.
            one.tries += 1
            self._in_flight.pop(one.user, None)
            self._waiting.append(one)
            self._wake.set()
            return
        self._answer(one, self._counted(refused_answer(result)))

    def _answer(self, one: Waiting, answer: DecisionAnswer | ApiError) -> None:
        self._in_flight.pop(one.user, None)
        if not one.answer.done():  # whoever asked may have gone
            one.answer.set_result(answer)
        if self._waiting:
            self._wake.set()

    def _answer_all(self, group: Sequence[Waiting], error: ApiError) -> None:
        for one in group:
            self._answer(one, self._counted(error))

    def _counted(self, error: ApiError) -> ApiError:
        self.metrics.refused(error.code)
        return error

    async def _solve(self) -> None:
        """Look at the price again."""
        use, self._since_solved = self.use, 0
        if use is None or use.pacer is None:
            return
        try:
            changed = await self._run(partial(use.solve, self.ledger, self.clock()))
            if changed:
                await asyncio.wrap_future(self._writer.submit([changed]))
        except LedgerError as error:
            _LOG.warning("the price was not solved again: %s", error)

    async def _sweep_forever(self) -> None:
        """Let holds expire."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                (done,) = await asyncio.wrap_future(self._writer.submit([Expire(self.clock())]))
                assert isinstance(done, Done)
            except (LedgerError, RedenvelopeError) as error:
                _LOG.warning("holds could not expire: %s", error)

    async def read(self, work: Callable[[], Found]) -> Found:
        """Look something up in the ledger, apart from those who decide."""
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
    return ApiError(503, "not_ready", "the service is starting or stopping", "ask again with the same request_id")


def _unsaid() -> ApiError:
    said = "the decision is in the books, and cannot be written as an answer; the service's log says why"
    return ApiError(500, "internal", said, "look it up in /v1/log")


def _unavailable(error: BaseException) -> ApiError:
    said = (
        str(error)
        if isinstance(error, RedenvelopeError)
        else "something went wrong inside; the service's log says what"
    )
    return ApiError(503, "unavailable", said, "ask again with the same request_id: nothing is held twice")


# A group of requests that wait together: from requests to holds.


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
    known = ledger.known_requests([one.request.request_id for one in group])
    found = PlannedGroup([], [])
    asked: list[tuple[Waiting, DecisionQuery, Any]] = []
    ends = now + settings.hold_milliseconds
    for one in group:
        if one.request.request_id in known:
            found.holds.append((one, _hold(one, use, (now, ends), None, None)))
            continue
        try:
            question = decision_query(use.plan, one.request, one.user, pasts.get(one.user, ()), use.tariff.kept)
            asked.append((one, question, use.plan.encode(question)))
        except ApiError as error:
            found.refused.append((one, error))
        except ModelError as error:
            found.refused.append((one, model_refusal(error)))
    for (one, question, _), proposal in zip(asked, _proposals(use, pricing, asked), strict=True):
        if isinstance(proposal, ApiError):
            found.refused.append((one, proposal))
        else:
            found.holds.append((one, _hold(one, use, (now, ends), question, proposal)))
    return found


def _proposals(
    use: InUse, pricing: Pricing, asked: Sequence[tuple[Waiting, DecisionQuery, Any]]
) -> list[Proposal | ApiError]:
    """What the plan would do for each; where that cannot be said together, one by one: who does not fit fails alone."""
    if not asked:
        return []
    try:
        return list(use.plan.propose([row[1] for row in asked], pricing, [row[2] for row in asked]))
    except ModelError as error:
        if len(asked) == 1:
            return [model_refusal(error)]
    return [found for row in asked for found in _proposals(use, pricing, [row])]


def _hold(
    one: Waiting, use: InUse, times: tuple[int, int], question: DecisionQuery | None, proposal: Proposal | None
) -> Hold:
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
