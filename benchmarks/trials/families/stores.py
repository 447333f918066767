"""Stores: users of a store redeem more or less together, for a reason that is one draw per store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trials.families.laws import FloatArray, State
from trials.families.sending import Sending

SHOCK = 0.4
"""Standard deviation of a store's log-normal factor on the chance of redeeming, which is 1 on average."""


@dataclass(frozen=True)
class Stores(Sending):
    """So many users share a store; the log names it, and `fit` is told with `--cluster store`."""

    size_of_store: int = 50

    def start(self, users: int, generator: np.random.Generator, rare: bool) -> State:
        """See Laws: for the truth, every user has a store of their own, which is the same mean with less noise."""
        size = 1 if rare else self.size_of_store
        stores = -(-users // size)
        shock = generator.lognormal(-(SHOCK**2) / 2, SHOCK, size=stores)
        store = np.arange(users) // size
        return {**super().start(users, generator, rare), "store": store, "shock": shock[store]}

    def features(self, state: State, step: int) -> dict[str, NDArray[Any]]:
        """See Laws."""
        return {**super().features(state, step), "store": state["store"]}

    def redemption(self, state: State, step: int) -> FloatArray:
        """See Sending."""
        return np.minimum(super().redemption(state, step) * state["shock"], 1.0)
