"""The objective of a fit: the largest reward within one or several budgets, or the lowest cost of a target reward."""

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
    """What a fit optimizes."""

    budgets: tuple[Budget, ...]
    """The campaign's budgets; empty if the only budget is of the log's cost."""
    question: Question

    @property
    def several(self) -> NDArray[np.float64] | None:
        """Mean cost per user that each of several budgets allows, [budgets]; None with one budget."""
        limits = np.array([each.limit for each in self.question.budgets], dtype=np.float64)
        return limits if len(limits) > 1 else None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the budgets, [budgets]."""
        return tuple(each.name for each in self.question.budgets)

    @property
    def audited(self) -> float | None:
        """The budget of the log's own cost, for the audit; None if there is none."""
        return self.question.budget if is_plain(self.budgets) else None

    def charged(self, log: Log) -> Log:
        """The log with each budget's cost."""
        return charged_log(log, self.budgets)

    def charges(self, log: Log, catalogue: ActionCatalogue, encoder: Encoder) -> Charges | None:
        """How the budgets' costs follow from measured outcomes; None if the only cost is the log's."""
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
    """The objective that the arguments describe; budgets come from the campaign or the arguments, never both."""
    budgets = () if campaign is None else campaign.budgets
    if not budgets:
        users = audience if audience is not None or campaign is None else campaign.audience
        return Objective((), Question((BudgetTarget(FIRST, budget, users),), target_reward, confidence))
    assert campaign is not None
    if budget is not None and len(budgets) > 1:
        raise UsageError(
            f"the campaign has several budgets ({', '.join(each.name for each in budgets)}), and another is given; "
            "change it in the campaign file (redenvelope reprice changes the budgets of a plan by name)"
        )
    if target_reward is not None:
        if len(budgets) > 1:
            raise UsageError(
                f"a target reward minimizes one cost, and the campaign has {len(budgets)} budgets; "
                "remove all but one of them, or the target"
            )
        return Objective(budgets, Question((BudgetTarget(budgets[0].name, None),), target_reward, confidence))
    limits = campaign.limits if budget is None else (budget,)
    targets = tuple(
        BudgetTarget(each.name, limit, audience or each.audience or campaign.audience)
        for each, limit in zip(budgets, limits, strict=True)
    )
    return Objective(budgets, Question(targets, None, confidence))
