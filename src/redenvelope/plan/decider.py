"""Decisions for one user at a time in a long-lived process: plain mappings in and out, nothing compiled on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from redenvelope.chance import draw, fraction, user_key
from redenvelope.errors import ModelError
from redenvelope.log.eligible import BETWEEN, ELIGIBLE
from redenvelope.log.ids import serving_ids
from redenvelope.log.serving_row import step_number
from redenvelope.plan.decisions import ACTION_STREAM, require_numbers
from redenvelope.plan.plan import Plan
from redenvelope.plan.sources import SingleValuer
from redenvelope.policies.standing_rows import is_feature, standing_of_row

__all__ = ["Decider", "Decision"]


@dataclass(frozen=True)
class Decision:
    """What a user gets at a step."""

    user: int | str
    step: int
    action: str | int | float
    """The action's label, as the log wrote it."""
    propensity: float
    """With what probability it was drawn: log it, and decisions are the next log."""
    probabilities: dict[str, float]
    """Of every action, by label."""
    expected_reward: float
    """Of this step alone."""
    expected_cost: float
    prices: tuple[float, ...]
    """Of each budget, that the user follows."""
    expected_costs: dict[str, float] = field(default_factory=dict)
    """Of several budgets, by their names; the first is `expected_cost`."""


class Decider:
    """Decides by a plan, one row at a time; the same decisions as `Plan.allocate` makes for a table.

    For example:

        decider = Decider(Plan.load("plan")).warm()
        decision = decider.decide({"user": 17, "step": 0, "city": "Lyon", "visits": 3})
    """

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        policy = plan.policy
        self._encoder, self._pricing = policy.encoder, policy.pricing
        self._steps = policy.specification.steps
        self._valuer: SingleValuer = policy.single()
        self._constraint = policy.constraint
        self._labels, self._numeric = plan.catalogue.labels, plan.catalogue.numeric
        self._written = [_written(label, plan.catalogue.numeric, self._labels) for label in self._labels]
        self._seed = seed
        self._budgets = policy.several_budgets

    def warm(self) -> Decider:
        """Decide once for nobody at every step, so that no real user waits for what is done only once."""
        past: list[dict[str, Any]] = []
        for step in range(self._encoder.first_step, self._encoder.first_step + self._steps):
            self.decide({"user": 0, "step": step}, history=past)
            past.append({"step": step, "action": self._written[0], "reward": 0.0, "cost": 0.0})
        return self

    def decide(
        self,
        row: Mapping[str, Any],
        eligible: NDArray[np.bool_] | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
    ) -> Decision:
        """Decide for a user: `user`, `step` and the features; `eligible` rules actions out: a mask [actions], or in
        the row itself a list of labels.

        A feature that is missing, a label never seen, a value that is no number is taken as in a table. A plan that
        `needs_history` asks for the user's earlier steps: rows with `step`, `action`, `reward` and `cost`.
        """
        user = _user_of(row.get("user"))
        state = self._encoder.encode_row(row, history)
        step = step_number(row["step"])
        assert step is not None  # or it would not have been encoded
        listed = self._listed(row.get(ELIGIBLE)) if eligible is None else eligible
        standing = standing_of_row(self._constraint, self._encoder, row, step, history, listed).standing
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is asked for below
            found = self._valuer.decide(state, self._encoder.first_step + self._steps - step, standing)
        keys = np.array([user_key(user)], dtype=np.uint64)
        followed = int(self._pricing.drawn(keys, self._seed)[0])
        shares = found.values.probabilities[0, followed]
        probabilities = shares / shares.sum()
        require_numbers(probabilities.sum(), found.outcomes.sum())
        action = int(draw(probabilities[None], fraction(keys, ACTION_STREAM, self._seed, step))[0])
        return Decision(
            user=user,
            step=step,
            action=self._written[action],
            propensity=float(probabilities[action]),
            probabilities=dict(zip(self._labels, probabilities.tolist(), strict=True)),
            expected_reward=float(found.outcomes[0, action]),
            expected_cost=float(found.outcomes[1, action]),
            prices=self._pricing.prices[followed],
            expected_costs={name: float(found.outcomes[1 + place, action]) for place, name in enumerate(self._budgets)},
        )

    def _listed(self, labels: Any) -> NDArray[np.bool_] | None:
        """What a list of labels allows, [actions]; None where there is no list."""
        if labels is None or is_feature(ELIGIBLE, self._encoder):
            return None
        given = {str(label) for label in labels} if not isinstance(labels, str) else set(labels.split(BETWEEN))
        known = {place for place, label in enumerate(self._labels) if label in given}
        if self._numeric:
            known = {place for place, label in enumerate(self._labels) if float(label) in set(map(_as_number, given))}
        return np.isin(np.arange(len(self._labels)), list(known))


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _user_of(user: Any) -> int | str:
    """An id as a table's would be read."""
    if isinstance(user, str) and user.strip():
        return user
    if isinstance(user, int | np.integer) and not isinstance(user, bool):
        return int(user)
    if isinstance(user, float | np.floating | Decimal):
        return int(serving_ids(pl.Series([user]))[0])
    raise ModelError("a decision needs a 'user' to be for: a text or an integer")


def _written(label: str, numeric: bool, labels: tuple[str, ...]) -> str | int | float:
    """A label as a table of decisions holds it: numbers as integers where they all are."""
    if not numeric:
        return label
    whole = all(float(other).is_integer() for other in labels)
    return int(float(label)) if whole else float(label)
