"""Random campaigns against independent books: decisions, outcomes, replays, expiry, changes, swaps of plans, restarts,
users who are forgotten, back-ups and restores.

Two processes share a ledger. Each step asks one of them something, and compares the answers and all balances with what
the books of tests/serve/reference.py say; the end of a campaign compares the whole log, what a follower of its changes
knows, and the ledger's own verification. What the processes do is what a service does with a group of requests, without
its threads: tests/serve/test_decisions.py and test_alone.py are about these.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from redenvelope import LedgerError, Plan, open_ledger
from redenvelope.ledger.archive import back_up, restore
from redenvelope.ledger.ledger import verify
from redenvelope.ledger.records import Correct, Decided, Expire, Forget, Fund, Refusal, Refused, Settle, Settled
from redenvelope.log.log import ActionCatalogue
from redenvelope.serve.active_plan import ActionDistribution, ActivePlan, DecisionQuery, LoadedPlan, load_active_plan
from redenvelope.serve.messages import ApiError, DecisionRequest, decision_answer, refused_answer
from redenvelope.serve.monitoring import Metrics, log_lines
from redenvelope.serve.service import PendingRequest, plan_group
from redenvelope.serve.settings import ServeSettings
from tests.serve.coupons import STEPS
from tests.serve.reference import Books, Budget, Distribution

NUMBERS = ActionCatalogue(("0", "1", "3"), numeric=True)
FEATURES = ({"taste": 0.9, "city": "Lyon"}, {"taste": 0.1, "city": "Graz"})
MOST = {"coupons": (0, 100, 300), "messages": (0, 1, 1)}
MEASURES = {"coupons": "cost", "messages": ""}
BEGAN, HOLD = 1_700_000_000_000, 60_000
USERS, TOTALS, CAPS = 6, (300, 700, 2_000), (None, 100, 350)
MODES = ("strict", "overbook")

ASKED = st.tuples(
    *(st.integers(0, USERS - 1), st.sampled_from(FEATURES), st.sampled_from((None, None, None, 0, 1, STEPS))),
    st.sampled_from((None, None, (2,), (1, 2), (0, 2))),
)
AGAIN = st.tuples(st.integers(0, 50), st.sampled_from((None, *range(USERS))))
AMOUNTS = st.fixed_dictionaries(
    {}, optional={"coupons": st.sampled_from((0, 40, 75, 100, 300, 301)), "messages": st.integers(0, 2)}
)
OUTCOME = st.tuples(st.integers(0, 50), st.sampled_from((0.0, 1.0, -0.5)), AMOUNTS)


@dataclass
class Place:
    """Where campaigns are played, and what the plans wanted there."""

    new_url: Callable[[], str]
    file: Path
    """For back-ups."""
    plans: dict[str, dict[str, ActivePlan]]
    """By mode and name."""
    seen: dict[tuple[str, int], ActionDistribution] = field(default_factory=dict)
    steps: int = 0


class Played(RuleBasedStateMachine):
    place: Place

    @initialize(
        mode=st.sampled_from(MODES),
        total=st.sampled_from(TOTALS),
        count=st.sampled_from((2, 5, 50)),
        cap=st.sampled_from(CAPS),
    )
    def begin(self, mode: str, total: int, count: int, cap: int | None) -> None:
        self.now, self.requests, self.plan = BEGAN, 0, "text"
        self.url = self.place.new_url()
        self.settings = ServeSettings(mode=mode, hold_milliseconds=HOLD)  # type: ignore[arg-type]
        money, counts = Budget(total, cap, MOST["coupons"]), Budget(count, None, MOST["messages"], True)
        self.books = Books({"coupons": money, "messages": counts}, mode, STEPS)
        self.asked: dict[str, tuple[DecisionRequest, Any]] = {}
        self.answers: dict[str, Any] = {}
        self.ids: dict[str, Decided] = {}
        self.lines: list[dict[str, Any]] = []
        """What a follower of the log has read."""
        self.forgotten: list[str] = []
        self.saved: Any = None
        self.lost: list[Decided] = []
        """Decided after the back-up from which the ledger was restored."""
        self.ledgers = [open_ledger(self.url, seed=0), open_ledger(self.url, seed=0)]
        self.ledgers[0].apply([self.fund("coupons", total, cap), self.fund("messages", count, None)])

    def fund(self, budget: str, total: int, cap: int | None) -> Fund:
        return Fund(budget, total, self.now, cap, MEASURES[budget], 1 if budget == "messages" else 100)

    @rule(which=st.integers(0, 1), asked=st.lists(ASKED, min_size=1, max_size=5), again=st.lists(AGAIN, max_size=2))
    def decide(self, which: int, asked: list[Any], again: list[Any]) -> None:
        """New requests, and old ones: as they were, or by another user."""
        labels = self.place.plans["strict"][self.plan].plan.labels
        wanted = []
        for user, features, step, eligible in asked:
            self.requests += 1
            named = None if eligible is None else [labels[place] for place in eligible]
            wanted.append((DecisionRequest(f"r{self.requests}", f"u{user}", features, step, named), eligible))
        for number, other in again:
            if self.asked:
                old, eligible = list(self.asked.values())[number % len(self.asked)]
                user = old.user if other is None else f"u{other}"
                wanted.append((DecisionRequest(old.request_id, user, old.features, old.step, old.eligible), eligible))
        for group in in_groups(wanted):
            for (request, eligible), answer in zip(group, self.answered(which, group), strict=True):
                self.compare(request, eligible, answer)

    def answered(self, which: int, group: list[Any]) -> list[Any]:
        """What a process answers to a group: a decision, or the code of the refusal."""
        active = self.place.plans[self.books.mode][self.plan]
        ledger = self.ledgers[which]
        pending = [PendingRequest(request, request.user, None) for request, _ in group]  # type: ignore[arg-type]
        planned = plan_group(active, ledger, pending, self.settings, self.now, Metrics(ledger, lambda: active))
        answers: dict[int, Any] = {id(one): error for one, error in planned.refused}
        results = ledger.apply([hold for _, hold in planned.holds])
        answers |= {id(one): result for (one, _), result in zip(planned.holds, results, strict=True)}
        return [
            found.code if isinstance(found, ApiError) else found.refusal.value if isinstance(found, Refused) else found
            for found in (answers[id(one)] for one in pending)
        ]

    def compare(self, request: DecisionRequest, eligible: Any, answer: Any) -> None:
        known, user = request.request_id in self.books.rows, str(request.user)
        chances = None
        step = self.books.next_step(user) if request.step is None else request.step
        if not known and step < STEPS:
            wanted = self.place.seen[user, step]
            costs = {"coupons": [100 * cost for cost in wanted.costs[0]], "messages": wanted.costs[1]}
            chances = Distribution(wanted.probabilities, costs, wanted.uniform)
        content = (user, str(request.features), request.step, str(request.eligible))
        row = self.books.decide(
            request.request_id, content, request.step, eligible, (self.plan, chances), self.now + HOLD
        )
        if isinstance(row, str):
            assert answer == row
            return
        assert isinstance(answer, Decided), (answer, row)
        said = decision_answer(answer, MEASURES)
        if known:
            assert answer.repeated and said == self.answers[request.request_id]
            return
        label = self.place.plans["strict"][self.plan].plan.labels[row.action]
        action = int(label) if self.plan == "numbers" else label
        assert (said.action, said.user, said.step, type(said.action)) == (action, user, row.step, type(action))
        assert said.propensity == pytest.approx(row.shares[row.action])
        assert said.hold.amounts == row.held
        assert said.hold.amount == row.held.get("coupons", 0)
        self.asked[request.request_id], self.answers[request.request_id] = (request, eligible), said
        self.ids[request.request_id] = answer

    @rule(which=st.integers(0, 1), outcomes=st.lists(OUTCOME, min_size=1, max_size=4), corrects=st.booleans())
    def report(self, which: int, outcomes: list[Any], corrects: bool) -> None:
        """Outcomes of all kinds of decisions, in time and late, once and again; and corrections."""
        if not self.ids:
            return
        requests = list(self.ids)
        named = [(requests[number % len(requests)], reward, amounts) for number, reward, amounts in outcomes]
        kind = Correct if corrects else Settle
        results = self.ledgers[which].apply(
            [
                kind(self.ids[request].decision, reward, amounts, self.now, self.ids[request].public_id)
                for request, reward, amounts in named
            ]
        )
        for (request, reward, amounts), result in zip(named, results, strict=True):
            row = self.books.settle(request, reward, amounts, corrects)
            if isinstance(row, str):
                assert isinstance(result, Refused) and refused_answer(result).code == row, (result, row)
                continue
            assert isinstance(result, Settled), (result, row)
            assert (result.status.value, result.reward, result.spent) == (row.status, row.reward, row.spent)

    @rule(passes=st.sampled_from((1, HOLD // 2, HOLD)))
    def time_passes(self, passes: int) -> None:
        self.now += passes
        self.ledgers[0].apply([Expire(self.now)])
        self.books.expire(self.now)

    @rule(budget=st.sampled_from(list(MOST)), total=st.sampled_from((0, 3, *TOTALS)), cap=st.sampled_from(CAPS))
    def change(self, budget: str, total: int, cap: int | None) -> None:
        cap = cap // 100 if cap is not None and budget == "messages" else cap
        (found,) = self.ledgers[1].apply([self.fund(budget, total, cap)])
        code = self.books.change(budget, total, cap)
        assert (found.refusal.value if isinstance(found, Refused) else None) == code

    @rule(which=st.integers(0, 1), plan=st.sampled_from(("text", "numbers", None, None)))
    def operate(self, which: int, plan: str | None) -> None:
        """Activate a plan, or restart a process."""
        if plan is not None:
            self.plan = plan
            return
        self.ledgers[which].close()
        self.ledgers[which] = open_ledger(self.url)

    @rule(which=st.integers(0, 1), what=st.sampled_from(("forget", "forget", "save", "restore")), user=AGAIN)
    def administer(self, which: int, what: str, user: tuple[int, Any]) -> None:
        """Forget a user, back the ledger up, or restore it."""
        if what == "forget":
            self.forget(which, f"u{user[0] % USERS}")
        elif what == "save":
            assert back_up(self.url, self.place.file).is_sound
            kept = (self.books, self.asked, self.answers, self.ids, self.forgotten)
            self.saved = copy.deepcopy(kept)
        elif self.saved is not None:
            self.restore()

    def forget(self, which: int, user: str) -> None:
        (found,) = self.ledgers[which].apply([Forget(user, self.now)])
        own = [key for key, row in self.books.rows.items() if row.user == user]
        assert found.count == len(own)  # type: ignore[union-attr]
        if own:
            self.forgotten.append(f"forgotten {len(self.forgotten)}")
            self.books.forget(user, self.forgotten[-1])
        for key in own:
            self.asked.pop(key, None)
            self.ids[f"{self.forgotten[-1]}: {key}"] = self.ids.pop(key)

    def restore(self) -> None:
        restore(self.place.file, self.url, replace=True)
        before = self.ids.values()
        self.books, self.asked, self.answers, self.ids, self.forgotten = copy.deepcopy(self.saved)
        kept = {one.public_id for one in self.ids.values()}
        self.lost += [one for one in before if one.public_id not in kept]
        for place, one in enumerate(self.ledgers):
            with pytest.raises(LedgerError):
                one.apply([Expire(self.now)])
            one.close()
            self.ledgers[place] = open_ledger(self.url)

    @rule()
    def follow(self) -> None:
        while True:
            after, epoch = (self.lines[-1]["number"], self.lines[-1]["epoch"]) if self.lines else (0, "")
            try:
                lines = log_lines(self.ledgers[0], after, 3, epoch).splitlines()
            except ApiError as refused:
                assert refused.code == "other_epoch"
                shared, now = re.findall(r"after=(\d+)&epoch=(\w+)", refused.remedy)[0]
                assert self.lines[-1]["number"] > int(shared)
                self.lines = [row | {"epoch": now} for row in self.lines if row["number"] <= int(shared)]
                continue
            if not lines:
                return
            for row in map(json.loads, lines):
                assert not self.lines or row["number"] > self.lines[-1]["number"]
                self.lines.append(row)

    @invariant()
    def balances_are_those_of_the_books(self) -> None:
        self.place.steps += 1
        for one in self.ledgers[0].balances():
            limit = self.books.budgets[one.budget]
            wanted = (limit.total, self.books.held(one.budget), self.books.spent(one.budget), limit.cap)
            assert (one.total, one.held, one.spent, one.user_cap) == wanted

    def teardown(self) -> None:
        try:
            if hasattr(self, "ledgers"):
                self.follow()
                self.look_at_all()
        finally:
            for ledger in getattr(self, "ledgers", ()):
                ledger.close()

    def look_at_all(self) -> None:
        """The log has what was answered and reported, a follower knows it, and every balance has its entries."""
        found = {one.public_id: one for one in self.ledgers[0].decided(0, 100_000)}
        assert list(found) == [self.ids[key].public_id for key in self.books.rows]
        followed: dict[str, dict[str, Any]] = {}
        erased = []
        for line in self.lines:
            true = ("reward",) if line["change"] == "refuse" else ("status", "reward", "amounts")
            if "decision_id" in line:
                known = followed.setdefault(line["decision_id"], {})
                known.update({name: line[name] for name in true if name in line})
            erased += line.get("decision_ids", [])
        assert list(followed) == list(found)
        names: dict[str, str] = {}
        for request, row in self.books.rows.items():
            one = found[self.ids[request].public_id]
            # Whoever is forgotten has another name in the ledger, the same for all of their decisions.
            assert names.setdefault(row.user, one.user) == one.user
            assert (one.user == row.user) == (one.request == request) == (row.user not in self.forgotten)
            assert (one.public_id in erased) == (row.user in self.forgotten)
            assert (one.step, one.status.value, one.reward) == (row.step, row.status, row.reward)
            assert dict(one.spent) == row.spent
            assert list(json.loads(one.probabilities).values()) == pytest.approx(row.shares)
            follower = followed[one.public_id]
            assert (follower["status"], follower["reward"]) == (row.status, row.reward)
            assert follower["amounts"] == row.spent
        assert len(set(names.values())) == len(names)
        for lost in self.lost[-5:]:
            outcome = Settle(lost.decision, 1.0, {}, self.now, lost.public_id)
            (refused,) = self.ledgers[1].apply([outcome])
            assert isinstance(refused, Refused)
            assert refused.refusal is Refusal.OTHER_DECISION
        verified = verify(self.ledgers[0])
        assert verified.is_sound, verified.differences


def in_groups(wanted: list[tuple[DecisionRequest, Any]]) -> Iterator[list[tuple[DecisionRequest, Any]]]:
    """Requests in the order in which they are decided: a group has one of each user."""
    while wanted:
        group = list({one[0].user: one for one in reversed(wanted)}.values())[::-1]
        group.sort(key=lambda one: next(place for place, each in enumerate(wanted) if each is one))
        yield group
        wanted = [one for one in wanted if not any(one is each for each in group)]


@pytest.fixture
def place(two_budgets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A plan whose actions are text, and the same with numbers."""
    plan = Plan.load(two_budgets)
    named = {"text": plan, "numbers": replace(plan, policy=replace(plan.policy, catalogue=NUMBERS))}
    monkeypatch.setattr(Plan, "load", lambda folder: named[folder.name])
    funds = [Fund("coupons", 0, BEGAN, None, "cost"), Fund("messages", 0, BEGAN, None, "", 1)]
    found = Place(
        lambda: "",
        tmp_path / "backup.db",
        {
            mode: {
                name: load_active_plan(Path(name), funds, None, ServeSettings(mode=mode), 0)[0]  # type: ignore[arg-type]
                for name in named
            }
            for mode in MODES
        },
    )
    propose = LoadedPlan.propose

    def noted(self: LoadedPlan, asked: list[DecisionQuery], *given: Any) -> list[ActionDistribution]:
        wanted = propose(self, asked, *given)
        found.seen.update({(str(one.user), one.step): what for one, what in zip(asked, wanted, strict=True)})
        return wanted

    monkeypatch.setattr(LoadedPlan, "propose", noted)
    return found


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
@pytest.mark.parametrize(
    ("campaigns", "steps"),
    [pytest.param(25, 50, id="short"), pytest.param(550, 200, id="long", marks=pytest.mark.slow)],
)
def test_a_campaign_is_what_the_books_say(
    place: Place, request: pytest.FixtureRequest, tmp_path: Path, database: str, campaigns: int, steps: int
) -> None:
    """On both databases together 2,000 steps, and 200,000 in the slow suite."""
    numbers = iter(range(10**9))
    place.new_url = lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"
    if database == "postgresql":
        place.new_url = request.getfixturevalue("postgres").database
    machine = type("Campaign", (Played,), {"place": place})
    how = settings(max_examples=campaigns, stateful_step_count=steps, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=how)
    print(f"{place.steps:,} steps")
    assert place.steps >= 0.8 * campaigns * steps, "some campaigns end early"
