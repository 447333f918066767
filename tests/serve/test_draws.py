"""The seed of a ledger: campaigns draw independently of each other, and each goes on as it began."""

from __future__ import annotations

import json
import secrets
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from redenvelope import UsageError, open_ledger
from redenvelope.serve.active_plan import ActionDistribution, DecisionQuery, LoadedPlan
from redenvelope.serve.settings import ServeSettings
from tests.program import run_here
from tests.serve.coupons import LABELS, STEPS, Coupons
from tests.serve.running import Running, running

ROW = {"taste": 0.9, "city": "Lyon"}
USERS = 2_000


def drawn(served: Running, users: range) -> list[tuple[Any, ...]]:
    """What users get, how probably, and at which prices."""
    asked = [{"request_id": f"r{user}", "user": user, "features": ROW} for user in users]
    status, found = served.ask("POST", "/v1/decisions/batch", {"decisions": asked})
    assert status == 200
    return [(one["action"], one["propensity"], tuple(one["prices"])) for one in found["answers"]]


def proposals(served: Running, users: int) -> list[ActionDistribution]:
    """Of the plan in use, with the seed that it draws with."""
    assert served.service.active is not None
    plan = served.service.active.plan
    return plan.propose([DecisionQuery(user, 0, ROW, ()) for user in range(users)], served.service.active.pricing)


def test_campaigns_draw_independently_of_each_other(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = iter([0x3F84D5B5B5470917, 0x1216D5D98979FB1B])  # as a ledger might draw them
    monkeypatch.setattr(secrets, "randbits", lambda bits: next(seeds))
    rare, followed, uniforms = [], [], []
    for name in "ab":
        with running(folder, f"sqlite:///{tmp_path}/{name}.db", total=10**9, seed=None) as served:
            answers = [one for first in range(0, USERS, 500) for one in drawn(served, range(first, first + 500))]
            own = proposals(served, USERS)
        rare.append(np.array([propensity < 0.1 for _, propensity, _ in answers]))
        followed.append(np.array([one.prices[0] for one in own]))
        uniforms.append(np.array([one.uniform for one in own]))
    share = [float(one.mean()) for one in rare]
    assert min(share) * USERS >= 10
    # As many as two independent draws have in common, up to what one in a thousand such pairs exceeds.
    assert (rare[0] & rare[1]).sum() <= binom.ppf(0.999, USERS, share[0] * share[1])
    # Of independent numbers, the correlation is 0 within 4 of its standard errors.
    assert abs(np.corrcoef(*uniforms)[0, 1]) < 4 / np.sqrt(USERS)
    assert abs(np.corrcoef(*followed)[0, 1]) < 4 / np.sqrt(USERS)


def test_a_restart_goes_on_with_the_same_draws(folder: Path, url: str, tmp_path: Path) -> None:
    with running(folder, url, seed=None) as served:
        first = drawn(served, range(50))
        seed = served.service.ledger.seed
    with running(folder, url, seed=None) as served:
        assert served.service.ledger.seed == seed
        first += drawn(served, range(50, 100))
    with running(folder, f"sqlite:///{tmp_path}/other.db", seed=seed) as served:
        assert drawn(served, range(100)) == first


def test_a_ledger_draws_its_seed_once_and_refuses_another(url: str, tmp_path: Path) -> None:
    with closing(open_ledger(url)) as ledger, closing(open_ledger(f"sqlite:///{tmp_path}/other.db")) as other:
        assert ledger.seed != other.seed
        assert 0 <= ledger.seed < 2**63
    with closing(open_ledger(url, create=False, seed=ledger.seed)) as again:
        assert again.seed == ledger.seed
    with pytest.raises(UsageError, match="leave the seed out"):
        open_ledger(url, seed=5)


def test_the_command_refuses_a_seed_that_the_ledger_has_not(folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    open_ledger(url, seed=3).close()
    done = run_here("serve", folder, "--ledger", url, "--budget-total", "10", "--port", "0", "--seed", "4")
    assert done.returncode == 2
    assert "leave the seed out" in done.stderr
    assert "Traceback" not in done.stderr


def test_ids_cannot_be_chosen_by_what_is_public(folder: Path, tmp_path: Path) -> None:
    """Who knows the code and every public hash, but not the seed, finds no ids that get a rare action more often."""
    with running(folder, f"sqlite:///{tmp_path}/l.db", total=10**9, seed=None) as served:
        active, public = served.service.active, [served.ask("GET", path) for path in ("/v1/campaign", "/metrics")]
        assert active is not None
        guess = LoadedPlan(active.plan.plan, 0).propose(
            [DecisionQuery(user, 0, ROW, ()) for user in range(20_000)], active.pricing
        )
        rare = [int(np.argmin(np.where(np.array(one.probabilities) > 0, one.probabilities, 2.0))) for one in guess]
        reach = [np.cumsum(one.probabilities) for one in guess]
        chosen = [
            user
            for user, one in enumerate(guess)
            if reach[user][rare[user]] - one.probabilities[rare[user]] <= one.uniform < reach[user][rare[user]]
        ][:500]
        answers = [one for first in range(0, len(chosen), 250) for one in drawn_for(served, chosen[first:][:250])]
        public.append(served.ask("GET", "/v1/log"))
        seed = served.service.ledger.seed
    labels = served.service.active.plan.labels
    got = sum(one["action"] == labels[rare[user]] for user, one in zip(chosen, answers, strict=True))
    chance = max(guess[user].probabilities[rare[user]] for user in chosen)
    assert len(chosen) > 100
    assert got <= binom.ppf(0.999, len(chosen), chance)
    assert str(seed) not in str(public) and f"{seed:x}" not in str(public)


def drawn_for(served: Running, users: list[int]) -> list[dict[str, Any]]:
    asked = [{"request_id": f"r{user}", "user": user, "features": ROW} for user in users]
    answers: list[dict[str, Any]] = served.ask("POST", "/v1/decisions/batch", {"decisions": asked})[1]["answers"]
    return answers


def test_actions_are_as_frequent_as_their_propensities_say(folder: Path, tmp_path: Path) -> None:
    """Paced, with a cap per user, while money becomes scarce: overall, and where some actions could not be paid.

    What an action is given more often than its probabilities add up to has mean 0, and the variance Σ p (1 − p). Four
    standard errors are exceeded by chance once in 16,000 times, and there are fewer than 30 comparisons.
    """
    users, chance, world = 2_500, np.random.default_rng(5), Coupons()
    settings = ServeSettings(audience=users)
    people = world.users(users, 6).to_dicts()
    with running(folder, f"sqlite:///{tmp_path}/l.db", 60_000, settings=settings, user_cap=300, seed=11) as served:
        for first in range(0, users, 250):
            for step in range(STEPS):
                some = people[first : first + 250]
                asked = [
                    {"request_id": f"{row['user']}-{step}", "user": row["user"], "features": _features(row)}
                    for row in some
                ]
                answers = served.ask("POST", "/v1/decisions/batch", {"decisions": asked})[1]["answers"]
                outcomes = []
                for row, answer in zip(some, answers, strict=True):
                    reward, amount = world.happen(row, LABELS.index(answer["action"]), step, chance, 1.3)
                    outcomes.append({"decision_id": answer["decision_id"], "reward": reward, "amount": amount})
                assert served.ask("POST", "/v1/outcomes/batch", {"outcomes": outcomes})[0] == 200
        decided = served.service.ledger.decided(0, 10 * users)
    given = np.array([[one.action == label for label in LABELS] for one in decided])
    shares = np.array([[json.loads(one.probabilities)[label] for label in LABELS] for one in decided])
    np.testing.assert_allclose([one.propensity for one in decided], shares[given], rtol=1e-12)
    scarce = np.array([one.eligible != "" for one in decided])
    assert 200 < scarce.sum() < len(decided) - 200
    assert len({one.prices for one in decided}) > 2, "prices were paced"
    where = {"all": np.ones(len(decided), bool), "scarce": scarce, "plenty": ~scarce}
    where |= {f"step {step}": np.array([one.step == step for one in decided]) for step in range(STEPS)}
    for name, rows in where.items():
        more = (given[rows] - shares[rows]).sum(axis=0)
        error = np.sqrt((shares[rows] * (1 - shares[rows])).sum(axis=0))
        assert (np.abs(more) <= 4 * error + 1e-9).all(), (name, more, error)


def _features(row: dict[str, Any]) -> dict[str, Any]:
    return {"taste": row["taste"], "city": row["city"]}
