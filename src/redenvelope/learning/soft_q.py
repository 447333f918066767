"""Soft Q-learning from a log (the paper's Algorithm 2): values at one price, at several at once, or at all prices.

A state's value is a double estimate (double Q-learning): all folds but one choose the action and that one values it,
which removes the upward bias of a maximum over noisy values. `SoftQ` prepares a log once and then learns at any prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.learning.backward import (
    LearningSettings,
    StageProgress,
    UserFolds,
    fit_backward,
    learn_immediate,
    new_folds,
)
from redenvelope.learning.late_effects import Ahead, LateEffects
from redenvelope.models.dataset import Examples
from redenvelope.models.networks import Immediate, ValueNetwork
from redenvelope.planning.choice import explored
from redenvelope.planning.q_values import (
    LearnedValues,
    LearningReport,
    block_rows,
    checked_duals,
    choose,
    future,
    in_blocks,
    present,
    supported,
)
from redenvelope.policies.policy import Constraint, whole_mask
from redenvelope.prices import outcome_weights, unscaled_dual


@dataclass(frozen=True, eq=False)
class SoftQ:
    """A log prepared for learning at any price: immediate outcomes are learned, users are in folds."""

    examples: Examples
    immediate: Immediate
    folds: UserFolds
    settings: LearningSettings
    seed: int
    eligible: NDArray[np.bool_]
    """[rows, actions]"""
    outcomes: NDArray[np.float32]
    """Predictions of `immediate` in the logged states, [rows, folds, 2, actions]; the same for all prices."""
    frequent: NDArray[np.bool_]
    """Actions that are frequent enough under the behaviour policy, [rows, actions]."""
    constraint: Constraint | None = None
    """The constraint behind `eligible`, which the learned values respect."""
    explore: float = 0.0
    """Share of later decisions drawn uniformly from the allowed actions."""

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
        """Learn what does not depend on the price. `eligible` [rows, actions] marks each row's eligible actions, by the
        `constraint` and for any other reason."""
        settings = settings or LearningSettings()
        if examples.budgets != 1:
            raise UsageError(
                f"values are learned for one budget, and this log has {examples.budgets}; plan with a model"
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
        """Share of rows in which an action is too rare to be used, [actions]."""
        return np.asarray(1.0 - self.frequent.mean(axis=0, dtype=np.float64))

    @property
    def unit(self) -> float:
        """The scale of prices: the price at which mean reward equals mean cost; 1 if either is zero."""
        reward, cost = np.abs(self.examples.outcomes).mean(axis=1)
        return float(reward / cost) if reward > 0 and cost > 0 else 1.0

    def learn(
        self,
        prices: ArrayLike,
        temperature: float = 0.0,
        warm: LearnedValues | None = None,
        progress: StageProgress | None = None,
    ) -> LearnedValues:
        """Learn the values at prices [prices, 1] together: they share a network, and every row trains all of them.

        `warm` are values at as many prices to start from, such as those of a neighbouring price.
        """
        duals = np.unique(checked_duals(prices))
        if not (np.isfinite(temperature) and temperature >= 0):
            raise UsageError(f"temperature must be zero or a positive number, not {temperature}")
        components = 3 if temperature > 0 else 2
        if warm is not None and (len(warm.duals), warm.components) != (len(duals), components):
            raise UsageError("a warm start needs values at as many prices, and with a temperature if there is one here")
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
        """Learn the values at all prices in one training run; between knots they are interpolated.

        Where many users switch at the same price, as in very small problems, the predicted cost between two knots may
        be wrong, because only one knot's policy has switched: learn again with knots near the price.
        """
        return self.learn(all_prices(self.unit, self.settings.knots), temperature, progress=progress)


def all_prices(unit: float, knots: int) -> NDArray[np.float64]:
    """Prices from 0 to infinity, [knots], evenly spaced on the scale of `scaled_dual`."""
    if knots < 2:
        raise UsageError(f"all prices need at least 2 knots, not {knots}")
    return unscaled_dual(np.linspace(0.0, 1.0, knots), unit)


@dataclass(frozen=True, eq=False)
class NextStates:
    """Values of logged states in their role as next states, at every price."""

    examples: Examples
    folds: UserFolds
    outcomes: NDArray[np.float32]
    """Immediate outcomes predicted by every fold, [rows, folds, 2, actions]."""
    allowed: NDArray[np.bool_]
    """[rows, actions]"""
    duals: NDArray[np.float64]
    """[prices]"""
    temperature: float
    explore: float = 0.0
    """Share of later decisions drawn uniformly from the allowed actions."""

    def targets(self, networks: ValueNetwork | None, rows: NDArray[np.int64], late: LateEffects) -> NDArray[np.float32]:
        """See backward.Targets."""
        after = rows[self.examples.continues[rows]] + 1
        sampled = late.sampled[after]
        value, ahead = np.empty((len(after), len(self.duals), self._components), np.float32), None
        # Only sampled rows need more than their value.
        if not sampled.all():
            value[~sampled] = self._apply(_values, networks, after[~sampled])
        if sampled.any():
            own = after[sampled]
            columns = self.examples.action[own], self.folds.unseen_weights(own)
            ahead = Ahead(*self._apply(_ahead, networks, own, *columns))
            value[sampled] = ahead.value
        return late.targets(rows, value, ahead)

    @property
    def _components(self) -> int:
        return 3 if self.temperature > 0 else 2

    def _apply(
        self, program: Any, networks: ValueNetwork | None, rows: NDArray[np.int64], *columns: NDArray[Any]
    ) -> Any:
        """Apply a program to rows, with further columns [rows, ...], in blocks."""
        weights = jnp.asarray(outcome_weights(self.duals[:, None]).astype(np.float32))
        temperature, explore = (jnp.asarray(np.float32(number)) for number in (self.temperature, self.explore))
        sizes = (len(self.duals), self._components, self.examples.actions)
        numbers = int(np.prod(sizes))
        shape = (block_rows(len(rows), numbers), self.folds.count, *sizes)
        nothing = jnp.asarray(np.zeros(shape, np.float32) if networks is None else 0.0)

        def block(states: Any, now: Any, allowed: Any, *others: Any) -> Any:
            later = nothing if networks is None else future(networks, states)
            return program(now, later, weights, temperature, explore, allowed, *others)

        own = (self.examples.states[rows], self.outcomes[rows], self.allowed[rows])
        return in_blocks(block, numbers, *own, *columns)


@eqx.filter_jit
def _values(*given: jax.Array) -> jax.Array:
    """Values of states, [n, prices, components]; `given` as in `_double`."""
    return _double(*given).value


@eqx.filter_jit
def _ahead(*given: jax.Array) -> Ahead:
    """The same, with values and probabilities of the logged action [n]; `unseen_weights` [n, folds]: see UserFolds."""
    *shared, action, unseen_weights = given
    found = _double(*shared)
    taken = unseen_weights.T[:, :, None] * jax.nn.one_hot(action, found.chosen.shape[-1])
    return Ahead(
        found.value,
        (found.others * taken[:, :, None, None]).sum(axis=(0, -1)),
        (found.chosen * taken[:, :, None]).sum(axis=(0, -1)),
    )


def _double(
    now: jax.Array, later: jax.Array, weights: jax.Array, temperature: jax.Array, explore: jax.Array, allowed: jax.Array
) -> DoubleValue:
    """The double estimate of states' values, with outcomes weighted by [outcomes, prices].

    `now` are immediate outcomes [n, folds, 2, actions], `later` values to go [n, folds, prices, components, actions].
    """
    values = later.at[..., :2, :].add(now[:, :, None])
    return double_value(jnp.swapaxes(values, 0, 1), weights, temperature, allowed, explore)


class DoubleValue(NamedTuple):
    """The double estimate of states' values."""

    value: jax.Array
    """[n, prices, components]"""
    chosen: jax.Array
    """Action probabilities as chosen by all folds but one, [folds, n, prices, actions]."""
    others: jax.Array
    """Values by all folds but one, [folds, n, prices, components, actions]."""


def double_value(
    values: jax.Array, weights: jax.Array, temperature: jax.Array, allowed: jax.Array, explore: jax.Array | float = 0.0
) -> DoubleValue:
    """Value of a state from [folds, n, prices, components, actions].

    All folds but one choose and that one values the choice, so that an action chosen because it is overestimated is
    not overvalued; the result is the mean over the valuing folds. With one fold and a temperature it is the
    log-sum-exp, split into reward, cost and entropy bonus. A share `explore` of decisions is drawn uniformly from the
    allowed actions.
    """
    others = _others(values)
    own, judged = choose(others, weights, temperature, allowed), values
    chosen = explored(own, allowed[:, None], explore, axis=-1)
    value = (chosen[..., None, :] * judged).sum(axis=-1)
    if values.shape[-2] == 3:
        entropy = -jax.scipy.special.xlogy(own, own).sum(axis=-1)
        value = value.at[..., 2].add(temperature * (1 - explore) * entropy)
    return DoubleValue(value.mean(axis=0), chosen, others)


def _others(values: jax.Array) -> jax.Array:
    """For every fold the mean of all others, [folds, ...]; a single fold values its own choice."""
    folds = len(values)
    if folds == 1:
        return values
    # An explicit sum: a reduction over the few folds would be a separate loop at three times the cost of the rest.
    return jnp.stack([sum(values[other] for other in range(folds) if other != fold) for fold in range(folds)]) / (
        folds - 1
    )
