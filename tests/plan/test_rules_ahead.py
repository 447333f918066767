"""Rules further down a tree: conditions are asked of predicted states, what never changes is known, counters move."""

from __future__ import annotations

import numpy as np
import pytest

from redenvelope import Rule
from redenvelope.log.encoding.table import state_places
from redenvelope.models.environment import apply_steps
from redenvelope.policies.eligibility_state import eligibility_of_frame
from tests.plan.rule_world import LABELS, STEPS, plan_with, rows_at
from tests.quick_programs import quick_programs

PRICE = 0.3
RULES = (
    Rule(("push",), only_where="tenure >= 30 and visits > 4"),
    Rule(("5 off",), only_where="member or segment == 'new'"),
    Rule(("10 off",), at_most=1),
)


def by_the_words(row: dict, visits: float, member: bool, past: tuple[str, ...], label: str) -> bool:
    if label == "push":
        return row["tenure"] >= 30 and not np.isnan(visits) and visits > 4
    if label == "5 off":
        return member or row["segment"] == "new"
    return label != "10 off" or "10 off" not in past


@pytest.mark.parametrize("users", [12])
def test_trees_keep_rules_on_the_way_as_a_plain_recursion_does(users: int) -> None:
    plan = plan_with(RULES, explore=0.0)
    policy, frame = plan.policy, rows_at(0, users, 7)
    encoder, planner = policy.encoder, policy.valuer
    places = state_places(encoder.numbers, encoder.categories, encoder.layout)
    columns = {number.name: (number, places.numbers[place]) for place, number in enumerate(encoder.numbers)}
    missing = {encoder.numbers[place].name: places.indicators[n] for n, place in enumerate(places.watched)}

    def read(state: np.ndarray, name: str) -> float:
        number, column = columns[name]
        gone = name in missing and state[missing[name]] > 0.5
        return np.nan if gone else float(state[column] * number.scale + number.mean)

    def worth(row: dict, state: np.ndarray, past: tuple[str, ...], left: int, seen: tuple[float, bool]) -> np.ndarray:
        """q of every action, softly, by plain recursion; `seen` are visits and member here."""
        outcomes, _, following = apply_steps(planner.model, state[None])
        q = np.full(len(LABELS), -np.inf)
        for action, label in enumerate(LABELS):
            if not by_the_words(row, *seen, past, label):
                continue
            q[action] = outcomes[0, 0, action] - PRICE * outcomes[1, 0, action]
            if left > 1:
                then = following[0, action]
                below = worth(
                    row, then, (*past, label), left - 1, (read(then, "visits"), round(read(then, "member")) == 1)
                )
                best = below.max()
                q[action] += best + 0.2 * np.log(np.exp((below - best) / 0.2).sum())
        return q

    with quick_programs():
        states, _ = encoder.encode_frame(frame)
        eligibility = eligibility_of_frame(policy.constraint, encoder, plan.catalogue, frame, None).eligibility
        found = planner.values(states, STEPS, [[PRICE]], eligibility).q[:, 0]
        for place, row in enumerate(frame.iter_rows(named=True)):
            visits = np.nan if row["visits"] is None else row["visits"]
            exact = worth(row, states[place], (), 3, (visits, row["member"]))
            np.testing.assert_allclose(found[place], exact, rtol=1e-4, atol=1e-4)
    assert np.isinf(found).any()


def test_what_is_known_of_a_row_is_exact_though_states_round() -> None:
    # Thresholds that are values of the column itself: standardised and back, they may come out a little below.
    plan = plan_with((Rule(("push",), only_where="tenure >= 37"), Rule(("5 off",), only_where="tenure <= 37")))
    frame = rows_at(0, 400, 3).with_columns(tenure=37.0)
    constraint = plan.policy.constraint
    eligibility = eligibility_of_frame(constraint, plan.policy.encoder, plan.catalogue, frame, None).eligibility
    states, _ = plan.policy.encoder.encode_frame(frame)
    for _ in range(3):
        mask = constraint.eligible(states, np.ones(len(frame), int), eligibility.memory)
        assert mask.all()
        eligibility = eligibility.after(constraint, np.zeros(len(frame), int))
