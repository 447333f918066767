"""The item catalogue: checked like a log, all at once, and what it tells models of the actions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import Campaign, Catalogue, Encoder, Log, LogError, UsageError, log_from_frame
from redenvelope.campaign.items import with_attributes
from redenvelope.models.dataset import Examples
from redenvelope.models.fit import fit_neural
from redenvelope.models.neural_model import NeuralModel
from redenvelope.models.training import NeuralSettings, TrainingSettings
from tests.program import run_here

LABELS = ("nothing", "shoes 5", "shoes 9", "books 5", "books 9")


def small(users: int = 60, labels: tuple[object, ...] = LABELS, seed: int = 0) -> Log:
    """Everybody gets everything evenly; what costs more stands later."""
    rng = np.random.default_rng(seed)
    action = rng.integers(0, len(labels), users)
    return log_from_frame(
        pl.DataFrame(
            {
                "user": np.arange(users),
                "step": np.zeros(users, int),
                "action": [labels[own] for own in action],
                "propensity": np.full(users, 1 / len(labels)),
                "reward": rng.random(users),
                "cost": action.astype(float),
                "age": rng.normal(size=users),
            }
        )
    )


def items(**columns: list[object]) -> pl.DataFrame:
    own = {"action": list(LABELS), "amount": [0.0, 5, 9, 5, 9], "category": ["-", "shoes", "shoes", "books", "books"]}
    return pl.DataFrame(own | columns)


def test_attributes_stand_in_the_order_of_the_log() -> None:
    log = Catalogue.of(items().reverse()).attached(small())
    amount, square, *texts = np.asarray(log.attributes)
    assert log.catalogue.labels == LABELS
    np.testing.assert_allclose(amount * np.std([0, 5, 9, 5, 9]) + np.mean([0, 5, 9, 5, 9]), [0, 5, 9, 5, 9], atol=1e-5)
    np.testing.assert_allclose(square, amount**2 - 1, atol=1e-6)
    np.testing.assert_array_equal(texts, [[1, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 0, 0]])
    assert log.findings == small().findings
    assert np.array_equal(log.select(np.arange(60) < 30).attributes, log.attributes), "folds keep them"


def test_all_that_is_wrong_is_said_at_once() -> None:
    frame = pl.concat([items()[1:], items()[2:4]])
    with pytest.raises(LogError) as refused:
        Catalogue.of(frame).attached(small())
    found = {finding.rule: finding for finding in refused.value.findings}
    assert set(found) == {"items_missing", "items_twice"}
    assert found["items_missing"].examples == ("nothing",)
    assert found["items_twice"].examples == ("shoes 9", "books 5")
    assert found["items_twice"].rows == (5, 6)
    with pytest.raises(LogError, match="no column named action; it has item, amount, category"):
        Catalogue.of(items().rename({"action": "item"})).attached(small())
    named = Catalogue.of(items().rename({"action": "item"}), action="item").attached(small())
    assert named.attributes is not None


def test_what_tells_nothing_is_left_out_with_a_warning() -> None:
    new = pl.DataFrame({"action": ["toys 7"], "amount": [7.0], "category": ["toys"]})
    frame = pl.concat([items(), new]).with_columns(
        name=pl.Series([f"n{row}" for row in range(6)]), since=pl.lit("2024-01-01").str.to_date(), same=pl.lit(1)
    )
    log = Catalogue.of(frame.with_columns(amount=pl.Series([None, 5, 9, 5, 9, 7]))).attached(small())
    rules = {finding.rule: finding for finding in log.findings}
    assert {"items_not_logged", "items_single", "items_column_kind", "items_empty"} <= set(rules)
    assert rules["items_not_logged"].examples == ("toys 7",)
    assert log.attributes is not None
    assert len(log.attributes) == 5, "the amount, its square and three categories"
    assert log.attributes[0, 0] == pytest.approx(0), "what is missing counts as the mean"
    nothing = Catalogue.of(items().select("action")).attached(small())
    assert nothing.attributes is None
    assert "items_no_attributes" in {finding.rule for finding in nothing.findings}


def test_files_of_text_hold_numbers(tmp_path: Path) -> None:
    """As people write them: a CSV file has no types, and an amount is an amount with its currency."""
    columns = {"margin": [0.1, 0.2, 0.15, 0.3, 0.25], "shelf": ["01", "02", "02", "03", "03"]}
    frame = items(amount=["0,00 €", "5,00 €", "9,00 €", "5,00 €", "9,00 €"], **columns).rename({"action": "offer"})
    frame.write_csv(tmp_path / "items.csv", separator=";")
    log = with_attributes(small(), Catalogue.read(tmp_path / "items.csv"), "offer")
    typed = items(shelf=columns["shelf"]).with_columns(margin=pl.Series(columns["margin"]))
    known = Catalogue.of(typed.select("action", "amount", "category", "margin", "shelf")).attached(small())
    np.testing.assert_allclose(log.attributes, known.attributes)
    assert len(np.asarray(log.attributes)) == 2 + 3 + 2 + 3, "two numbers with their squares, categories and shelves"


def test_a_label_that_is_nearly_right_is_told() -> None:
    with pytest.raises(LogError) as refused:
        Catalogue.of(items(action=["nothing", "Shoes 5", "shoes 9", "books 5", "toys"])).attached(small())
    found = {finding.rule: finding for finding in refused.value.findings}
    assert found["items_missing"].examples == ("shoes 5, or is it Shoes 5?", "books 9")


def test_labels_that_are_numbers_are_their_own_attribute() -> None:
    amounts = tuple(range(0, 40, 2))
    log = with_attributes(small(2_000, amounts), None)
    assert log.attributes is not None
    unit = (np.array(amounts) - np.mean(amounts)) / np.std(amounts)
    np.testing.assert_allclose(log.attributes, [unit, unit**2 - 1], atol=1e-5)
    assert with_attributes(small(), None).attributes is None
    few = small(200, (0, 5, 9))
    assert with_attributes(few, None).attributes is None, "three actions need none"


def test_campaign_files_and_options_name_a_catalogue(tmp_path: Path) -> None:
    items().rename({"action": "sku"}).write_csv(tmp_path / "items.csv")
    (tmp_path / "campaign.toml").write_text('[items]\nfile = "items.csv"\naction = "sku"\n')
    found = Campaign.from_toml(tmp_path / "campaign.toml").items
    assert found is not None
    assert found.attached(small()).attributes is not None
    for wrong in ("items = 3", "[items]", '[items]\nfile = "items.csv"\nother = 1', '[items]\nfile = "gone.csv"'):
        (tmp_path / "campaign.toml").write_text(wrong + "\n")
        with pytest.raises(UsageError, match=r"\[items\]"):
            Campaign.from_toml(tmp_path / "campaign.toml")
    refused = run_here(
        "fit", tmp_path / "log.csv", "--budget", 1, "--out", tmp_path / "plan", "--items", tmp_path / "gone.csv"
    )
    assert refused.returncode == 2


QUICK = NeuralSettings(members=1, outcome_hidden=(16,), transition_hidden=(8,), training=TrainingSettings(steps=600))


def test_models_learn_tastes_through_attributes() -> None:
    """60 items of four categories; what users want is one feature per category."""
    rng, count, users = np.random.default_rng(1), 60, 6_000
    category = rng.integers(0, 4, count)
    taste = rng.normal(0, 1, (users, 4))
    action = rng.integers(0, count, users)
    reward = taste[np.arange(users), category[action]] + rng.normal(0, 0.5, users)
    columns = {f"taste {place}": taste[:, place] for place in range(4)}
    log = log_from_frame(
        pl.DataFrame(
            {
                "user": np.arange(users),
                "step": np.zeros(users, int),
                "action": [f"item {own:02d}" for own in action],
                "propensity": np.full(users, 1 / count),
                "reward": reward,
                "cost": action + 1.0,
            }
            | columns
        )
    )
    encoder = Encoder.fit(log)
    frame = {"action": [f"item {own:02d}" for own in range(count)], "category": [f"c{own}" for own in category]}
    known = Catalogue.of(pl.DataFrame(frame)).attached(log)
    fitted = fit_neural(Examples.from_log(known, encoder), QUICK)
    assert fitted.structures[0].structure == "items"
    truth = taste[:, category[[int(label[-2:]) for label in log.catalogue.labels]]]
    states = encoder.encode(log)
    found = fitted.model.predict(states)[0]
    plain = fit_neural(Examples.from_log(log, encoder), QUICK).model.predict(states)[0]
    errors = [np.square(own - truth).mean() / truth.var() for own in (found, plain)]
    assert errors[0] < 0.1
    assert errors[0] < 0.5 * errors[1]
    config, arrays = fitted.model.state()
    np.testing.assert_array_equal(NeuralModel.from_state(config, arrays).predict(states[:50])[0], found[:50])
    held = fitted.model.outcome.responses[0].attributes
    np.testing.assert_array_equal(np.asarray(held)[0], known.attributes, "they are not learned")
    assert replace(known, attributes=None).attributes is None
