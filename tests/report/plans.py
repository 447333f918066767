"""Plans made by hand: the page reads figures, it needs no model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from redenvelope.log.log import ActionCatalogue
from redenvelope.plan.certificate import Certificate, Figure
from redenvelope.plan.plan import Plan
from redenvelope.plan.policy import PolicySpecification

HOSTILE = "<script>alert(1)</script>"
CHARTS = 11
"""In a whole report, the frontier's two drawings counted as one."""
LONG = "\"quoted\" & 'dear' and far too long for a legend"
LABELS = ("nothing", HOSTILE, LONG)


def certificate(**changes: Any) -> Certificate:
    content: dict[str, Any] = {
        "status": "certified",
        "reasons": (),
        "budget": 4.0,
        "dual": 0.0625,
        "method": "planned",
        "confidence": 0.95,
        "cost": Figure(3.65, 3.39, 3.9, 0.15, "marginalised"),
        "reward": Figure(2.97, 2.83, 3.11, 0.08, "marginalised"),
        "logged": {"cost": 7.84, "reward": 2.81},
        "diagnostics": {"effective_users_by_step": [546.1, 406.7], "propensities_estimated": False},
        "users": 3020,
        "policy_sha256": "ab" * 32,
        "fold_sha256": "cd" * 32,
    }
    return Certificate(**content | changes)


def frontier(points: int = 8) -> pl.DataFrame:
    """Reward √cost, so that what a budget buys is known."""
    cost = np.linspace(9, 1, points)
    reward = np.sqrt(cost)
    dual = np.append(0.5 / reward[:-1], np.inf)
    dual[0] = 0.0
    columns = {"dual": dual, "cost": cost, "reward": reward}
    for name, spread in (("cost", 0.3), ("reward", 0.1)):
        columns |= {f"{name}_lower": columns[name] - spread, f"{name}_upper": columns[name] + spread}
    return pl.DataFrame(columns | {"model_cost": cost, "model_reward": 1.02 * reward})


def outcome() -> dict[str, Any]:
    return {
        "actions": [
            {"action": place, "rows": 100, "predicted": 0.1 * place, "observed": 0.11 * place, "standard_error": 0.02}
            for place in range(3)
        ]
    }


def mean(estimate: float) -> dict[str, float]:
    return {"estimate": estimate, "lower": estimate - 0.1, "upper": estimate + 0.1, "standard_error": 0.05}


def record() -> dict[str, Any]:
    shares = [[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]
    return {
        "folds": {"train": {"users": 100, "rows": 200}, "certify": {"users": 20, "rows": 40}},
        "settings": {"solver": "newton", "safety": True, "confidence": 0.95, "seed": 0},
        "comparison": [
            {"policy": "logged", "cost": 7.84, "reward": 2.81, "reward_difference": 0.0},
            {"policy": f"bandit {HOSTILE}", "cost": 3.9, "reward": 2.5, "reward_difference": -0.31},
            {"policy": "plan", "cost": 3.65, "reward": 2.97}
            | {"reward_difference": 0.16, "reward_difference_lower": 0.02, "reward_difference_upper": 0.3}
            | {"cost_difference": -4.19, "cost_difference_lower": -4.5, "cost_difference_upper": -3.9},
        ],
        "allocation": {
            "users": 20,
            "actions": list(LABELS),
            "by_step": [
                {"step": step, "rows": 20, "probabilities": share, "logged": share, "cost": 1.0 + step}
                for step, share in enumerate(shares)
            ],
            "by_feature": [
                {
                    "feature": f"city {HOSTILE}",
                    "strength": 0.4,
                    "bins": [
                        {"label": f"bin {place} {HOSTILE}", "rows": 10, "probabilities": share, "cost": 1.0 + place}
                        for place, share in enumerate(shares)
                    ],
                }
            ],
        },
        "fidelity": {
            "users": 50,
            "trusted": False,
            "reasons": [f"the mean of {HOSTILE} is off"],
            "reward": outcome(),
            "cost": outcome(),
            "roll_outs": [
                {"depth": 1, "state_error": 0.1, "unchanged_error": 0.4, "predicted_reward": 1.0}
                | {"observed_reward": 1.1, "predicted_cost": 2.0, "observed_cost": 2.1}
            ],
        },
        "planner": {"notes": [f"thinned {HOSTILE}"], "depth": 2},
        "search": {
            "status": "converged",
            "message": "The plan was found.",
            "target": 3.5,
            "made_monotone_by": 0.01,
            "steps": [
                {"dual": 0.0, "cost": 9.0, "reward": 3.0},
                {"dual": "infinity", "cost": 1.0, "reward": 1.0},
                {"dual": 0.0625, "cost": 4.0, "reward": 2.0},
            ],
        },
        "audit": {
            "users": 120,
            "rows": 240,
            "steps": 2,
            "features": 3,
            "static_features": 1,
            "propensity_source": "logged",
            "verdicts": [f"Dearer is not always better: {HOSTILE}."],
            "actions": [
                {"label": label, "rows": 80, "reward": mean(0.3 * place), "cost": mean(1.0 * place)}
                for place, label in enumerate(LABELS)
            ],
            "calibration": [{"label": label, "ratio": 1.01, "z": 0.2} for label in LABELS],
            "reversals": [],
            "overlap": [
                {"step": step, "users": 120, "uniform": 100.0 / step, "greedy": 60.0 / step**2, "matching": 40}
                | {"alone": 60.0 / step}
                for step in (1, 2)
            ],
            "steps_alive": 1,
            "findings": [
                {"rule": "x", "severity": "warning", "message": f"column {HOSTILE} is odd", "remedy": "look"}
                | {"column": HOSTILE, "count": 1, "rows": [], "examples": [HOSTILE]},
                {"rule": "y", "severity": "warning", "message": "two values are odd", "remedy": "look"}
                | {"file": "log.csv", "column": "city", "count": 2, "rows": [3, 9], "examples": ["a", "b"]},
            ],
        },
    }


def plan(**changes: Any) -> Plan:
    specification = PolicySpecification("planned", 3, 0.002, 2, (0.0625,), (1.0,))
    content: dict[str, Any] = {
        "policy": SimpleNamespace(specification=specification),
        "catalogue": ActionCatalogue(LABELS, numeric=False),
        "certificate": certificate(),
        "frontier": frontier(),
        "record": record(),
    }
    return Plan(**content | changes)
