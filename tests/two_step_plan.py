"""One small plan on the two-step problem, made once: its truth is exact."""

import pytest

from redenvelope.fitting.fit import fit
from redenvelope.fitting.settings import FitSettings
from redenvelope.log.log import Log
from redenvelope.log.read import log_from_frame
from redenvelope.models.fit import NeuralSettings
from redenvelope.models.training import TrainingSettings
from redenvelope.plan.plan import Plan
from redenvelope.simulate.finite import FiniteCampaign
from redenvelope.simulate.two_step import two_step

BUDGET = 2.9295
QUICK = NeuralSettings(
    outcome_hidden=(16,),
    transition_hidden=(16,),
    members=1,
    reward_structure="independent",
    cost_structure="independent",
    training=TrainingSettings(steps=500, batch_rows=256),
)


@pytest.fixture(scope="session")
def campaign() -> FiniteCampaign:
    return two_step()


@pytest.fixture(scope="session")
def log(campaign: FiniteCampaign) -> Log:
    return log_from_frame(campaign.log(6_000, seed=4))


@pytest.fixture(scope="session")
def plan(log: Log) -> Plan:
    return fit(log, budget=BUDGET, settings=FitSettings(neural=QUICK))
