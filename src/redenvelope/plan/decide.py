"""Decisions: the probability of each action, the action drawn, and its expected cost and reward.

The `DecisionEngine` makes every decision of a plan, from encoded states to draws: for a table (`decide_frame`), for one
user at a time (`Decider`), and for groups of requests (`serve`). `Decider.explain` returns an `Explanation`: what every
action would be worth to the user at the price they follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import BoolArray, Float32Array, FloatArray, IntArray
from redenvelope.engine.programs import keep_programs
from redenvelope.errors import ModelError, UsageError
from redenvelope.log.cleaning.dates import dates_of
from redenvelope.log.cleaning.ids import marks_of, read_steps, repeated, serving_ids
from redenvelope.log.columns import HOLDOUT
from redenvelope.log.eligibility import BETWEEN, ELIGIBLE, listed_actions
from redenvelope.log.encoding.row import step_number
from redenvelope.log.findings import EXAMPLES, Finding, Findings
from redenvelope.log.log import ActionCatalogue
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import DeployedPolicy, Rows
from redenvelope.policies.action_values import ActionValues, Decided
from redenvelope.policies.eligibility_state import (
    EligibilityRows,
    EligibilityState,
    allowed,
    eligibility_of_frame,
    eligibility_of_row,
    is_feature,
)
from redenvelope.policies.new_actions import charged, extrapolated, known_history, with_new
from redenvelope.policies.policy import normalised
from redenvelope.policies.pricing import Pricing
from redenvelope.policies.rules import RuleConstraint
from redenvelope.randomness import draw, fraction, user_key, user_keys
from redenvelope.wording import html_block, number

ACTION_STREAM = "action"
"""Name of the random stream that actions are drawn with."""

_HOLDOUT_STREAM, _HOLDOUT_SEED = HOLDOUT, 0  # fixed, so that the control group is the same at all steps


class Decisions(NamedTuple):
    """What a plan decides for some users."""

    probabilities: FloatArray
    """Probability of each action, [users, actions]."""
    outcomes: FloatArray
    """Expected outcomes of this step alone, [outcomes, users, actions]."""
    followed: NDArray[np.intp]
    """Index of the row of prices that each user follows, [users]."""
    uniforms: FloatArray
    """Uniform numbers that the actions are drawn with, fixed by user, step and seed, [users]."""
    held_out: NDArray[np.bool_]
    """Whether each user is in the control group, which gets the cheapest eligible action, [users]."""

    def actions(self) -> NDArray[np.intp]:
        """The actions drawn, [users]."""
        return draw(self.probabilities, self.uniforms)


class DecisionEngine:
    """Makes the decisions of a deployed policy, for any number of users at once."""

    def __init__(self, policy: DeployedPolicy, seed: int = 0, least_prices: int = 1, waiting: bool = False) -> None:
        """Pass `waiting` where decisions are made for few users at a time. Programs are compiled per number of price
        rows, so padding to `least_prices` rows avoids a compilation when a campaign's pricing gains a row."""
        keep_programs()  # cache compiled programs for the next process
        self._policy, self._seed, self._least, self._waiting = policy, seed, least_prices, waiting

    def decide(
        self,
        states: Float32Array,
        step: IntArray,
        eligibility: EligibilityState | None,
        keys: NDArray[np.uint64],
        pricing: Pricing | None = None,
        listed: BoolArray | None = None,
    ) -> Decisions:
        """Decide for users with these keys [users], given their states [users, width] and steps [users].

        `eligibility` says which actions each may get, `pricing` by default the policy's own. `listed` [users, new] are
        the new actions in the lists of what users may get; None: all.
        """
        policy = self._policy
        pricing = policy.pricing if pricing is None else pricing
        followed = pricing.drawn(keys, self._seed)
        table = _price_table(pricing, self._least)
        with np.errstate(over="ignore", invalid="ignore"):  # NaN and infinity are refused below
            left = policy.steps_left(step)

            def of_member(own: DeployedPolicy, rows: Rows) -> Decided:
                some = None if eligibility is None else eligibility[rows]
                return own.valuer.decided(states[rows], left[rows], table, some, self._waiting)

            found = Decided(*policy.by_member(keys, of_member, (0, 1)))
            probabilities = normalised(found.probabilities[np.arange(len(keys)), followed])
        outcomes = np.array(found.outcomes, dtype=np.float64)
        np.maximum(outcomes[1:], 0.0, out=outcomes[1:])  # logged costs are never below 0, but a model may predict one
        _require_numbers(probabilities.sum(axis=1) + outcomes.sum(axis=(0, 2)))
        held_out = self._hold_out(probabilities, states, step, eligibility, keys)
        if policy.new:
            may = self._may_get_new(states, step, eligibility, listed) & ~held_out[:, None]
            probabilities, outcomes = with_new(policy.new, probabilities, may), charged(policy.new, outcomes)
        return Decisions(probabilities, outcomes, followed, fraction(keys, ACTION_STREAM, self._seed, step), held_out)

    def _may_get_new(
        self, states: Float32Array, step: IntArray, eligibility: EligibilityState | None, listed: BoolArray | None
    ) -> BoolArray:
        """Who may get which new action, [users, new]: those who may, by the rules, get the one that it is like."""
        policy, likes = self._policy, [each.like for each in self._policy.new]
        may = np.ones((len(states), len(likes)), dtype=bool) if listed is None else listed
        if policy.constraint is None or eligibility is None:
            return may
        by_rules = policy.constraint.eligible(states, policy.steps_left(step), eligibility.memory)
        return np.asarray(may & by_rules[:, likes])

    def _hold_out(
        self,
        probabilities: FloatArray,
        states: Float32Array,
        step: IntArray,
        eligibility: EligibilityState | None,
        keys: NDArray[np.uint64],
    ) -> NDArray[np.bool_]:
        """Who is held out, [users]. Sets their probabilities [users, actions] to the control group's, in place."""
        policy = self._policy
        if not policy.holdout:
            return np.zeros(len(keys), dtype=bool)
        held_out = fraction(keys, _HOLDOUT_STREAM, _HOLDOUT_SEED) < policy.holdout
        if held_out.any():
            may = np.ones_like(probabilities, dtype=bool)
            if eligibility is not None:
                may = np.asarray(allowed(eligibility, policy.constraint, states, policy.steps_left(step)))
            cheapest = may.argmax(axis=1)  # actions are ordered by cost
            probabilities[held_out] = np.eye(probabilities.shape[1])[cheapest[held_out]]
        return held_out


def stacked(eligibilities: Sequence[EligibilityState | None], actions: int, columns: int) -> EligibilityState:
    """One eligibility state for several users, from a state of one row each; None allows every action.

    Users without restrictions get a row too, so that one compiled program serves all.
    """
    rows = len(eligibilities)
    always, memory = np.ones((rows, actions), dtype=bool), np.zeros((rows, columns), np.int16)
    for row, eligibility in enumerate(eligibilities):
        if eligibility is not None:
            always[row], memory[row] = eligibility.always[0], eligibility.memory[0]
    return EligibilityState(always, memory)


@lru_cache(maxsize=64)
def _price_table(pricing: Pricing, rows: int) -> FloatArray:
    """Prices [prices, budgets] of at least `rows` rows, the last one repeated; cached, as the same ones recur."""
    table = pricing.table
    return np.concatenate([table, np.repeat(table[-1:], max(rows - len(table), 0), axis=0)])


def _require_numbers(totals: ArrayLike) -> None:
    """Refuse decisions with NaN or infinite totals [users]: the learned weights are damaged or diverge."""
    finite = np.isfinite(totals)
    if not finite.all():
        wrong = np.flatnonzero(~finite)
        raise ModelError(
            f"row {wrong[0] + 1:,}: what the plan learned gives no number for this user ({len(wrong)} row(s) like "
            "it); fit the plan again, or ask who made it"
        )


# Decisions for a table of users.


def decide_frame(
    plan: Plan, users: pl.DataFrame, seed: int, history: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, tuple[Finding, ...]]:
    """One decision per row of a table (`user`, `step` and the features), and findings about the table.

    `history` holds the users' earlier steps, for plans whose decisions depend on them.
    """
    users = _with_ids(plan, users)
    _refuse_twice(users)
    return _decided(plan, users, seed, history)


def decide_part(
    plan: Plan, users: pl.DataFrame, seed: int, history: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, tuple[Finding, ...]]:
    """As `decide_frame`, for a part of a larger table that was already checked for repeated users and steps."""
    return _decided(plan, _with_ids(plan, users), seed, history)


def _decided(
    plan: Plan, users: pl.DataFrame, seed: int, history: pl.DataFrame | None
) -> tuple[pl.DataFrame, tuple[Finding, ...]]:
    policy = plan.policy
    history = known_history(policy.new, plan.catalogue, history)
    states, findings = policy.encoder.encode_frame(users, history)
    step = read_steps(users["step"]).to_numpy()
    found, listed = eligibility_of_frame(policy.constraint, policy.encoder, plan.catalogue, users, history), None
    if policy.new and ELIGIBLE in users.columns and not is_feature(ELIGIBLE, policy.encoder):
        listed = listed_actions(users[ELIGIBLE], policy.offered)[:, len(plan.catalogue) :]
    keys = user_keys(users["user"])
    decided = DecisionEngine(policy, seed).decide(states, step, found.eligibility, keys, listed=listed)
    rows, action = np.arange(len(users)), decided.actions()
    decisions = pl.DataFrame(
        {
            "user": users["user"],
            "step": users["step"],
            "action": _labels(policy.offered).gather(action),
            "propensity": decided.probabilities[rows, action],
            "expected_reward": decided.outcomes[0, rows, action],
            "expected_cost": decided.outcomes[1, rows, action],
            **{
                expected_column(name): decided.outcomes[place, rows, action]
                for place, name in enumerate(policy.several_budgets, start=1)
            },
            **({HOLDOUT: decided.held_out} if policy.holdout else {}),
        }
    )
    if found.eligibility is None:
        return decisions, findings
    mask = allowed(found.eligibility, policy.constraint, states, policy.steps_left(step))
    mask = np.concatenate([mask, decided.probabilities[:, len(plan.catalogue) :] > 0], axis=1)
    return decisions.with_columns(_listed(policy.offered, mask)), findings + _nothing_left(plan, found)


def expected_column(budget: str) -> str:
    """Name of the column with the expected charge to one of several budgets."""
    return f"expected_cost_{budget}"


def _listed(offered: ActionCatalogue, mask: BoolArray) -> pl.Series:
    """The actions of a mask [users, actions] as lists of labels, which record the rules behind the decisions."""
    different, codes = np.unique(mask, axis=0, return_inverse=True)
    labels = np.array(offered.labels, dtype=object)
    lists = pl.Series(ELIGIBLE, [labels[row].tolist() for row in different], dtype=pl.List(pl.String))
    return lists.gather(codes.reshape(-1))


def _nothing_left(plan: Plan, found: EligibilityRows) -> tuple[Finding, ...]:
    rows = np.flatnonzero(found.nothing)
    findings = Findings()
    if len(rows):
        findings.add(
            "serving_nothing_eligible",
            count=len(rows),
            rows=[int(row) + 1 for row in rows[:EXAMPLES]],
            label=plan.catalogue.labels[0],
        )
    return findings.sorted()


def require_users(users: pl.DataFrame) -> None:
    """Refuse a table without the columns `user` and `step`."""
    for name in ("user", "step"):
        if name not in users.columns:
            raise UsageError(f"the table of users has no column {name!r}; rename yours, or add it")


def _with_ids(plan: Plan, users: pl.DataFrame) -> pl.DataFrame:
    """The table with its user ids in canonical form, refused if it has none of the plan's features."""
    require_users(users)
    encoder = plan.policy.encoder
    features = [number.name for number in encoder.numbers] + [category.name for category in encoder.categories]
    known = {*features, *(name for feature in features for name in dates_of(feature))}
    if features and not known & set(users.columns):
        raise ModelError(
            f"the table has none of the {len(features)} features the plan was made with ({features[0]}, …); "
            "join them to the users"
        )
    return users.with_columns(serving_ids(users["user"]))


def _refuse_twice(users: pl.DataFrame) -> None:
    rows = pl.DataFrame({"user": users["user"], "step": read_steps(users["step"])})
    if not len(repeated(marks_of(rows))):
        return
    twice = rows.select(pl.struct("user", "step").is_duplicated() & pl.col("step").is_not_null()).to_series()
    if twice.any():
        row = int(twice.arg_true()[0]) + 1
        raise ModelError(
            f"row {row}: {int(twice.sum())} row(s) share a user and step with another row; keep one row for each, "
            "or the user would be decided for twice"
        )


def _labels(catalogue: ActionCatalogue) -> pl.Series:
    """The labels as decisions write them, [actions]: numbers where the log's are, integers if all of them are whole."""
    labels = pl.Series("action", catalogue.labels)
    numbers = labels.cast(pl.Float64) if catalogue.numeric else labels
    return numbers.cast(pl.Int64) if catalogue.numeric and (numbers == numbers.floor()).all() else numbers


# Decisions for one user at a time in a long-lived process, with plain mappings as input.


@dataclass(frozen=True)
class Decision:
    """A user's decision at one step."""

    user: int | str
    step: int
    action: str | int | float
    """The action's label, as the log wrote it."""
    propensity: float
    """Probability with which the action was drawn. Log it: decisions with propensities are the next log."""
    probabilities: dict[str, float]
    """Probability of every action, by label."""
    expected_reward: float
    """For this step alone."""
    expected_cost: float
    """For this step alone, as the model predicts it for this user and action; not an upper bound."""
    prices: tuple[float, ...]
    """The prices that the user follows, one per budget."""
    expected_costs: dict[str, float] = field(default_factory=dict)
    """With several budgets, by budget name; the first is `expected_cost`."""
    unfamiliar: tuple[str, ...] = ()
    """Features with values outside of the training data: numbers beyond its range, and unknown labels."""
    holdout: bool = False
    """Whether the user is in the control group, which gets the cheapest eligible action. Log it with the decision."""


@dataclass(frozen=True)
class Alternative:
    """One action that a user might get, with the plan's predictions for it."""

    action: str
    eligible: bool
    probability: float
    reward: float
    """From now to the end of the campaign, if the plan is followed afterwards."""
    costs: dict[str, float]
    """Costs over the same steps, by budget name."""
    worth: float | None
    """The reward minus the costs at their prices; None where a price is infinite."""
    expected_reward: float
    """For this step alone."""
    expected_cost: float
    forbidden_by: tuple[str, ...]
    """The rules that forbid it at this step, in words."""
    extrapolated: bool = False
    """Whether the action is new, so that its outcomes are extrapolated from those of other actions."""


_MOST_TOLD = 8
"""Number of alternatives that the sentences list."""


@dataclass(frozen=True)
class Explanation:
    """Why a user gets what they get at a step: the alternatives, those worth most first."""

    user: int | str
    step: int
    action: str | int | float
    """The action drawn."""
    propensity: float
    prices: dict[str, float]
    """Price of one unit of each budget for this user."""
    alternatives: tuple[Alternative, ...]
    unfamiliar: tuple[str, ...] = ()
    """Features with values outside of the training data."""
    holdout: bool = False
    """Whether the user is in the control group."""
    missing: tuple[str, ...] = ()
    """Features of the plan that the row does not have."""

    def sentences(self) -> list[str]:
        """The explanation in words."""
        best = max(
            (one for one in self.alternatives if one.eligible and not one.extrapolated),
            key=lambda one: -sum(one.costs.values()) if one.worth is None else one.worth,
        )
        charged = ", ".join(f"{number(price)} per unit of {name}" for name, price in self.prices.items())
        drawn = next(one for one in self.alternatives if one.action == str(self.action))
        said = [
            f"User {self.user!r} gets {str(self.action)!r} at step {self.step}, drawn with probability "
            f"{self.propensity:.3g}."
        ]
        if self.holdout:
            said.append("The user is in the control group, chosen by the hash of the id, and gets the cheapest action.")
        if best.worth is None or drawn.worth is None:
            said.append(f"No plan keeps the budget at any price, so that the cheapest is taken: {best.action!r}.")
        else:
            worth = f"a reward of {number(best.reward)} minus a cost of {_listed_costs(best)}, charged {charged}"
            said.append(f"{best.action!r} is worth most to the end of the campaign: {number(best.worth)} = {worth}.")
        by_chance = drawn is not best and not drawn.extrapolated and not self.holdout
        if by_chance and best.worth is not None and drawn.worth is not None:
            said.append(
                f"{drawn.action!r} is worth {number(best.worth - drawn.worth)} less; it was drawn because the plan "
                "leaves a share to chance, so that the next log has something to learn from."
            )
        usual = [one for one in self.alternatives if not one.extrapolated]
        others = [one for one in usual if one.eligible and one is not best and one is not drawn]
        said += [_less(one, best) for one in others[:_MOST_TOLD] if one.worth is not None and best.worth is not None]
        if len(others) > _MOST_TOLD:
            said.append(f"{len(others) - _MOST_TOLD} more alternatives are worth less.")
        for one in self.alternatives:
            said += [f"{one.action!r} is not eligible: {rule}." for rule in one.forbidden_by]
        for one in self.alternatives:
            if one.extrapolated and one.probability > 0:
                said.append(
                    f"{one.action!r} is new and drawn for {one.probability:.2g} of such users, whatever it is worth. "
                    f"Extrapolated from its attributes, it earns {number(one.expected_reward)} and costs "
                    f"{number(one.expected_cost)} at this step."
                )
        if self.unfamiliar:
            said.append(f"Training never saw such values of {', '.join(self.unfamiliar)}: trust this less.")
        if self.missing:
            said.append(f"The row lacks {', '.join(self.missing)}, taken as missing: trust this less.")
        return said

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    def _repr_html_(self) -> str:
        rows = [
            (one.action, f"{one.probability:.3g}; worth {number(one.worth)}" if one.eligible else "not eligible")
            for one in self.alternatives
        ]
        return html_block(f"User {self.user}, step {self.step}", self.sentences(), rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = asdict(self)
        plain["prices"] = {name: price if np.isfinite(price) else "infinity" for name, price in self.prices.items()}
        return plain | {"sentences": self.sentences()}


def _listed_costs(one: Alternative) -> str:
    named = len(one.costs) > 1
    return ", ".join(f"{number(cost)}{f' of {name}' if named else ''}" for name, cost in one.costs.items())


def _less(one: Alternative, best: Alternative) -> str:
    """Why an alternative is worth less than the best, in words: what it earns and costs compared with it."""
    assert one.worth is not None
    assert best.worth is not None
    more = sum(one.costs.values()) - sum(best.costs.values())
    gains, costs = (
        f"{number(abs(gap), 3)} {'more' if gap >= 0 else 'less'}" for gap in (one.reward - best.reward, more)
    )
    return f"{one.action!r} is worth {number(best.worth - one.worth)} less: it earns {gains} and costs {costs}."


def _rank(one: Alternative) -> tuple[float, float]:
    """The order of alternatives: by worth, or by probability where no worth is known; those not eligible last."""
    return (1.0, 0.0) if not one.eligible else (0.0, -(one.probability if one.worth is None else one.worth))


class _Asked(NamedTuple):
    """One user and their encoded state, as the engine takes them."""

    user: int | str
    step: int
    state: Float32Array
    eligibility: EligibilityState | None
    listed: BoolArray | None
    """The actions of the request's list, [actions]; None without one."""
    unfamiliar: tuple[str, ...]


class Decider:
    """Makes the decisions of a plan for one row at a time; the same decisions as `Plan.allocate` makes for a table.

    The same up to rounding: in single precision and at a low temperature, propensities may differ by 1e-4, and so may
    the action if its random number falls that close to the edge of the action's share. For a table, a user's decision
    is the same to the last bit, whoever else is in the table.

    For example:

        decider = Decider("plan").warm()
        decision = decider.decide({"user": 17, "step": 0, "city": "Lyon", "visits": 3})
    """

    def __init__(self, plan: Plan | str | Path, seed: int = 0) -> None:
        """`plan` is a plan or the path of a plan folder."""
        plan = plan if isinstance(plan, Plan) else Plan.load(plan)
        policy = self._policy = plan.policy
        self._encoder, self._pricing = policy.encoder, policy.pricing
        self._steps = policy.specification.steps
        self._engine = DecisionEngine(policy, seed, waiting=True)
        self._constraint = policy.constraint
        self._labels, self._numeric = policy.offered.labels, plan.catalogue.numeric
        self._known = len(plan.catalogue)
        self._written = [_written(label, plan.catalogue.numeric, self._labels) for label in self._labels]
        self._budgets = policy.several_budgets
        self.unfamiliar: Counter[str] = Counter()
        """How often each feature had a value outside of the training data, since the decider was made."""

    def warm(self) -> Decider:
        """Make one decision per step and member for made-up users, so that compilation delays no real user."""
        past: list[dict[str, Any]] = []
        for step in range(self._encoder.first_step, self._encoder.first_step + self._steps):
            for user in self._policy.one_of_each():
                self.decide({"user": user, "step": step}, history=past)
            past.append({"step": step, "action": self._written[0], "reward": 0.0, "cost": 0.0})
        return self

    def decide(
        self,
        row: Mapping[str, Any],
        eligible: NDArray[np.bool_] | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
    ) -> Decision:
        """Decide for one user, given `user`, `step` and the features. `eligible` restricts the actions: a mask
        [actions], or a list of labels in the row itself.

        Missing features, unknown labels and values that are not numbers are treated as in a table. A plan that
        `needs_history` takes the user's earlier steps: rows with `step`, `action`, `reward` and `cost`.
        """
        asked = self._asked(row, eligible, history)
        user, step, unfamiliar, found = asked.user, asked.step, asked.unfamiliar, self._decided(asked)
        probabilities, outcomes, action = found.probabilities[0], found.outcomes[:, 0], int(found.actions()[0])
        if unfamiliar:
            self.unfamiliar.update(unfamiliar)
        return Decision(
            user=user,
            step=step,
            action=self._written[action],
            propensity=float(probabilities[action]),
            probabilities=dict(zip(self._labels, probabilities.tolist(), strict=True)),
            expected_reward=float(outcomes[0, action]),
            expected_cost=float(outcomes[1, action]),
            prices=self._pricing.prices[int(found.followed[0])],
            expected_costs={name: float(outcomes[1 + place, action]) for place, name in enumerate(self._budgets)},
            unfamiliar=unfamiliar,
            holdout=bool(found.held_out[0]),
        )

    def explain(
        self,
        row: Mapping[str, Any],
        eligible: NDArray[np.bool_] | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
    ) -> Explanation:
        """Why `decide` decides as it does for this user: what every alternative is worth at the user's prices."""
        policy = self._policy
        history = known_history(policy.new, policy.catalogue, history)
        asked = self._asked(row, eligible, history)
        user, step, state, eligibility, _, unfamiliar = asked
        found = self._decided(asked)
        prices = np.array([self._pricing.prices[int(found.followed[0])]])
        steps_left = policy.steps_left(np.array([step]))

        def of_member(own: DeployedPolicy, rows: Rows) -> ActionValues:
            return own.valuer.values(state[None], steps_left, prices, eligibility)

        keys = np.array([user_key(user)], dtype=np.uint64)
        values = ActionValues(*policy.by_member(keys, of_member, (0, 0, 1)))
        new = policy.new
        to_go = extrapolated(new, np.asarray(values.to_go, dtype=np.float64)[:, 0])[:, 0]
        now = extrapolated(new, found.outcomes[..., : self._known])[:, 0]
        names, finite = self._budgets or ("cost",), bool(np.isfinite(prices).all())
        worth = to_go[0] - prices[0] @ to_go[1:] if finite else None
        may = np.ones(self._known, dtype=bool)
        if eligibility is not None:
            may = np.asarray(allowed(eligibility, self._constraint, state[None], steps_left))[0]
        may = np.append(may, (found.probabilities[0, self._known :] > 0) | found.held_out)
        forbidden = self._forbidden(row, step, history, may, state[None], steps_left)
        alternatives = [
            Alternative(
                action=label,
                eligible=bool(may[place]),
                probability=float(found.probabilities[0, place]),
                reward=float(to_go[0, place]),
                costs={name: float(cost) for name, cost in zip(names, to_go[1:, place], strict=True)},
                worth=None if worth is None else float(worth[place]),
                expected_reward=float(now[0, place]),
                expected_cost=float(now[1, place]),
                forbidden_by=forbidden[place],
                extrapolated=place >= self._known,
            )
            for place, label in enumerate(self._labels)
        ]
        action = int(found.actions()[0])
        return Explanation(
            user=user,
            step=step,
            action=self._written[action],
            propensity=float(found.probabilities[0, action]),
            prices=dict(zip(names, prices[0].tolist(), strict=True)),
            alternatives=tuple(sorted(alternatives, key=_rank)),
            unfamiliar=unfamiliar,
            missing=self._encoder.missing_in(row),
            holdout=bool(found.held_out[0]),
        )

    def _asked(
        self, row: Mapping[str, Any], eligible: NDArray[np.bool_] | None, history: Sequence[Mapping[str, Any]] | None
    ) -> _Asked:
        require_row(row)
        user, history = _user_of(row.get("user")), known_history(self._policy.new, self._policy.catalogue, history)
        unfamiliar: list[str] = []
        state = self._encoder.encode_row(row, history, unfamiliar)
        step = step_number(row["step"])
        assert step is not None  # `encode_row` has refused a missing step
        listed = self._listed(row.get(ELIGIBLE)) if eligible is None else eligible
        if listed is not None:  # a mask of the known actions lists no new one
            listed = np.pad(listed, (0, len(self._labels) - len(listed)))
        known = None if listed is None else listed[: self._known]
        eligibility = eligibility_of_row(self._constraint, self._encoder, row, step, history, known).eligibility
        return _Asked(user, step, state, eligibility, listed, tuple(unfamiliar))

    def _decided(self, asked: _Asked) -> Decisions:
        columns = 0 if self._constraint is None else self._constraint.remembers
        keys, eligibility = np.array([user_key(asked.user)], dtype=np.uint64), asked.eligibility
        stack = stacked([eligibility], self._known, columns)
        new = None if asked.listed is None else asked.listed[None, self._known :]
        return self._engine.decide(asked.state[None], np.array([asked.step]), stack, keys, listed=new)

    def _forbidden(
        self,
        row: Mapping[str, Any],
        step: int,
        history: Sequence[Mapping[str, Any]] | None,
        may: NDArray[np.bool_],
        states: Float32Array,
        steps_left: IntArray,
    ) -> list[tuple[str, ...]]:
        """The rules that forbid each action at this step, in words, [actions]."""
        policy, found = self._policy, [list[str]() for _ in self._labels]
        for rule in policy.rules:
            alone = RuleConstraint((rule,), self._encoder, policy.catalogue, policy.joins_late)
            eligibility = eligibility_of_row(alone, self._encoder, row, step, history, None).eligibility
            if eligibility is None:
                continue
            said = np.asarray(eligibility.always & alone.eligible(states, steps_left, eligibility.memory))[0]
            said = np.append(said, said[[each.like for each in policy.new]])
            for place in np.flatnonzero(~said & ~may):
                found[place].append(f"the rule {rule.sentence()!r}")
        for place in np.flatnonzero(~may):
            found[place] = found[place] or ["it is not in the list of what this user may get"]
        return [tuple(each) for each in found]

    def _listed(self, labels: Any) -> NDArray[np.bool_] | None:
        """The mask of a list of labels, [actions]; None where there is no list."""
        if labels is None or is_feature(ELIGIBLE, self._encoder):
            return None
        given = {str(label) for label in labels} if not isinstance(labels, str) else set(labels.split(BETWEEN))
        known = {place for place, label in enumerate(self._labels) if label in given}
        if self._numeric:
            numbers = set(map(_as_number, given))
            known = {place for place, label in enumerate(self._labels) if float(label) in numbers}
        return np.isin(np.arange(len(self._labels)), list(known))


def require_row(row: object) -> None:
    """Refuse what is not one user's row."""
    if not isinstance(row, Mapping):
        raise UsageError(
            f"a user is a mapping of names to values, such as a dict, not a {type(row).__name__}; see Plan.allocate "
            "for tables"
        )


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _user_of(user: Any) -> int | str:
    """A user id in the form in which a table's ids are read."""
    if isinstance(user, str) and user.strip():
        return user
    if isinstance(user, int | np.integer) and not isinstance(user, bool):
        return int(user)
    if isinstance(user, float | np.floating | Decimal):
        return int(serving_ids(pl.Series([user]))[0])
    raise ModelError("a decision needs a 'user' to be for: a text or an integer")


def _written(label: str, numeric: bool, labels: tuple[str, ...]) -> str | int | float:
    """A label as a table of decisions holds it: a number where the log's are, an integer if all of them are whole."""
    if not numeric:
        return label
    whole = all(float(other).is_integer() for other in labels)
    return int(float(label)) if whole else float(label)
