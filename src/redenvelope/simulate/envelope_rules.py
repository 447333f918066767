"""The envelopes campaign with rules: two budgets, a cap and an eligibility, its optimum exact under all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from redenvelope.campaign.campaign import Campaign
from redenvelope.campaign.records import Budget, Rule
from redenvelope.errors import UsageError
from redenvelope.finite.evaluate import Value
from redenvelope.prices import checked_prices, outcome_weights
from redenvelope.simulate.campaign import Run, summarise_run
from redenvelope.simulate.envelope_dynamics import STATES, state_rows
from redenvelope.simulate.envelope_users import EnvelopeUsers
from redenvelope.simulate.envelopes import EnvelopeCampaign, envelope_frame

__all__ = ["Allocate", "RuledEnvelopes"]

FloatArray = NDArray[np.float64]
Allocate = Callable[[pl.DataFrame, pl.DataFrame], pl.Series]
"""A policy as deployed: users at a step (user, step and features) and their earlier steps (user, step, action, reward,
cost) in, the label of the action that each gets out."""

_USERS_PER_TABLE = 64


@dataclass(frozen=True)
class RuledEnvelopes:
    """Money and envelopes are both limited; of the large envelopes a user gets at most two, and the largest goes only
    to users who have been there for a while.

    The most that any policy earns within rules and budgets is `solve_budgets(campaign.price, campaign.limits)`.
    """

    envelopes: EnvelopeCampaign = field(default_factory=EnvelopeCampaign)
    limits: tuple[float, float] = (2.0, 2.0)
    """Money, and envelopes sent, a user."""
    audience: int | None = 50_000
    """Users that the campaign is for: the money is then given as a total."""
    large: tuple[str, ...] = ("5", "8")
    most: int = 2
    """How often a user may get a large one."""
    least_tenure: int = 30
    """Days after which a user may get the largest one."""

    @property
    def actions(self) -> tuple[str, ...]:
        """Labels of the actions, by increasing cost."""
        return self.envelopes.actions

    @property
    def steps(self) -> int:
        """Decisions a user."""
        return self.envelopes.steps

    @property
    def rules(self) -> Campaign:
        """What its campaign.toml says."""
        sent = tuple(label for label in self.actions if label != "0")
        money, envelopes = self.limits
        if self.audience is None:
            coupons = Budget("money", column="cost", per_user=money)
        else:
            coupons = Budget("money", column="cost", total=money * self.audience)
        return Campaign(
            budgets=(coupons, Budget("envelopes", count=sent, per_user=envelopes)),
            rules=(
                Rule(self.actions[-1:], only_where=f"tenure_days >= {self.least_tenure}"),
                Rule(self.large, at_most=self.most),
            ),
            audience=self.audience,
        )

    def toml(self) -> str:
        """The same as a file."""

        def labels(given: tuple[str, ...]) -> str:
            return "[" + ", ".join(f'"{label}"' for label in given) + "]"

        money = f"total = {self.limits[0] * (self.audience or 1):g}"
        lines = ["# The rules of a simulated campaign: redenvelope fit reads them beside its log."]
        lines += [] if self.audience is None else [f"audience = {self.audience}"]
        lines += ["[[budget]]", 'name = "money"', 'column = "cost"']
        lines += [money if self.audience is not None else f"per_user = {self.limits[0]:g}"]
        lines += ["[[budget]]", 'name = "envelopes"', f"count = {labels(self.rules.budgets[1].count or ())}"]
        lines += [f"per_user = {self.limits[1]:g}"]
        lines += [
            "[[rule]]",
            f"actions = {labels(self.actions[-1:])}",
            f'only_where = "tenure_days >= {self.least_tenure}"',
        ]
        lines += ["[[rule]]", f"actions = {labels(self.large)}", f"at_most = {self.most}"]
        return "\n".join(lines) + "\n"

    def log(self, users: int, seed: int) -> pl.DataFrame:
        """What was done before there were rules, to `users` new users: the contract's columns, then the features."""
        return self.envelopes.log(users, seed)

    def price(self, prices: ArrayLike) -> FloatArray:
        """Outcomes [outcomes, prices] of the best policy within the rules at prices [prices, 2]: a price function."""
        weights = outcome_weights(checked_prices(prices, 2))
        totals = np.zeros((3, weights.shape[1]))
        everyone = self.envelopes.users
        for first in range(0, len(everyone), _USERS_PER_TABLE):
            users = everyone.take(slice(first, first + _USERS_PER_TABLE))
            start = state_rows(users.habits, users.fatigues, np.zeros_like(users.habits))
            for place, weight in enumerate(weights.T):
                to_go = self._plan(users, weight)
                totals[:, place] += to_go[:, 0, np.arange(len(users)), start].sum(axis=1)
        return totals / len(everyone)

    def cheapest(self) -> Value:
        """Nobody is sent anything."""
        money = self.envelopes.cheapest()
        return Value(np.array([money.reward, money.cost, 0.0]))

    def run(self, allocate: Allocate, users: int, seed: int) -> Run:
        """Let a policy act on `users` users, each of the population as often as any other; what it costs and earns in
        expectation at every step that they come to. One that breaks a rule is refused."""
        campaign, generator = self.envelopes, np.random.default_rng([seed, 4])
        drawn = campaign.users.take(np.resize(np.arange(len(campaign.users)), users))
        everyone, dynamics = np.arange(users), campaign.dynamics
        state = state_rows(drawn.habits, drawn.fatigues, np.zeros_like(drawn.habits))
        totals, given, past = np.zeros((3, users)), np.zeros(users, dtype=int), _no_past()
        for step in range(self.steps):
            frame = envelope_frame(drawn, everyone, everyone, np.full(users, step), state)
            labels = allocate(frame, past).cast(pl.String)
            action = labels.replace_strict(list(self.actions), list(range(len(self.actions)))).to_numpy()
            given += np.isin(action, self._large)
            self._refuse_broken(drawn, action, given)
            chance = dynamics.activity(drawn, state, action)
            totals += chance, chance * drawn.consumption * dynamics.amounts[action], dynamics.sent[action]
            active, used, state = dynamics.happen(drawn, state, action, generator)
            rows = {"user": everyone, "step": np.full(users, step), "action": labels, "reward": active.astype(float)}
            past = pl.concat([past, pl.DataFrame(rows | {"cost": used * dynamics.amounts[action]})])
        return summarise_run(totals)

    @property
    def _large(self) -> list[int]:
        return [self.actions.index(label) for label in self.large]

    def _entitled(self, users: EnvelopeUsers) -> NDArray[np.bool_]:
        """Who may get the largest envelope, [users]."""
        return (users.features["tenure_days"] >= self.least_tenure).to_numpy()

    def _refuse_broken(self, users: EnvelopeUsers, action: NDArray[np.intp], given: NDArray[np.intp]) -> None:
        if (given > self.most).any():
            raise UsageError(f"a policy gave a user more than {self.most} large envelopes")
        if ((action == len(self.actions) - 1) & ~self._entitled(users)).any():
            raise UsageError("a policy gave the largest envelope to a user who may not get it")

    def _plan(self, users: EnvelopeUsers, weights: FloatArray) -> FloatArray:
        """Reward, money and envelopes to go, [outcomes, large ones so far, users, states], at weights [outcomes]."""
        dynamics = self.envelopes.dynamics
        rewards = np.ascontiguousarray(dynamics.activities(users).transpose(2, 0, 1))
        spent = rewards * (users.consumption * dynamics.amounts[:, None])[:, :, None]
        entitled = self._entitled(users)
        to_go = np.zeros((3, self.most + 1, len(users), STATES))
        for _ in range(self.steps):
            after = [[dynamics.follow_up(users, values) for values in outcome] for outcome in to_go]
            now, to_go = to_go, np.zeros_like(to_go)
            for given in range(self.most + 1):
                best = np.full(now.shape[2:], -np.inf)
                for action, (active, cost, sent) in enumerate(zip(rewards, spent, dynamics.sent, strict=True)):
                    following = given + (action in self._large)
                    if following > self.most:
                        continue
                    step = (active, cost, float(sent))
                    total = []
                    for gained, outcome in zip(step, after, strict=True):
                        idle, busy = outcome[following]
                        total.append(gained + idle[sent] + active * (busy[sent] - idle[sent]))
                    score = sum(weight * value for weight, value in zip(weights, total, strict=True))
                    better = score > best
                    if action == len(self.actions) - 1:
                        better &= entitled[:, None]
                    np.copyto(best, score, where=better)
                    for place, value in enumerate(total):
                        np.copyto(to_go[place, given], value, where=better)
        return to_go


def _no_past() -> pl.DataFrame:
    types = {"user": pl.Int64, "step": pl.Int64, "action": pl.String, "reward": pl.Float64, "cost": pl.Float64}
    return pl.DataFrame(schema=types)
