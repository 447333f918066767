"""The certificate in closed loop, on campaigns that nothing was tuned to: a small edition of benchmarks/honesty.py."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binom

FINITE, ENVELOPES = 16, 8
FIRST_SEED = 50_000


def benchmark() -> Any:
    folder = Path(__file__).parents[2] / "benchmarks"
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module("honesty")


@pytest.fixture(scope="module")
def plans() -> list[dict[str, Any]]:
    one, task = benchmark().one, benchmark().Task
    finite = [one(task("plan", "finite", FIRST_SEED + number, 4_000, 0.6)) for number in range(FINITE)]
    return finite + [one(task("plan", "envelopes", FIRST_SEED + number, 16_000, 0.6)) for number in range(ENVELOPES)]


@pytest.fixture(scope="module")
def coverage() -> list[dict[str, Any]]:
    one, task = benchmark().one, benchmark().Task
    cases = [(family, FIRST_SEED + number) for family in ("finite", "envelopes") for number in range(20)]
    return [one(task("coverage", family, seed, 2_000, 0.6)) for family, seed in cases]


def least(share: float, count: int) -> int:
    """Fewer hits than this have a chance below one in a thousand, if each of `count` has a chance of `share`."""
    return int(binom.ppf(0.001, count, share))


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["doubly_robust", "marginalised"])
def test_one_sided_bounds_cover_the_true_cost(coverage: list[dict[str, Any]], estimator: str) -> None:
    covered = sum(row["fresh"][estimator]["upper"] >= row["true_cost"] for row in coverage)
    assert covered >= least(0.93, len(coverage))


@pytest.mark.slow
def test_certified_plans_keep_to_their_budget(plans: list[dict[str, Any]]) -> None:
    certified = [row for row in plans if row["certified"]]
    kept = sum(row["true_cost"] <= row["budget"] for row in certified)
    # A certificate that is never given proves nothing.
    assert len(certified) >= len(plans) // 2
    assert kept >= least(0.95, len(certified))


@pytest.mark.slow
def test_the_plug_in_plan_overspends_on_the_same_campaigns(plans: list[dict[str, Any]]) -> None:
    excess = [row["plug_in_cost"] / row["budget"] - 1 for row in plans]
    spent = [row["true_cost"] / row["budget"] - 1 for row in plans]
    assert sum(value > 0 for value in excess) > sum(value > 0 for value in spent)
    assert sum(excess) / len(excess) > 0


def test_an_interrupted_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    out = tmp_path / "honesty.jsonl"
    out.write_text('{"seed": 1}\n{"seed": 2}\n{"se')
    assert benchmark().read(out) == [{"seed": 1}, {"seed": 2}]
    assert benchmark().read(tmp_path / "none.jsonl") == []


def test_shares_come_with_their_exact_interval() -> None:
    # Clopper-Pearson for 5 of 10, from its tables: 18.7 % to 81.3 %.
    assert benchmark().interval(5, 10) == "5 of 10 = 50.0% [18.7%, 81.3%]"
    assert benchmark().interval(0, 0) == "none"
    assert benchmark().interval(10, 10).endswith("[69.2%, 100.0%]")
