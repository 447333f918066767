"""The settings of a fit, with defaults that suit most logs: `FitSettings`, and `SearchSettings` inside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, get_args

from redenvelope.errors import UsageError, require_whole
from redenvelope.evaluation.estimators import Estimator
from redenvelope.learning.backward import LearningSettings
from redenvelope.learning.values_to_go import ValueSettings
from redenvelope.log.columns import nearest_name
from redenvelope.log.log import SHARES
from redenvelope.models.training import NeuralSettings
from redenvelope.plan.policy import MOST_MEMBERS
from redenvelope.planning.temperature import is_temperature
from redenvelope.serialization import to_plain

EXPLORE = 0.02
"""The largest default exploration share; smaller if that would cost too much (`price_grid.exploration_share`)."""
MOST_EXPLORED = 0.03
"""Largest share of a budget, and of the plan's gain, that exploration or new actions may cost by default."""

Method = Literal["auto", "planned", "learned", "bandit"]
History = Literal["auto", "none"]


@dataclass(frozen=True)
class SearchSettings:
    """How the prices to check are chosen; larger numbers are slower and more precise."""

    rungs: int = 24
    """Approximate number of prices on the plan's ladder; between two rungs their plans are mixed."""
    compared_rungs: int = 8
    """Approximate number of prices on the ladder of a policy for comparison."""
    pilot_users: int = 500
    """Number of tune users on whose first states temperature and price range are chosen."""
    pilot_prices: int = 8
    """Prices at which the pilot users' frontier is computed."""
    pilot_passes: int = 8
    """Rounds of column generation on the pilot users."""
    frontier_points: int = 10
    """Approximate number of points on the frontier of each of several budgets."""
    agreement_users: int = 15_000
    """Most users, from all folds, on whom effects of the past beyond the state are estimated."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            if not getattr(self, entry.name) >= 0:
                raise UsageError(f"the search setting {entry.name} must be 0 or more, not {getattr(self, entry.name)}")


@dataclass(frozen=True)
class FitSettings:
    """The settings of a fit."""

    method: Method = "auto"
    """`planned` plans ahead with the model, `learned` learns action values without it, `bandit` looks one step ahead;
    `auto` plans if the model is trusted on held-out users, and otherwise learns."""
    horizon: int | None = None
    """Depth of the trees, in steps; None is the smallest that loses nothing measurable on tune users."""
    leaf_values: bool = True
    """Whether trees may have values to go, learned inside the model, at their leaves; without them, trees are as deep
    as a moderate size allows and nothing follows them, as in the paper."""
    temperature: float | None = None
    """Weight of entropy; None chooses one that costs little reward and keeps overlap with the log."""
    confidence: float = 0.95
    """Confidence level of the certificate."""
    seed: int = 0
    parts: tuple[float, float, float] = SHARES
    """Shares of users in the train fold (models), the tune fold (method, temperature, prices) and the check fold."""
    cross_fit: int = 1
    """Number of groups of users, each of which checks a member of the plan that was made without it, so that all users
    check; 1 is a single member, checked by the check fold."""
    history: History = "auto"
    """Whether states contain the user's history; `auto` includes it if that predicts held-out users better."""
    explore: float | None = None
    """Share of decisions drawn uniformly from the eligible actions; it is planned, priced and certified as part of the
    policy. None is the campaign's share or, without one, a share that costs little of the budget and of the gain."""
    most_per_user: float | None = None
    """Cap on a user's cost over the campaign, which the ledger has to enforce; None is no cap."""
    known_before: tuple[str, ...] = ()
    """Features confirmed to be known when the action was chosen, although the audit suspects a leak."""
    shown_users: int = 5_000
    """Number of users for the report on who gets what: enough for shares to about one percent."""
    estimator: Estimator | None = None
    """Off-policy estimator; None is doubly robust with marginalised ratios."""
    search: SearchSettings = field(default_factory=SearchSettings)
    neural: NeuralSettings = field(default_factory=NeuralSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    values: ValueSettings = field(default_factory=ValueSettings)

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise UsageError(f"the method must be auto, planned, learned or bandit, not {self.method!r}")
        if self.history not in get_args(History):
            raise UsageError(f"the history must be auto or none, not {self.history!r}")
        for name in ("temperature", "explore", "most_per_user", "confidence"):
            given = getattr(self, name)
            if (given is not None or name == "confidence") and (isinstance(given, bool) or not isinstance(given, Real)):
                raise UsageError(f"{name} must be a number, not {given!r}")
        if self.horizon is not None:
            require_whole("the horizon", self.horizon)
        if self.temperature is not None and not is_temperature(self.temperature):
            raise UsageError(f"the temperature must be zero or a number from 1e-30 to 1e30, not {self.temperature}")
        if self.explore is not None and not 0 <= self.explore <= 1:
            raise UsageError(f"explore is a share of decisions from 0 to 1, such as 0.02, not {self.explore}")
        if self.most_per_user is not None and not 0 < self.most_per_user < float("inf"):
            raise UsageError(f"the most per user must be an amount above 0, not {self.most_per_user}")
        members = self.cross_fit
        whole = isinstance(members, int) and not isinstance(members, bool)
        if not (whole and 1 <= members <= MOST_MEMBERS):
            raise UsageError(f"cross_fit is a whole number of groups from 1 to {MOST_MEMBERS}, not {members!r}")
        seed: Any = self.seed
        if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**32:
            raise UsageError(f"the seed must be a whole number from 0 to {2**32 - 1:,}, not {self.seed!r}")
        object.__setattr__(self, "seed", int(seed))
        if not 0.5 < self.confidence < 1:
            raise UsageError(f"the confidence must be between 0.5 and 1, such as 0.95, not {self.confidence}")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; the estimator is given by name."""
        named = {"estimator": None if self.estimator is None else self.estimator.name}
        plain = {entry.name: to_plain(getattr(self, entry.name)) for entry in fields(self) if entry.name not in named}
        return plain | named


def settings_of(settings: FitSettings | None, choices: Mapping[str, Any]) -> FitSettings:
    """The settings with some fields replaced by keyword."""
    if settings is not None and not is_dataclass(settings):
        raise UsageError(f"settings must be FitSettings, not {settings!r:.60}; fit also takes its fields by name")
    base = settings or FitSettings()
    known = [entry.name for entry in fields(base)]
    unknown = sorted(choices.keys() - set(known))
    if unknown:
        near = nearest_name(unknown[0], known)
        meant = f"did you mean {near}?" if near else "see FitSettings for what there is"
        raise UsageError(f"fit has no argument {unknown[0]!r}; {meant}")
    return replace(base, **choices)
