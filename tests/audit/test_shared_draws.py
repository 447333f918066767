"""Assignment by village: found where actions were drawn together, and not where each user was drawn for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import ColumnMap, Log, audit_log, log_from_frame
from redenvelope.audit.randomization import shared_draws
from tests.program import run_here

USERS, VILLAGES = 2_000, 100
ACTIONS = np.array(["none", "small", "large"])
CHANCES = np.array([0.5, 0.3, 0.2])


def drawn(seed: int, together: float) -> pl.DataFrame:
    """One step: the share `together` of users has the draw of their village, the others their own."""
    generator = np.random.default_rng(seed)
    village = generator.integers(VILLAGES, size=USERS)
    place = generator.choice(3, size=VILLAGES, p=CHANCES)[village]
    own = generator.choice(3, size=USERS, p=CHANCES)
    action = np.where(generator.random(USERS) < together, place, own)
    cost = action * (generator.random(USERS) < 0.5).astype(float)
    return pl.DataFrame(
        {
            "user": np.arange(USERS),
            "step": 0,
            "action": ACTIONS[action],
            "propensity": CHANCES[action],
            "reward": (generator.random(USERS) < 0.2 + 0.1 * action).astype(float),
            "cost": cost,
            "village": [f"v{number}" for number in village],
            "altitude": np.random.default_rng(7).normal(size=VILLAGES)[village],
            "age": generator.integers(18, 80, size=USERS),
        }
    )


def test_a_village_that_shares_its_draw_is_named() -> None:
    audit = audit_log(log_from_frame(drawn(1, 1.0)))
    (finding,) = (each for each in audit.findings if each.rule == "assigned_by_cluster")
    # The altitude tells the same villages: either names them.
    assert finding.column in ("village", "altitude")
    assert "the action is constant" in finding.message
    assert f"--cluster {finding.column}" in finding.remedy
    assert audit.shared is not None and audit.shared.share == pytest.approx(1.0) and audit.shared.groups == VILLAGES
    assert not audit.leaks


def test_the_share_is_the_correlation_of_draws() -> None:
    """Two users of a village both have its draw with probability 0.7², and agree no more than chance otherwise."""
    found = [shared_draws(log_from_frame(drawn(seed, 0.7))) for seed in range(10)]
    shares = [each.share for each in found if each is not None]
    assert len(shares) == 10
    # A hundred villages know a correlation to about a tenth of it, ten logs to a thirtieth.
    assert np.mean(shares) == pytest.approx(0.49, abs=0.06)


def test_independent_draws_are_no_alarm() -> None:
    """None of 40 logs of three columns: a village, its altitude and the age."""
    assert [shared_draws(log_from_frame(drawn(seed, 0.0))) for seed in range(40)] == [None] * 40


def test_wrong_propensities_are_no_cluster() -> None:
    log = log_from_frame(drawn(2, 0.0))
    wrong = replace(log, propensity=np.full(len(log), 1 / 3))
    assert shared_draws(wrong) is None


def test_a_named_cluster_is_not_asked_for_again() -> None:
    log = log_from_frame(drawn(1, 1.0), ColumnMap(cluster="village"))
    audit = audit_log(log)
    assert audit.shared is None and audit.clusters == VILLAGES
    # The altitude of a village moves with its draw by chance, and is no leak.
    assert not audit.leaks
    assert "fit_few_clusters" in {each.rule for each in audit.findings}  # about 40 of a hundred check


def test_the_command_line_asks_for_a_cluster_and_takes_it(tmp_path: Path) -> None:
    drawn(1, 1.0).drop("altitude").write_parquet(tmp_path / "log.parquet")
    asked = json.loads(run_here("audit", "log.parquet", "--json", folder=tmp_path).stdout)
    (finding,) = (each for each in asked["findings"] if each["rule"] == "assigned_by_cluster")
    assert "--cluster village" in finding["remedy"]
    for said in (("--cluster", "village"), ("--columns", "cluster=village")):
        done = run_here("audit", "log.parquet", *said, "--json", folder=tmp_path)
        found = json.loads(done.stdout)
        assert (found["clusters"], found["shared"]) == (VILLAGES, None)
    (tmp_path / "campaign.toml").write_text('[columns]\ncluster = "village"\n', encoding="utf-8")
    assert json.loads(run_here("audit", "log.parquet", "--json", folder=tmp_path).stdout)["clusters"] == VILLAGES
    refused = run_here("fit", "log.parquet", "--budget", "0.3", "--out", "plan", folder=tmp_path)
    assert refused.returncode == 2
    assert "fit_few_clusters" in refused.stderr and "at least 50 are needed" in refused.stderr


def test_errors_count_clusters() -> None:
    """The logged cost of villages that share their draw: the spread of means over many logs, closely."""
    logs: list[Log] = [log_from_frame(drawn(seed, 1.0), ColumnMap(cluster="village")) for seed in range(60)]
    means = [log.cost.mean() for log in logs]
    audits = [audit_log(log) for log in logs[:5]]
    error = np.mean([(audit.logged_cost.upper - audit.logged_cost.lower) / 2 / 1.96 for audit in audits])
    # 60 logs know a standard deviation to 9 %; counting users would claim less than half of it.
    assert error == pytest.approx(np.std(means), rel=0.3)
