"""The same numbers as obp and SCOPE-RL on a small fixed input; theirs were stored by the command in the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from redenvelope.evaluation.data import OffPolicyData, gather
from redenvelope.evaluation.evaluate import evaluate

STORED = json.loads((Path(__file__).parent / "peer_numbers.json").read_text())
OBP = {"ipw": "per_decision", "snipw": "self_normalised_per_decision", "dm": "direct", "dr": "doubly_robust"}
SCOPE_RL = {
    "dm": "direct",
    "tis": "trajectory",
    "pdis": "per_decision",
    "dr": "doubly_robust",
    "sntis": "self_normalised_trajectory",
    "snpdis": "self_normalised_per_decision",
    "sndr": "weighted_doubly_robust",
}


def stored_evidence(steps: int) -> OffPolicyData:
    """The stored rows as users of so many steps."""
    arrays = {name: np.array(values) for name, values in STORED["input"].items()}
    starts = np.arange(0, len(arrays["action"]) + 1, steps)
    return gather(
        starts=starts,
        keys=np.arange(len(starts) - 1),
        action=arrays["action"],
        propensity=arrays["propensity"],
        outcomes=arrays["reward"][None],
        outcome_names=["reward"],
        probabilities=arrays["probabilities"],
        to_go=arrays["action_values"][None],
    )


@pytest.mark.parametrize(("theirs", "ours"), OBP.items())
def test_one_step_like_obp(theirs: str, ours: str) -> None:
    found = evaluate(stored_evidence(1), ours).value[0, 0]
    assert float(found) == pytest.approx(STORED["obp"][theirs], abs=1e-8)


@pytest.mark.parametrize(("theirs", "ours"), SCOPE_RL.items())
def test_sequences_like_scope_rl(theirs: str, ours: str) -> None:
    found = evaluate(stored_evidence(STORED["steps"]), ours).value[0, 0]
    assert float(found) == pytest.approx(STORED["scope_rl"][theirs], abs=1e-8)
