"""A plan in use, with all that depends on it: swapped as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from redenvelope.ledger.ledger import Ledger
from redenvelope.ledger.records import Fund, PriceNote
from redenvelope.plan.plan import Plan
from redenvelope.policies.pricing import Pricing
from redenvelope.serve.affordable import Tariff
from redenvelope.serve.deciding import PlanInUse
from redenvelope.serve.funds import kept_budgets, served_funds
from redenvelope.serve.pacing import Pacer, Progress
from redenvelope.serve.settings import ServeSettings
from redenvelope.serve.tariffs import Amounts, tariff_of

__all__ = ["InUse", "load_use"]


@dataclass(frozen=True, eq=False)
class InUse:
    """A plan, what its actions cost, and who keeps its price."""

    plan: PlanInUse
    tariff: Tariff
    pacer: Pacer | None

    @property
    def pricing(self) -> Pricing:
        """The price now."""
        return self.plan.plan.policy.pricing if self.pacer is None else self.pacer.pricing

    def beliefs(self) -> dict[str, dict[str, Any]]:
        """What pacing believes, by budget."""
        found = () if self.pacer is None else self.pacer.beliefs
        return {name: one.as_dict() for name, one in zip(self.tariff.budgets, found, strict=False)}

    def solve(self, ledger: Ledger, now: int) -> PriceNote | None:
        """Look at the money again; what to remember, where the price changed."""
        if self.pacer is None:
            return None
        counts = [0] * self.plan.steps
        for tally in ledger.tallies():
            if 0 <= tally.step - self.plan.first_step < len(counts):
                counts[tally.step - self.plan.first_step] += tally.decided
        balances = {one.budget: one for one in ledger.balances()}
        progress = Progress(tuple(balances[name] for name in self.tariff.budgets), tuple(counts))
        if not self.pacer.solve(progress):
            return None
        content = {
            "budgets": self.tariff.budgets,
            "prices": self.pricing.prices,
            "shares": self.pricing.shares,
            "decisions": sum(counts),
            "spent": {one.budget: one.spent for one in progress.balances},
            "beliefs": self.beliefs(),
        }
        return PriceNote(now, msgspec.json.encode(content).decode())


def load_use(
    folder: Path, funds: Sequence[Fund], amounts: Amounts | None, settings: ServeSettings
) -> tuple[InUse, list[Fund]]:
    """Load a plan and warm it up; with the funds in its order, as it keeps them."""
    plan = Plan.load(folder)
    served = served_funds(kept_budgets(plan, settings.minor_units), funds)
    budgets = [fund.budget for fund in served]
    tariff = tariff_of(plan, budgets, amounts, settings)
    pacer = None
    if settings.audience is not None and settings.pacing is not None:
        units = [one.minor_units for one in tariff.kept]
        pacer = Pacer(plan, settings.pacing, settings.audience, units)
    rows = len(plan.policy.pricing.shares) if pacer is None else pacer.rows
    return InUse(PlanInUse(plan, settings.seed, rows).warm(), tariff, pacer), served
