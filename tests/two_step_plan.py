"""One small plan on the two-step problem, made once: its truth is exact."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from redenvelope import Cache, FiniteCampaign, FitSettings, Log, Plan, fit, log_from_frame, two_step
from redenvelope.models.training import NeuralSettings, TrainingSettings
from tests.quick_programs import quick_programs

BUDGET = 2.9295
QUICK = NeuralSettings(
    outcome_hidden=(16,),
    transition_hidden=(16,),
    members=1,
    reward_structure="independent",
    cost_structure="independent",
    training=TrainingSettings(steps=500, batch_rows=256),
)


@cache  # pytest makes a fixture anew for every module that imports it
def _log() -> Log:
    return log_from_frame(two_step().log(6_000, seed=4))


@cache
def _plan(stages: Path) -> Plan:
    with quick_programs():
        return fit(_log(), budget=BUDGET, settings=FitSettings(neural=QUICK), cache=Cache(stages))


@pytest.fixture(scope="session")
def campaign() -> FiniteCampaign:
    return two_step()


@pytest.fixture(scope="session")
def log() -> Log:
    return _log()


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where finished stages of fits are kept for all workers of a run: another budget trains no other model."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "stages"


@pytest.fixture(scope="session")
def plan(stages: Path) -> Plan:
    return _plan(stages)


@contextmanager
def models_that_train_quickly() -> Iterator[None]:
    """For commands of which nothing is asked that depends on how well a model is trained."""
    small = partial(FitSettings, neural=QUICK)
    with patch("redenvelope.fitting.settings.FitSettings", small), quick_programs():
        yield


@pytest.fixture
def small_models() -> Iterator[None]:
    with models_that_train_quickly():
        yield


def exploring(campaign: FiniteCampaign, share: float) -> FiniteCampaign:
    """The campaign as somebody meets it who leaves a share of all decisions to chance: its optimum is the best that
    such a policy can do, exactly."""
    problem = campaign.problem

    def mixed(table: np.ndarray, axis: int) -> np.ndarray:
        return (1 - share) * table + share * table.mean(axis=axis, keepdims=True)

    tables = {"rewards": mixed(problem.rewards, -1), "costs": mixed(problem.costs, -1)}
    return replace(campaign, problem=replace(problem, transitions=mixed(problem.transitions, 1), **tables))


class Truth(NamedTuple):
    """Means a user."""

    cost: float
    reward: float


def true_value(campaign: FiniteCampaign, plan: Plan) -> Truth:
    """What a plan costs and earns, exactly: its users are drawn to its prices once each."""
    shares = plan.policy.pricing.shares
    found = [campaign.value(partial(plan.policy.probabilities, row=row)) for row in range(len(shares))]
    return Truth(
        cost=sum(share * own.cost for share, own in zip(shares, found, strict=True)),
        reward=sum(share * own.reward for share, own in zip(shares, found, strict=True)),
    )
