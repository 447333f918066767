"""The seed of a ledger: campaigns draw independently of each other, and each goes on as it began."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from redenvelope import UsageError, open_ledger
from redenvelope.serve.active_plan import ActionDistribution, DecisionQuery
from tests.program import run_here
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
