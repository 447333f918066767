"""The exported log is a log: read, audited and understood as it was served."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from redenvelope import Budget, Campaign, ColumnMap, Ledger, LedgerError, audit_log, open_ledger, read_log
from redenvelope.cli import app
from redenvelope.ledger import export
from redenvelope.ledger.export import export_log, log_frame
from redenvelope.ledger.records import Charge, Choice, Expire, Forget, Fund, Hold, PlanNote
from redenvelope.serialization import to_plain
from tests.ledger.asking import NOW, TTL, fund, hold, settle

USERS = 700


def fill(ledger: Ledger) -> None:
    """Two steps of users who get nothing or 2.00, at random; step 1 of user 0 stays open, user 1's expires."""
    chance = np.random.default_rng(3)
    ledger.apply([fund(1_000_000)])
    for step in range(2):
        holds = []
        for user in range(USERS):
            given = bool(chance.random() < 0.5)
            charges = (Charge("money", 200, 200),) if given else ()
            choice = Choice("gift" if given else "nothing", 0.5, "{}", charges)

            def choose(left: Mapping[str, int], choice: Choice = choice) -> Choice:
                return choice

            features = json.dumps({"visits": int(chance.integers(9)), "city": str(chance.choice(["Lyon", "Graz"]))})
            ends = NOW + TTL if user == 1 else NOW + 10 * TTL
            holds.append(Hold(f"{user}-{step}", "", str(user), step, choose, "[0.3]", "p", features, NOW, ends))
        decided = ledger.apply(holds)
        outcomes = [
            settle(one.decision, 150 if one.charges else 0, float(chance.random()))  # type: ignore[union-attr]
            for user, one in enumerate(decided)
            if (user, step) not in ((0, 1), (1, 1))
        ]
        ledger.apply(outcomes)
    ledger.apply([Expire(NOW + 2 * TTL)])


def test_a_log_comes_out_that_is_read_and_audited(ledger: Ledger, tmp_path: Path) -> None:
    fill(ledger)
    out = tmp_path / "log.parquet"
    found = export_log(ledger, out)
    assert (found.rows, found.users, found.open_users, found.expired) == (2 * USERS - 2, USERS - 1, 1, 1)
    assert found.campaign_file == tmp_path / "campaign.toml"
    frame = pl.read_parquet(out)
    assert frame.columns == [
        *("user", "step", "action", "propensity", "reward", "cost", "price", "plan", "visits", "city"),
    ]
    assert frame.filter(pl.col("action") == "nothing")["cost"].max() == 0
    gifts = frame.filter(pl.col("action") == "gift", ~((pl.col("user") == 1) & (pl.col("step") == 1)))
    assert set(gifts["cost"]) == {1.5}
    assert set(frame["price"]) == {0.3}
    log = read_log(out, ColumnMap.from_toml(tmp_path / "campaign.toml"))
    assert len(log) == 2 * USERS - 2
    assert set(log.catalogue.labels) == {"nothing", "gift"}
    assert audit_log(log).findings is not None
    assert export_log(ledger, out).campaign_file is None


def test_mixed_features_become_one_type(ledger: Ledger) -> None:
    ledger.apply([fund(100)])
    given = [{"a": 1, "b": True, "c": 1}, {"a": 2.5, "b": None, "c": "x"}, {"d": [1]}]
    holds = [replace(hold(f"{place}"), features=json.dumps(row)) for place, row in enumerate(given)]
    ledger.apply([*holds])
    ledger.apply([settle(number, 1) for number in (1, 2, 3)])
    frame = log_frame(ledger).frame
    assert frame.schema["a"] == pl.Float64
    assert frame.schema["b"] == pl.Boolean
    assert frame["c"].to_list() == ["1", "x", None]
    assert frame["d"].to_list() == [None, None, "[1]"]


def test_an_empty_ledger_has_no_log(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="nothing to export"):
        export_log(ledger, tmp_path / "log.parquet")
    assert list(tmp_path.glob("*.parquet")) == []


def test_a_feature_that_is_called_as_a_column_is_exported_under_another_name(ledger: Ledger, tmp_path: Path) -> None:
    given = {name: place for place, name in enumerate(("cost", "expired", "price of money", "plan", "feature cost"))}
    ledger.apply([fund(100), replace(hold("a"), features=json.dumps(given))])
    ledger.apply([settle(1, 7)])
    found = export_log(ledger, tmp_path / "log.parquet")
    (row,) = pl.read_parquet(tmp_path / "log.parquet").to_dicts()
    assert row["cost"] == 0.07 and row["plan"] == "plan"
    assert found.renamed.keys() == given.keys() - {"feature cost"}
    assert {name: row[found.renamed.get(name, name)] for name in given} == given


def test_the_columns_are_those_of_the_plans(ledger: Ledger) -> None:
    kinds = {"age": "number", "city": "text", "never sent": "number", "nor this": "text"}
    note = {"plan": "p", "labels": [], "features": kinds, "campaign": {}}
    ledger.apply([fund(100), PlanNote(NOW, json.dumps(note)), PlanNote(NOW + 1, json.dumps(note))])
    given = [{"age": 30, "city": "Lyon"}, {"age": True, "city": None}, {"age": "thirty", "city": "7"}]
    ledger.apply([replace(hold(f"{place}"), features=json.dumps(row)) for place, row in enumerate(given)])
    ledger.apply([settle(number, 1) for number in (1, 2, 3)])
    frame = log_frame(ledger).frame
    assert dict(frame.select(*kinds).schema) == {
        "age": pl.Int64,
        "city": pl.String,
        "never sent": pl.Float64,
        "nor this": pl.String,
    }
    assert frame["age"].to_list() == [30, 1, None]
    assert len(ledger.plan_notes()) == 1


def test_budgets_of_any_name_are_written_and_rewards_stay_rewards(ledger: Ledger, tmp_path: Path) -> None:
    names = ("a\x7fb", 'q"\\', "n\nl", "é\u2028", "x = 1")
    budgets = tuple(Budget(name, count=(name,), per_user=1e-7) for name in names)
    note = {"plan": "p", "labels": [], "features": {}, "campaign": {"budget": to_plain(budgets)}}
    paid = Fund("paid", 100, NOW, None, "reward")
    ledger.apply([PlanNote(NOW, json.dumps(note)), fund(100), paid, hold("a", amount={"money": 5, "paid": 9})])
    ledger.apply([settle(1, {"money": 5, "paid": 9}, 0.05)])
    export_log(ledger, tmp_path / "log.parquet")
    assert Campaign.from_toml(tmp_path / "campaign.toml").budgets == budgets
    (row,) = pl.read_parquet(tmp_path / "log.parquet").to_dicts()
    assert (row["reward"], row["cost"]) == (0.05, 0.05)


def test_users_who_were_forgotten_are_left_out(ledger: Ledger) -> None:
    """Rules and propensities of a decision are explained by features, which are erased."""
    ledger.apply([fund(1_000), *(hold(f"{user}-{step}", user, 1, step) for user in "uvw" for step in range(2))])
    ledger.apply([settle(number, 1) for number in range(1, 6)])  # a decision of w is open
    for user in "uw":
        ledger.apply([Forget(user, NOW)])
    found = log_frame(ledger)
    assert (set(found.frame["user"]), found.forgotten_users, found.open_users) == ({"v"}, 2, 0)


def test_the_export_is_of_one_moment(ledger: Ledger, opened: Callable[[], Ledger], monkeypatch: Any) -> None:
    """Decisions that others make while it is written, also of users who had none open, are not in it."""
    ledger.apply([fund(1_000_000), *(hold(f"{user}-0", f"{user}", 0) for user in range(50))])
    ledger.apply([settle(number, 0, 2.0) for number in range(1, 51)])
    other, asked = opened(), iter(range(10**6))
    load = export.decision_states

    def meanwhile(*given: Any) -> Any:
        turn = next(asked)
        decided = other.apply([hold(f"{user}-{turn + 1}", f"{user}", 0, turn + 1) for user in range(50)])
        other.apply([settle(one.decision, 0) for one in decided[::2]])  # type: ignore[union-attr]
        return load(*given)

    monkeypatch.setattr(export, "decision_states", meanwhile)
    found = log_frame(ledger)
    assert next(asked) > 1
    assert (len(found.frame), found.open_users, set(found.frame["reward"])) == (50, 0, {2.0})


def test_the_commands(url: str, tmp_path: Path) -> None:
    ledger = open_ledger(url)
    fill(ledger)
    runner = CliRunner()
    said = runner.invoke(app, ["ledger", "verify", url])
    assert said.exit_code == 0, said.output
    assert "every row matches the events" in said.output
    found = json.loads(runner.invoke(app, ["ledger", "verify", url, "--json"]).output)
    assert found["status"] == "sound"
    out = tmp_path / "log.parquet"
    assert runner.invoke(app, ["ledger", "export", url, "--out", str(out)]).exit_code == 0
    audited = runner.invoke(app, ["audit", str(out), "--json"])
    assert audited.exit_code == 0, audited.output
    with ledger.database.transaction() as session:
        session.many("UPDATE budgets SET spent = spent - 1", [()])
    wrong = runner.invoke(app, ["ledger", "verify", url])
    assert wrong.exit_code == 3
    assert "budget money, spent" in wrong.output
    ledger.close()


def test_what_is_no_ledger_is_refused_in_words(tmp_path: Path) -> None:
    runner = CliRunner()
    other = tmp_path / "other.db"
    other.write_bytes(b"something else " * 100)
    for url in (f"sqlite:///{tmp_path / 'none.db'}", f"sqlite:///{other}", "postgresql://nobody@127.0.0.1:1/none"):
        said = runner.invoke(app, ["ledger", "verify", url])
        assert isinstance(said.exception, LedgerError), said.output
    assert not (tmp_path / "none.db").exists()
