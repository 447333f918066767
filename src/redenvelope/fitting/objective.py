"""What is asked of a fit: budgets by their names, or a reward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.campaign.campaign import Campaign
from redenvelope.campaign.costs import charged_log, is_plain
from redenvelope.campaign.records import Budget
from redenvelope.errors import UsageError
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.models.charges import Charges, new_charges
from redenvelope.plan.fixed_sequence_test import FIRST, BudgetTarget, Question


@dataclass(frozen=True)
class Objective:
    """The budgets of a campaign, or one of the log's cost."""

    budgets: tuple[Budget, ...]
    """Empty where the one budget is of the log's cost, or a reward is asked for."""
    question: Question

    @property
    def several(self) -> NDArray[np.float64] | None:
        """The mean a user that each budget allows, [budgets]; None with one of them."""
        limits = np.array([each.limit for each in self.question.budgets], dtype=np.float64)
        return limits if len(limits) > 1 else None

    @property
    def names(self) -> tuple[str, ...]:
        """[budgets]"""
        return tuple(each.name for each in self.question.budgets)

    @property
    def audited(self) -> float | None:
        """The budget of the log's own cost, that the audit may speak of; None where there is none."""
        return self.question.budget if is_plain(self.budgets) else None

    def charged(self, log: Log) -> Log:
        """The log with what counts against each budget."""
        return charged_log(log, self.budgets)

    def charges(self, log: Log, catalogue: ActionCatalogue, encoder: Encoder) -> Charges | None:
        """What counts at any state; None where the costs are as they are measured."""
        if is_plain(self.budgets):
            return None
        return new_charges(self.budgets, log.measured_names, catalogue, encoder)


def objective_of(
    budget: float | None,
    target_reward: float | None,
    campaign: Campaign | None,
    confidence: float,
    audience: int | None = None,
) -> Objective:
    """What the arguments ask for; budgets stand in the campaign or beside it, never in both."""
    budgets = () if campaign is None else campaign.budgets
    if not budgets:
        users = audience or (None if campaign is None else campaign.audience)
        return Objective((), Question((BudgetTarget(FIRST, budget, users),), target_reward, confidence))
    assert campaign is not None
    if budget is not None and len(budgets) > 1:
        raise UsageError(
            f"the campaign has several budgets ({', '.join(each.name for each in budgets)}), and one is given besides; "
            "write it in the campaign file (redenvelope reprice changes those of a plan by their names)"
        )
    if target_reward is not None:
        if len(budgets) > 1:
            raise UsageError(
                f"a target reward asks for the least cost, and the campaign has {len(budgets)} of them; "
                "leave one budget, or the target"
            )
        return Objective(budgets, Question((BudgetTarget(budgets[0].name, None),), target_reward, confidence))
    limits = campaign.limits if budget is None else (budget,)
    asked = tuple(
        BudgetTarget(each.name, limit, audience or each.audience or campaign.audience)
        for each, limit in zip(budgets, limits, strict=True)
    )
    return Objective(budgets, Question(asked, None, confidence))
