"""Random campaigns against independent books: decisions, outcomes, replays, expiry, changes, swaps of plans, restarts.

Two services share a ledger. Each step asks one of them something, compares every answer and every balance with what the
books of tests/serve/reference.py say, and at the end the whole log.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from redenvelope import Plan, open_ledger
from redenvelope.ledger.ledger import verify
from redenvelope.ledger.records import Expire, Fund, Refused
from redenvelope.log.log import ActionCatalogue
from redenvelope.serve import active_plan as use
from redenvelope.serve import service as serving
from redenvelope.serve.funds import served_funds
from redenvelope.serve.messages import ApiError, DecisionAnswer, DecisionRequest, OutcomeAnswer, OutcomeRequest
from redenvelope.serve.service import Service
from redenvelope.serve.settings import ServeSettings
from tests.serve.coupons import LABELS, STEPS
from tests.serve.reference import Books, Budget, Distribution, Row

NUMBERS = ActionCatalogue(("0", "1", "3"), numeric=True)
FEATURES = ({"taste": 0.9, "city": "Lyon"}, {"taste": 0.1, "city": "Graz"})
MOST = {"coupons": (0, 100, 300), "messages": (0, 1, 1)}
BEGAN, HOLD = 1_700_000_000_000, 60_000
USERS, TOTALS, CAPS = 6, (300, 700, 2_000), (None, 100, 350)

USER = st.integers(0, USERS - 1)
ASKED = st.tuples(
    *(USER, st.sampled_from(FEATURES), st.sampled_from((None, None, None, 0, 1, STEPS))),
    st.sampled_from((None, None, (2,), (1, 2), (0, 2))),
)
AMOUNT = st.sampled_from((0, 40, 75, 100, 300, 301))
AMOUNTS = st.one_of(
    AMOUNT,
    st.fixed_dictionaries({}, optional={"coupons": AMOUNT, "messages": st.integers(0, 2)}),
)
REWARD = st.sampled_from((0.0, 1.0, -0.5))


@dataclass
class Place:
    """Where campaigns are played."""

    new_url: Callable[[], str]
    plans: dict[str, Plan]
    seen: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    """What the plan wanted, by plan, user and step."""
    steps: int = 0


import os

MORE: Any = {"phases": (Phase.generate,), "report_multiple_bugs": False} if os.environ.get("QUICK") else {}


class Played(RuleBasedStateMachine):
    place: Place

    @initialize(
        mode=st.sampled_from(("strict", "overbook")),
        total=st.sampled_from(TOTALS),
        count=st.sampled_from((2, 5, 50)),
        cap=st.sampled_from(CAPS),
    )
    def begin(self, mode: str, total: int, count: int, cap: int | None) -> None:
        self.now, self.requests = BEGAN, 0
        self.url = self.place.new_url()
        self.books = Books(
            {"coupons": Budget(total, cap, MOST["coupons"]), "messages": Budget(count, None, MOST["messages"], True)},
            mode,
            STEPS,
        )
        self.plan = "text"
        self.answers: dict[str, Any] = {}
        self.place.seen.clear()
        self.loop = asyncio.new_event_loop()
        self.ledger = open_ledger(self.url, seed=0)
        self.services = [self.started(), self.started()]

    def started(self) -> Service:
        limits = self.books.budgets
        given = [Fund(name, one.total, self.now, one.cap) for name, one in limits.items()]
        settings = ServeSettings(mode=self.books.mode, hold_milliseconds=HOLD, audience=None)  # type: ignore[arg-type]
        service = Service(Path(self.plan), open_ledger(self.url), given, settings, None, lambda: self.now)
        self.wait(service.start())
        return service

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @rule(
        which=st.integers(0, 1),
        asked=st.lists(ASKED, min_size=1, max_size=5),
        again=st.lists(st.tuples(st.integers(0, 50), st.sampled_from((None, *range(USERS)))), max_size=2),
    )
    def decide(self, which: int, asked: list[Any], again: list[Any]) -> None:
        """New requests, and old ones: as they were, or by another user."""
        labels = self.place.plans[self.plan].catalogue.labels
        wanted = []
        for user, features, step, eligible in asked:
            self.requests += 1
            named = None if eligible is None else [labels[place] for place in eligible]
            wanted.append((DecisionRequest(f"r{self.requests}", f"u{user}", features, step, named), eligible))
        for number, user in again:
            if self.answers:
                old, eligible = list(self.answers.values())[number % len(self.answers)]["asked"]
                wanted.append((old if user is None else replaced(old, f"u{user}"), eligible))
        found = self.wait(self.services[which].decide([request for request, _ in wanted]))
        said = {id(request): answer for (request, _), answer in zip(wanted, found, strict=True)}
        for request, eligible in in_groups(wanted):
            self.compare(request, eligible, said[id(request)])

    def compare(self, request: DecisionRequest, eligible: Any, answer: Any) -> None:
        known = self.books.rows.get(request.request_id)
        step = self.books.next_step(str(request.user)) if request.step is None else request.step
        chances = None
        if known is None and step < STEPS:
            wanted = self.place.seen[self.plan, str(request.user), step]
            costs = {name: [100 * cost for cost in wanted.costs[0]] for name in ("coupons",)}
            chances = Distribution(wanted.probabilities, costs | {"messages": [0.0, 1.0, 1.0]}, wanted.uniform)
        asked = (
            str(request.user),
            tuple(request.features.items()),
            request.step,
            request.eligible and tuple(request.eligible),
        )
        row = self.books.decide(
            request.request_id,
            asked,
            request.step,
            eligible,
            (self.plan, chances),
            self.now + HOLD,  # type: ignore[arg-type]
        )
        if isinstance(row, str):
            assert isinstance(answer, ApiError) and answer.code == row, (answer, row)
            return
        assert isinstance(answer, DecisionAnswer), answer
        if known is not None:
            assert answer == self.answers[request.request_id]["answer"]
            return
        label = self.place.plans[self.plan].catalogue.labels[row.action]
        action = int(label) if self.plan == "numbers" else label
        assert (answer.action, answer.user, answer.step) == (action, row.user, row.step)
        assert type(answer.action) is type(action)
        assert answer.propensity == pytest.approx(row.shares[row.action])
        assert answer.hold.amounts == row.held
        assert answer.hold.amount == row.held.get("coupons", 0)
        self.answers[request.request_id] = {"asked": (request, eligible), "answer": answer}

    @rule(
        which=st.integers(0, 1),
        outcomes=st.lists(st.tuples(st.integers(0, 50), REWARD, AMOUNTS), min_size=1, max_size=4),
    )
    def settle(self, which: int, outcomes: list[Any]) -> None:
        """Outcomes of all kinds of decisions, in time and late, once and again."""
        if not self.answers:
            return
        requests = list(self.answers)
        named = [(requests[number % len(requests)], reward, amounts) for number, reward, amounts in outcomes]
        sent = [
            OutcomeRequest(self.answers[request]["answer"].decision_id, reward, amounts)
            for request, reward, amounts in named
        ]
        for (request, reward, amounts), answer in zip(named, self.wait(self.services[which].settle(sent)), strict=True):
            row = self.books.settle(request, reward, {"coupons": amounts} if isinstance(amounts, int) else amounts)
            if isinstance(row, str):
                assert isinstance(answer, ApiError) and answer.code == row, (answer, row)
                continue
            assert isinstance(answer, OutcomeAnswer), answer
            assert (answer.status, answer.reward, answer.amounts) == (row.status, row.reward, row.spent)

    @rule(passes=st.sampled_from((1, HOLD // 2, HOLD)))
    def time_passes(self, passes: int) -> None:
        self.now += passes
        self.ledger.apply([Expire(self.now)])
        self.books.expire(self.now)

    @rule(
        budget=st.sampled_from(("coupons", "messages")),
        total=st.sampled_from((0, 3, *TOTALS)),
        cap=st.sampled_from(CAPS),
    )
    def change(self, budget: str, total: int, cap: int | None) -> None:
        counts = budget == "messages"
        one = Fund(
            budget,
            total,
            self.now,
            None if cap is None or not counts else cap // 100,
            "" if counts else "cost",
            1 if counts else 100,
        )
        one = one if counts else replace(one, user_cap=cap)
        (found,) = self.ledger.apply([one])
        code = self.books.change(budget, one.total, one.user_cap)
        assert (found.refusal.value if isinstance(found, Refused) else None) == code

    @rule(plan=st.sampled_from(("text", "numbers")))
    def swap(self, plan: str) -> None:
        for service in self.services:
            self.wait(service.swap(plan))
        self.plan = plan

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        self.wait(self.services[which].stop())
        self.services[which] = self.started()

    @invariant()
    def balances_are_those_of_the_books(self) -> None:
        self.place.steps += 1
        for one in self.ledger.balances():
            limit = self.books.budgets[one.budget]
            wanted = (limit.total, self.books.held(one.budget), self.books.spent(one.budget), limit.cap)
            assert (one.total, one.held, one.spent, one.user_cap) == wanted

    def teardown(self) -> None:
        try:
            if hasattr(self, "services"):
                self.look_at_all()
        finally:
            for service in getattr(self, "services", ()):
                self.wait(service.stop())
            self.ledger.close()
            self.loop.close()

    def look_at_all(self) -> None:
        """The log has what was answered and reported, and every balance its entries."""
        found = {one.request: one for one in self.ledger.decided(0, 100_000)}
        assert list(found) == list(self.books.rows)
        for request, row in self.books.rows.items():
            one = found[request]
            assert (one.user, one.step, one.status.value, one.reward) == (row.user, row.step, row.status, row.reward)
            assert dict(one.spent) == row.spent
            assert list(json.loads(one.probabilities).values()) == pytest.approx(row.shares)
        verified = verify(self.ledger)
        assert verified.is_sound, verified.differences


def replaced(request: DecisionRequest, user: str) -> DecisionRequest:
    return DecisionRequest(request.request_id, user, request.features, request.step, request.eligible)


def in_groups(wanted: list[tuple[DecisionRequest, Any]]) -> Iterator[tuple[DecisionRequest, Any]]:
    """Requests in the order in which they are decided: a group has one of each user."""
    while wanted:
        users: set[Any] = set()
        first = [one for one in wanted if one[0].user not in users and not users.add(one[0].user)]  # type: ignore[func-returns-value]
        yield from first
        wanted = [one for one in wanted if one not in first]


@pytest.fixture
def plans(two_budgets: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Plan]:
    """A plan whose actions are text, and the same with numbers."""
    plan = Plan.load(two_budgets)
    found = {"text": plan, "numbers": replace(plan, policy=replace(plan.policy, catalogue=NUMBERS))}
    monkeypatch.setattr(use.Plan, "load", lambda folder: found[folder.name])
    return found


@contextmanager
def playing(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remember what plans want, and load each of them once."""
    propose = use.LoadedPlan.propose

    def noted(self: Any, asked: Any, *given: Any) -> Any:
        wanted = propose(self, asked, *given)
        name = "numbers" if self.plan.catalogue.numeric else "text"
        place.seen.update({(name, one.user, one.step): what for one, what in zip(asked, wanted, strict=True)})
        return wanted

    load, keep = serving.load_active_plan, {}

    def load_once(folder: Path, funds: Any, amounts: Any, settings: ServeSettings, seed: int) -> Any:
        key = (folder.name, settings.mode)
        if key not in keep:
            keep[key], _ = load(folder, funds, amounts, settings, seed)
        return keep[key], served_funds(keep[key].charges.budgets, funds)

    monkeypatch.setattr(use.LoadedPlan, "propose", noted)
    monkeypatch.setattr(serving, "load_active_plan", load_once)
    yield


def play(place: Place, monkeypatch: pytest.MonkeyPatch, campaigns: int, steps: int) -> None:
    how = settings(
        max_examples=campaigns,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        **MORE,
    )
    with playing(place, monkeypatch):
        machine = type("Campaign", (Played,), {"place": place})
        run_state_machine_as_test(machine, settings=how)
    assert place.steps >= campaigns * steps * 0.9


@pytest.fixture
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Callable[[], str]]:
    def places(database: str) -> Callable[[], str]:
        if database == "postgresql":
            return request.getfixturevalue("postgres").database
        numbers = iter(range(10**9))
        return lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"

    return places


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
@pytest.mark.parametrize(
    ("campaigns", "steps"),
    [
        pytest.param(3, 60, id="tiny"),
        pytest.param(20, 100, id="short"),
        pytest.param(400, 250, marks=pytest.mark.slow, id="long"),
    ],
)
def test_a_campaign_is_what_the_books_say(
    new_url: Any, plans: dict[str, Plan], monkeypatch: pytest.MonkeyPatch, database: str, campaigns: int, steps: int
) -> None:
    play(Place(new_url(database), plans), monkeypatch, campaigns, steps)
