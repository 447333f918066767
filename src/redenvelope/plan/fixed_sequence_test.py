"""The fixed-sequence test: the most expensive plan of a ladder whose bound still holds, and its certificate.

The hypotheses "the plan on this rung costs more than the budget" are tested one after the other, each at the full
level, and the walk ends at the first that cannot be rejected. An error requires that the first true hypothesis is
rejected, so the level holds for the whole walk without a correction (fixed-sequence testing; "Learn then Test",
Angelopoulos et al. 2021). With several budgets every bound must hold on a rung (an intersection-union test). Rungs with
unreliable estimates are stepped over: they are not tested, and no plan ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.arrays import FloatArray
from redenvelope.dual.solution import BudgetStatus, DualStatus
from redenvelope.errors import UsageError, require_whole
from redenvelope.evaluation.confidence import Estimate
from redenvelope.evaluation.diagnostics import Reason, Weight
from redenvelope.plan.certificate import UNDER_SPENT, BudgetFigure, Certificate
from redenvelope.plan.ladder import Ladder, Place
from redenvelope.plan.policy import DeployedPolicy, policy_sha256
from redenvelope.wording import counted, number

Holds = Callable[[FloatArray, FloatArray], NDArray[np.bool_]]
"""Lower and upper bounds [outcomes, …] -> whether the promise (budgets or target) holds, […]."""

# Shares tested between two rungs; more of them would spend less than a thousandth more of the gap between the rungs.
_SHARES = 200
# A mixture that moves the cost by less than this share is not worth a second price.
_LEAST_MOVE = 0.0025
# A certified plan that uses less than this share of its budget, and would earn more with more, gets a warning.
_LEAST_USED = 0.5


@dataclass(frozen=True)
class Stop:
    """Where a walk ended."""

    place: Place
    status: DualStatus
    """converged; budget_slack where the walk reached the last rung; budget_infeasible where even the first rung's
    estimate breaks the promise."""
    holds: bool
    """Whether the bound of some rung held. If not, the place is chosen by the estimates alone and certifies nothing."""


def climb(ladder: Ladder, budgets: Sequence[float], confidence: float) -> Stop:
    """Walk up from the cheapest plan while the upper bound of every cost is within its budget, [budgets]."""
    if len(budgets) != len(ladder.rungs[0].prices):
        raise UsageError(f"the plan has {counted(len(ladder.rungs[0].prices), 'cost')}; give as many budgets")
    limits = np.asarray(budgets, dtype=np.float64)[:, None]

    def holds(lower: FloatArray, upper: FloatArray) -> NDArray[np.bool_]:
        return np.asarray((upper[1:] <= limits).all(axis=0))

    estimates = np.asarray((ladder.means[1:] <= limits).all(axis=0))
    return _walk(ladder, holds, estimates, confidence, 1)


def descend(ladder: Ladder, target_reward: float, confidence: float) -> Stop:
    """Walk down from the most expensive plan while the lower bound of the reward reaches the target."""

    def holds(lower: FloatArray, upper: FloatArray) -> NDArray[np.bool_]:
        return np.asarray(lower[0] >= target_reward)

    return _walk(ladder, holds, ladder.means[0] >= target_reward, confidence, -1)


def _walk(ladder: Ladder, holds: Holds, estimates: NDArray[np.bool_], confidence: float, step: int) -> Stop:
    """Walk up (`step` 1) or down (−1). `estimates` says where the estimate alone keeps the promise, [rungs]."""
    passed = holds(*ladder.bounds(confidence))
    order = [rung for rung in range(len(ladder.rungs))[::step] if not ladder.unreliable[rung]]
    stood = _first_failing(passed[order])
    if not stood:
        return _nowhere(ladder, estimates, step)
    rung = order[stood - 1]
    if stood == len(order):
        slack = DualStatus.BUDGET_SLACK if rung == range(len(ladder.rungs))[::step][-1] else DualStatus.CONVERGED
        return Stop(Place(rung), slack, True)
    if order[stood] != rung + step:  # the rung in between is unreliable, so no mixture with it
        return Stop(Place(rung), DualStatus.CONVERGED, True)
    return Stop(_mixed(ladder, rung, step, holds, confidence), DualStatus.CONVERGED, True)


def _mixed(ladder: Ladder, rung: int, step: int, holds: Holds, confidence: float) -> Place:
    """The last mixture of a rung and the walk's next one before the first mixture whose bound fails."""
    lower_rung = min(rung, rung + step)
    shares = np.linspace(0.0, 1.0, _SHARES + 1)[::step]
    means, low, high = ladder.between(lower_rung, shares, confidence)
    last = max(_first_failing(holds(low, high)) - 1, 0)
    moved = np.abs(means[1:, last] - means[1:, 0])
    if (moved <= _LEAST_MOVE * np.abs(means[1:, 0])).all() or shares[last] in (0.0, 1.0):
        return Place(rung)
    return Place(lower_rung, float(shares[last]))


def _first_failing(passed: NDArray[np.bool_]) -> int:
    """Number of entries before the first False."""
    failing = np.flatnonzero(~passed)
    return int(failing[0]) if len(failing) else len(passed)


def _nowhere(ladder: Ladder, estimates: NDArray[np.bool_], step: int) -> Stop:
    """The stop if no bound holds: where a walk by estimates alone would end, so that the refused plan can be shown."""
    order = list(range(len(ladder.rungs))[::step])
    reached = _first_failing(estimates[order])
    if not reached:
        return Stop(Place(order[0]), DualStatus.BUDGET_INFEASIBLE, False)
    return Stop(Place(order[reached - 1]), DualStatus.CONVERGED, False)


FIRST = "cost"
"""Name of a budget that was given without one."""


@dataclass(frozen=True)
class BudgetTarget:
    """A budget that is asked for."""

    name: str
    limit: float | None
    """Mean cost per user; None if a target reward is asked for."""
    audience: int | None = None
    """Number of users in the campaign, where known."""
    set_aside: float = 0.0
    """What of the limit is left to new actions, which are no part of what is tested."""


@dataclass(frozen=True)
class Question:
    """What a plan is asked for: the most reward within its budgets, or the least cost for a target reward."""

    budgets: tuple[BudgetTarget, ...]
    """At least one."""
    target_reward: float | None
    """Mean reward per user; only without budget limits."""
    confidence: float
    for_all_prices: bool = False
    """Whether the bounds must hold simultaneously at all prices."""

    def __post_init__(self) -> None:
        if (self.budget is None) == (self.target_reward is None):
            raise UsageError("give either --budget, the mean cost per user, or --target-reward")
        named = {each.name if len(self.budgets) > 1 else "budget": each.limit for each in self.budgets}
        for name, wanted in (*named.items(), ("target reward", self.target_reward)):
            if wanted is None:
                continue
            if isinstance(wanted, bool) or not isinstance(wanted, int | float | np.number) or not np.isfinite(wanted):
                raise UsageError(f"the {name} must be a number, not {wanted!r}")
            if name != "target reward" and wanted < 0:
                raise UsageError(f"the {name} must be 0 or more, not {wanted}: it is a mean cost per user")
        for each in self.budgets:
            if each.audience is not None:
                require_whole("an audience", each.audience)
            if each.set_aside and (each.limit is None or each.limit <= each.set_aside):
                asked = "a target reward" if each.limit is None else f"a budget of {number(each.limit)}"
                raise UsageError(
                    f"{asked} cannot be promised with new actions, which may add {number(each.set_aside)} "
                    "to the mean cost, and whose reward is unknown; fit without [[new]], or give them a smaller share"
                )
        if not 0.5 < self.confidence < 1:
            raise UsageError(f"the confidence is a share between 0.5 and 1, such as 0.95, not {self.confidence}")

    @classmethod
    def of(cls, budget: float | None, target_reward: float | None, confidence: float) -> Question:
        """A question about a single unnamed budget."""
        return cls((BudgetTarget(FIRST, budget),), target_reward, confidence)

    @property
    def budget(self) -> float | None:
        """The first budget's limit; None if a target reward is asked for."""
        return self.budgets[0].limit

    @property
    def limits(self) -> list[float]:
        """What the plan's own mean cost per user may be, by budget, [budgets]."""
        return [each.limit - each.set_aside for each in self.budgets if each.limit is not None]


@dataclass(frozen=True)
class Checked:
    """The logged figures and identity of the check users of a ladder."""

    logged: tuple[float, ...]
    """Reward, then the cost against each budget, per user as logged, [outcomes]."""
    fold_sha256: str
    objections: tuple[Reason, ...] = ()
    """Objections of the audit and of the model's fidelity to any plan from this log."""


def walk(ladder: Ladder, question: Question) -> Stop:
    """Run the fixed-sequence test that a question asks for."""
    level = _level(ladder, question)
    if question.budget is not None:
        return climb(ladder, question.limits, level)
    assert question.target_reward is not None, "one of the two is asked"
    return descend(ladder, question.target_reward, level)


def _level(ladder: Ladder, question: Question) -> float:
    """Confidence level of each single bound."""
    return ladder.each_confidence(question.confidence) if question.for_all_prices else question.confidence


def certify(ladder: Ladder, stop: Stop, question: Question, policy: DeployedPolicy, checked: Checked) -> Certificate:
    """The certificate of a policy that was priced at a stop.

    With a target, it certifies that the reward reaches the target, and the budget is what the plan then needs: the
    upper bound of its cost.
    """
    reward, *costs = ladder.figures(stop.place, _level(ladder, question))
    budgets = tuple(_budget_figures(ladder, stop, question, costs, checked))
    not_kept = _not_kept if len(budgets) > 1 else _not_reached
    reasons = [
        *not_kept(ladder, stop, question, budgets),
        *ladder.reasons(stop.place),
        *checked.objections,
        *_under_spent(ladder, stop, question, budgets, len(policy.catalogue)),
        *_end(stop, question, reward, budgets),
        *_no_gain(reward, budgets[0], checked.logged[0]),
    ]
    refused = any(reason.weight is Weight.REFUSAL for reason in reasons)
    return Certificate(
        status="refused" if refused else "certified",
        reasons=tuple(sorted(reasons, key=lambda reason: reason.weight is not Weight.REFUSAL)),
        budgets=budgets,
        method=policy.specification.method,
        confidence=question.confidence,
        reward=reward,
        logged_reward=checked.logged[0],
        diagnostics=ladder.diagnostics(stop.place),
        users=ladder.people,
        members=len(policy.members),
        clusters=ladder.clusters,
        most_per_user=ladder.most_per_user,
        policy_sha256=policy_sha256(policy),
        fold_sha256=checked.fold_sha256,
        target_reward=question.target_reward,
    )


def _budget_figures(
    ladder: Ladder, stop: Stop, question: Question, costs: Sequence[Estimate], checked: Checked
) -> Iterator[BudgetFigure]:
    """Each budget with its estimate, shadow price and status."""
    duals, logged = ladder.duals(stop.place), checked.logged[1:]
    for asked, cost, dual, spent in zip(question.budgets, costs, duals, logged, strict=True):
        limit = cost.upper if asked.limit is None else asked.limit
        status = BudgetStatus.BINDING if dual > 0 else BudgetStatus.SLACK
        if not stop.holds and cost.estimate > limit - asked.set_aside:
            status = BudgetStatus.EXCEEDED
        total = None if asked.audience is None else limit * asked.audience
        figures = (cost, float(dual), status, spent, asked.audience, total, asked.set_aside)
        yield BudgetFigure(asked.name, limit, *figures)


Budgets = tuple[BudgetFigure, ...]


def _not_kept(ladder: Ladder, stop: Stop, question: Question, budgets: Budgets) -> Iterator[Reason]:
    """Why no rung keeps all of several budgets: which ones fail together, and by how much."""
    if stop.holds or ladder.unreliable.all():
        return
    over = [
        f"{each.name} would cost {number(each.cost.estimate)}, at most {number(each.cost.upper)}, of "
        f"{number(each.limit)} ({number(each.cost.upper - each.limit)} too much)"
        for each in budgets
        if each.cost.upper > each.limit
    ]
    if stop.status is DualStatus.BUDGET_INFEASIBLE:
        said = "no plan keeps all budgets together; of the one that comes nearest"
    elif over:
        said = f"no plan is sure to keep all budgets at {question.confidence:.0%} confidence; of the safest"
    else:
        return  # the bounds hold, but the estimates are unreliable: the rung's own reasons say why
    yield Reason(
        "over_budget",
        Weight.REFUSAL,
        f"{said}, {' and '.join(over)}; ask for at least that, for actions that cost less, or bring more users",
    )


def _not_reached(ladder: Ladder, stop: Stop, question: Question, budgets: Budgets) -> Iterator[Reason]:
    """Why no rung is within the only budget, or none reaches the target."""
    if stop.holds or ladder.unreliable.all():  # if all are unreliable, the rungs' own reasons say why
        return
    if question.target_reward is not None:
        yield _target_missed(ladder, question, question.target_reward)
        return
    level, budget, cost = f"{question.confidence:.0%} confidence", budgets[0].limit, budgets[0].cost
    if stop.status is DualStatus.BUDGET_INFEASIBLE:
        yield Reason(
            "over_budget",
            Weight.REFUSAL,
            f"no plan is as cheap as the budget of {number(budget)} per user: the cheapest costs "
            f"{number(cost.estimate)}, at most {number(cost.upper)} at {level}; ask for at least that, or for actions "
            "that cost less",
        )
        return
    cheapest = ladder.figures(Place(int(np.argmin(ladder.unreliable))), _level(ladder, question))[1]
    said = f"costs {number(cheapest.estimate)} per user, at most {number(cheapest.upper)} at {level}"
    if ladder.unreliable[0]:
        said = f"the cheapest plan whose estimates can be relied on {said}, above the budget of {number(budget)}"
        yield Reason("over_budget", Weight.REFUSAL, f"{said}; ask for at least that, or bring more users")
        return
    room, reach = budget - cheapest.estimate, cheapest.upper - cheapest.estimate
    enough = int(np.ceil(ladder.users * (reach / max(room, 1e-12)) ** 2))
    units = "users" if ladder.clusters is None else "clusters"
    said = f"even the cheapest plan {said}, above the budget of {number(budget)}; about {enough:,} {units} to check on"
    yield Reason("over_budget", Weight.REFUSAL, f"{said} would do (now {ladder.users:,}), or a larger budget")


def _target_missed(ladder: Ladder, question: Question, target: float) -> Reason:
    best = ladder.figures(Place(len(ladder.rungs) - 1), _level(ladder, question))[0]
    return Reason(
        "target_missed",
        Weight.REFUSAL,
        f"no plan is sure to earn {number(target)} per user: the best one earns {number(best.estimate)}, at least "
        f"{number(best.lower)} at {question.confidence:.0%} confidence; ask for less, or bring more users",
    )


def _under_spent(ladder: Ladder, stop: Stop, question: Question, budgets: Budgets, actions: int) -> Iterator[Reason]:
    """Warn if most of every budget is left although a larger one would earn more: why, and what helps."""
    used = [each.cost.estimate / each.limit if each.limit > 0 else 1.0 for each in budgets]
    if (
        not stop.holds
        or question.budget is None
        or max(used) >= _LEAST_USED
        or not any(each.dual > 0 for each in budgets)
    ):
        return
    dearer = ladder.rungs[stop.place.rung + 1 :]
    faults = [reason for rung in dearer[:1] for reason in rung.reasons if reason.weight is Weight.REFUSAL]
    users = f"{ladder.people:,} users check {counted(actions, 'action')}"
    if faults:
        why = f"nothing is known for sure of any plan that spends more: {faults[0].message}"
    else:
        why = (
            f"what dearer plans cost is too uncertain, and their bounds are above the budget ({users}, about "
            f"{number(ladder.people / actions, 2)} for each)"
        )
    yield Reason(
        UNDER_SPENT,
        Weight.WARNING,
        f"the plan uses {max(used):.0%} of the budget although more of it would earn more: {why}. Do not deploy it for "
        "what it earns. What helps: a log of more users, fewer actions (leave out or merge those that hardly differ), "
        "fewer steps, or a behaviour policy that spreads its choices less thinly",
    )


def _end(stop: Stop, question: Question, reward: Estimate, budgets: Budgets) -> Iterator[Reason]:
    """Warn if more budget would buy nothing, or less reward save nothing; not with several budgets."""
    if stop.status is not DualStatus.BUDGET_SLACK or len(budgets) > 1:
        return
    figures = f"it earns {reward.estimate:.6g} for {budgets[0].cost.estimate:.6g}"
    if question.target_reward is None:
        message = (
            f"the budget of {budgets[0].budget:.6g} per user is more than the best plan can use: {figures}, and more "
            "budget would buy nothing"
        )
    else:
        message = f"even the cheapest plan earns the target of {question.target_reward:.6g} per user: {figures}"
    yield Reason(stop.status.value, Weight.WARNING, message)


def _no_gain(reward: Estimate, first: BudgetFigure, logged: float) -> Iterator[Reason]:
    """Warn if the plan earns, or may earn, less than was logged, although it is within its budget."""
    if reward.estimate >= logged:
        return
    sure = "earns less than" if reward.upper < logged else "may earn less than"
    yield Reason(
        "no_gain",
        Weight.WARNING,
        f"the plan {sure} what was logged on the same users: {number(reward.estimate)} against {number(logged)} per "
        f"user, for a cost of {number(first.cost.estimate)} against {number(first.logged)}",
    )
