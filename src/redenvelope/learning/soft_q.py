"""Soft Q-learning from a log: values at one price, at several at once, or at all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.learning.backward import fit_backward
from redenvelope.learning.folds import UserFolds, new_folds
from redenvelope.learning.immediate import learn_immediate
from redenvelope.learning.late_effects import LateEffects
from redenvelope.learning.next_states import NextStates
from redenvelope.learning.settings import LearningSettings, StageProgress
from redenvelope.models.examples import Examples
from redenvelope.models.immediate import Immediate
from redenvelope.planning.learned_decisions import supported
from redenvelope.planning.learned_passes import in_blocks, present
from redenvelope.planning.learned_values import (
    LearnedValues,
    LearningReport,
    checked_duals,
    scaled_dual,
    unscaled_dual,
)
from redenvelope.policies.checks import whole_mask
from redenvelope.policies.constraints import Constraint

__all__ = ["SoftQ", "all_prices", "near_prices"]


@dataclass(frozen=True, eq=False)
class SoftQ:
    """A log made ready for learning at any price: its immediate outcomes are learned, its users dealt."""

    examples: Examples
    immediate: Immediate
    folds: UserFolds
    settings: LearningSettings
    seed: int
    eligible: NDArray[np.bool_]
    """[rows, actions]"""
    outcomes: NDArray[np.float32]
    """What `immediate` says of the log's own states, [rows, folds, 2, actions]: asked for at every price."""
    frequent: NDArray[np.bool_]
    """Actions that the guard lets through, [rows, actions]."""
    constraint: Constraint | None = None
    """What the mask of the rows was made by, and the learned values are to keep to."""
    explore: float = 0.0
    """Share of later decisions that is drawn evenly among what may be chosen."""

    @classmethod
    def prepare(
        cls,
        examples: Examples,
        settings: LearningSettings | None = None,
        seed: int = 0,
        eligible: ArrayLike | None = None,
        progress: StageProgress | None = None,
        constraint: Constraint | None = None,
        explore: float = 0.0,
    ) -> SoftQ:
        """Learn what needs no price. `eligible` [rows, actions] says what each row's user may get by the `constraint`
        and all else."""
        settings = settings or LearningSettings()
        if examples.budgets != 1:
            raise UsageError(
                f"values are learned for one budget, and this log has costs of {examples.budgets}; plan with a model"
            )
        mask = whole_mask(eligible, len(examples), examples.actions)
        folds = new_folds(examples, settings, seed)
        immediate = learn_immediate(examples, folds, settings, seed)
        if progress is not None:
            progress(1, examples.campaign_steps)
        outcomes, chances = in_blocks(
            lambda states: present(immediate, states), settings.knots * 2 * examples.actions, examples.states
        )
        frequent = chances >= settings.least_chance
        return cls(examples, immediate, folds, settings, seed, mask, outcomes, frequent, constraint, explore)

    @property
    def excluded(self) -> NDArray[np.float64]:
        """Share of the rows in which the guard rules an action out, [actions]."""
        return np.asarray(1.0 - self.frequent.mean(axis=0, dtype=np.float64))

    @property
    def unit(self) -> float:
        """The dual at which a mean reward is worth a mean cost: it sets the scale of duals."""
        reward, cost = np.abs(self.examples.outcomes).mean(axis=1)
        return float(reward / cost) if reward > 0 and cost > 0 else 1.0

    def learn(
        self,
        prices: ArrayLike,
        temperature: float = 0.0,
        warm: LearnedValues | None = None,
        progress: StageProgress | None = None,
    ) -> LearnedValues:
        """Learn the values at prices [prices, 1], all at once: they share a network, and every row teaches them all.

        `warm` are values for as many prices to start from, such as those of a neighbouring price.
        """
        duals = np.unique(checked_duals(prices))
        if not (np.isfinite(temperature) and temperature >= 0):
            raise UsageError(f"temperature must be zero or a positive number, not {temperature}")
        components = 3 if temperature > 0 else 2
        if warm is not None and (len(warm.duals), warm.components) != (len(duals), components):
            raise UsageError("a warm start needs values of as many prices, with a temperature or without alike")
        late = LateEffects(
            self.examples, self.outcomes.mean(axis=1), self.settings.lags, self.settings.discount, self.seed
        )
        allowed = supported(self.frequent, self.eligible)
        ahead = NextStates(self.examples, self.folds, self.outcomes, allowed, duals, temperature, self.explore)
        futures = fit_backward(
            self.examples,
            self.folds,
            lambda networks, rows: ahead.targets(networks, rows, late),
            len(duals),
            components,
            self.settings,
            self.seed,
            None if warm is None else warm.futures,
            progress,
        )
        return LearnedValues(
            immediate=self.immediate,
            futures=futures.networks,
            duals=duals,
            temperature=temperature,
            unit=self.unit,
            steps=self.examples.campaign_steps,
            layout=self.examples.layout,
            least_chance=self.settings.least_chance,
            report=LearningReport(futures.bellman_error, futures.epochs, self.excluded, late.outcomes),
            constraint=self.constraint,
            explore=self.explore,
        )

    def learn_all(self, temperature: float = 0.0, progress: StageProgress | None = None) -> LearnedValues:
        """Learn the values at all prices in one training: between the knots they are interpolated.

        Where many users switch at the same price, as in very small worlds, the cost that is believed between
        two knots may be off, because one knot's policy has switched and the other's has not: `learn_near`.
        """
        return self.learn(all_prices(self.unit, self.settings.knots), temperature, progress=progress)

    def learn_near(self, values: LearnedValues, dual: float, progress: StageProgress | None = None) -> LearnedValues:
        """Learn once more, with the knots close to a dual that a search found; 0 and infinity stay."""
        near = near_prices(values.duals, dual, self.unit, self.settings.knots)
        return self.learn(near, values.temperature, progress=progress)


def all_prices(unit: float, knots: int) -> NDArray[np.float64]:
    """Duals from 0 to infinity, [knots], evenly spread on the scale of `scaled_dual`."""
    if knots < 2:
        raise UsageError(f"all prices need at least 2 knots, not {knots}")
    return unscaled_dual(np.linspace(0.0, 1.0, knots), unit)


def near_prices(duals: NDArray[np.float64], dual: float, unit: float, knots: int) -> NDArray[np.float64]:
    """At most `knots` duals, spread evenly between the two of `duals` [any] around a dual, with 0 and infinity."""
    if knots < 4:
        raise UsageError(f"prices around a dual need at least 4 knots, not {knots}")
    place = int(np.clip(np.searchsorted(duals, dual), 1, len(duals) - 1))
    low, high = scaled_dual(duals[place - 1 : place + 1], unit)
    spread = np.linspace(low, min(high, 1 - 1e-6), knots - 2)
    return np.unique(np.concatenate([[0.0], unscaled_dual(spread, unit), [np.inf]]))
