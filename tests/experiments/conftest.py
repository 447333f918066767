"""Studies whose methods all plan in counted models: no network is trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from experiments.settings import quick_settings
from experiments.studies import METHODS, Studies


@pytest.fixture(scope="session")
def counted_studies() -> Studies:
    studies = Studies(replace(quick_settings(), budgets=3, duals=9))
    for study in studies.two_step:
        for policy, learned_by in METHODS:
            study.known[policy, learned_by] = study.price(policy, "counted model")
    return studies
