"""A plan in use, with all that depends on it: swapped as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from redenvelope.ledger.ledger import Ledger
from redenvelope.ledger.records import PriceNote
from redenvelope.plan.plan import Plan
from redenvelope.policies.pricing import Pricing
from redenvelope.serve.affordable import Tariff, tariff_of
from redenvelope.serve.deciding import PlanInUse
from redenvelope.serve.pacing import Pacer, Progress
from redenvelope.serve.settings import ServeSettings

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

    def solve(self, ledger: Ledger, now: int) -> PriceNote | None:
        """Look at the money again; what to remember, where the price changed."""
        if self.pacer is None:
            return None
        counts = [0] * self.plan.steps
        for tally in ledger.tallies():
            if 0 <= tally.step - self.plan.first_step < len(counts):
                counts[tally.step - self.plan.first_step] += tally.decided
        progress = Progress(ledger.balances()[0], tuple(counts))
        if not self.pacer.solve(progress):
            return None
        belief = self.pacer.belief
        content = {
            "prices": self.pricing.prices,
            "shares": self.pricing.shares,
            "decisions": sum(counts),
            "spent": progress.balance.spent,
            "belief": None if belief is None else belief.as_dict(),
        }
        return PriceNote(now, msgspec.json.encode(content).decode())


def load_use(
    folder: Path, budgets: Sequence[str], amounts: Mapping[str, float] | None, settings: ServeSettings
) -> InUse:
    """Load a plan and warm it up."""
    plan = Plan.load(folder)
    tariff = tariff_of(plan, budgets, amounts, settings)
    pacer = None
    if settings.audience is not None and settings.pacing is not None:
        pacer = Pacer(plan, settings.pacing, settings.audience, settings.minor_units)
    return InUse(PlanInUse(plan, settings.seed).warm(), tariff, pacer)
