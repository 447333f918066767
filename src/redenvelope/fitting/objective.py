"""The objective of a fit: the largest reward within one or several budgets, or the lowest cost of a target reward."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redenvelope.campaign.campaign import Campaign
from redenvelope.campaign.costs import charged_log, is_plain
from redenvelope.campaign.records import Budget, NewAction
from redenvelope.campaign.rows import places_of
from redenvelope.errors import UsageError, require_whole
from redenvelope.fitting.settings import EXPLORE, MOST_EXPLORED
from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.log import ActionCatalogue, Log
from redenvelope.models.charges import Charges, new_charges
from redenvelope.plan.fixed_sequence_test import FIRST, BudgetTarget, Question
from redenvelope.policies.new_actions import IntroducedAction


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
    if audience is not None:
        require_whole("an audience", audience)
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


def introduced(objective: Objective, campaign: Campaign, log: Log) -> tuple[Objective, tuple[IntroducedAction, ...]]:
    """The objective without what the campaign's new actions may cost, and these; the `log` has each budget's cost."""
    question, steps = objective.question, log.campaign_steps
    known = places_of(tuple(each.action for each in campaign.new), *_labels(log))
    new = [each for each, place in zip(campaign.new, known, strict=True) if place is None]
    if not new:
        return objective, ()
    likes = [place or 0 for place in places_of(tuple(each.like for each in new), *_labels(log))]
    charges = np.array([_most(objective.budgets, each, place, log) for each, place in zip(new, likes, strict=True)])
    dearest = np.maximum(log.outcomes[1:].max(axis=1), charges.max(axis=0))
    # What a share of one would add: at each step, the action's own cost and the dearest decisions at all later steps.
    rises = steps * charges + steps * (steps - 1) / 2 * dearest
    limits = np.array([np.inf if each.limit is None else each.limit for each in question.budgets])
    cheap = MOST_EXPLORED * (limits / np.maximum(rises, 1e-300)).min(axis=1)
    usual = np.minimum(EXPLORE, cheap) / len(new)
    shares = np.array([own if each.share is None else each.share for each, own in zip(new, usual, strict=True)])
    if not (shares > 0).all() or shares.sum() >= 1:
        raise UsageError(f"[[new]]: no budget for {new[int(shares.argmin())].action!r}, or shares of 1 and more in all")
    mixtures = np.eye(len(log.catalogue))[likes]
    if campaign.items is not None:
        named = campaign.items.named(campaign.columns.name_of("action"))
        mixtures = named.mixtures(log, [each.action for each in new])
    added = shares[:, None] * rises
    targets = zip(question.budgets, added.sum(axis=0).tolist(), strict=True)
    budgets = tuple(replace(target, set_aside=aside) for target, aside in targets)
    rows = zip(new, likes, shares.tolist(), charges.tolist(), added.tolist(), mixtures.tolist(), strict=True)
    return replace(objective, question=replace(question, budgets=budgets)), tuple(
        IntroducedAction(one.action, like, share, tuple(own), tuple(dearest.tolist()), tuple(more), tuple(mixture))
        for one, like, share, own, more, mixture in rows
    )


def _most(budgets: tuple[Budget, ...], new: NewAction, like: int, log: Log) -> list[float]:
    """The most that a new action costs each budget, [budgets]."""
    found = []
    for budget in budgets:
        if budget.count is not None:
            found.append(float(like in places_of(budget.count, *_labels(log))))
        elif budget.summed != "cost":
            message = f"what {new.action!r} can charge the budget {budget.name!r} of the column {budget.summed!r} is"
            raise UsageError(f"[[new]]: {message} unknown; keep budgets of the cost or of counts")
        else:
            found.append(float(new.at_most))
    return found or [float(new.at_most)]


def _labels(log: Log) -> tuple[tuple[str, ...], bool]:
    return log.catalogue.labels, log.catalogue.numeric
