"""What every action is worth, user by user and price by price: the one record that planning and learning give."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.policies.eligibility_state import Eligible


class ActionValues(NamedTuple):
    """Values and decisions for some users at some prices; arrays of numpy, or of jax inside a compiled program."""

    q: Any
    """Penalised reward to go, and entropy bonus of later steps, [users, prices, actions]; −inf if not eligible. Minus
    the cost to go where the price is infinite."""
    probabilities: Any
    """Of each first action, [users, prices, actions]."""
    to_go: Any
    """Outcomes of the action and of the policy after it, without entropy bonus, [outcomes, users, prices, actions]:
    the reward, then one cost for each budget."""

    def expected(self) -> NDArray[np.float64]:
        """Outcomes of following the policy, [outcomes, users, prices]."""
        return np.asarray(np.einsum("upa,oupa->oup", self.probabilities, self.to_go, dtype=np.float64))


class Decided(NamedTuple):
    """All that is needed to decide."""

    probabilities: NDArray[np.float32]
    """Of each action, [users, prices, actions]."""
    outcomes: NDArray[np.float32]
    """Expected outcomes of this step alone, [outcomes, users, actions]."""


class Valuer(Protocol):
    """Says what every action is worth, at any prices."""

    @property
    def actions(self) -> int:
        """Number of actions, in the order of the action catalogue."""
        ...

    @property
    def budgets(self) -> int:
        """Number of budgets: costs after the reward."""
        ...

    @property
    def depth(self) -> int:
        """Steps that its values look ahead."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out to keep it quick or safe, in words."""
        ...

    def values(
        self, states: ArrayLike, steps_left: ArrayLike, prices: ArrayLike, eligible: Eligible = None
    ) -> ActionValues:
        """States [users, width], steps left (a number, or [users]) and prices [prices, budgets] -> values."""
        ...

    def decided(
        self,
        states: ArrayLike,
        steps_left: ArrayLike,
        prices: ArrayLike,
        eligible: Eligible = None,
        waiting: bool = False,
    ) -> Decided:
        """The decisions of `values` and this step's `outcomes`, in one pass: quicker for many users at few prices.

        Where somebody is `waiting`, few users are decided for at once, as quickly as possible.
        """
        ...

    def outcomes(self, states: NDArray[np.float32]) -> NDArray[np.float64]:
        """Expected outcomes of this step alone: [users, width] -> [outcomes, users, actions]."""
        ...
