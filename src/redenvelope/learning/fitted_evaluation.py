"""Fitted Q evaluation: reward and cost to go of given policies, learned from the log without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from redenvelope.errors import UsageError
from redenvelope.learning.backward import Futures, fit_backward
from redenvelope.learning.soft_q import SoftQ
from redenvelope.log.layout import StateLayout
from redenvelope.models.examples import require_states
from redenvelope.models.immediate import Immediate
from redenvelope.models.value_network import ValueNetwork, networks_at
from redenvelope.planning.learned_passes import future, in_blocks, present
from redenvelope.planning.learned_values import value_to_go
from redenvelope.policies.checks import checked_steps_left
from redenvelope.policies.policy import Policy

__all__ = ["PolicyValues", "evaluate_policies"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PolicyValues:
    """Reward and cost of every action, and of a policy ever after."""

    immediate: Immediate
    futures: Futures
    policies: int
    """Number of policies."""
    steps: int
    """Steps of the campaign."""
    layout: StateLayout

    def to_go(self, states: ArrayLike, steps_left: ArrayLike) -> FloatArray:
        """Outcomes to go of every first action under each policy, [outcomes, n, policies, actions]."""
        rows = np.asarray(states, dtype=np.float32)
        require_states(rows, self.layout)
        left = checked_steps_left(steps_left, len(rows), self.steps)
        result = np.empty((len(rows), self.policies, 2, self.immediate.actions))
        for steps in np.unique(left):
            networks = networks_at(self.futures.networks, self.steps - int(steps))

            def block(chunk: Any, networks: ValueNetwork | None = networks) -> NDArray[np.float32]:
                now = present(self.immediate, chunk)[0]
                return value_to_go(now, None if networks is None else future(networks, chunk), self.policies, 2)

            alike = np.flatnonzero(left == steps)
            result[alike] = in_blocks(block, self.policies * 2 * self.immediate.actions, rows[alike])
        return np.moveaxis(result, 2, 0)


def evaluate_policies(learner: SoftQ, policies: Sequence[Policy]) -> PolicyValues:
    """Learn the values of policies from the learner's log, all in one training.

    Nothing is maximised, so that there is nothing to guard and no bias to undo: the folds are averaged.
    """
    examples, steps = learner.examples, learner.examples.campaign_steps
    if not policies or any(policy.actions != examples.actions for policy in policies):
        raise UsageError(f"give at least one policy, each over the log's {examples.actions} actions")

    def next_values(networks: ValueNetwork | None, stage: int, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        states, mask = examples.states[rows], learner.eligible[rows]
        chosen = np.stack([policy.probabilities(states, steps - stage, mask) for policy in policies], axis=1)

        def block(chunk: Any, now: Any, probabilities: Any) -> NDArray[np.float32]:
            later = None if networks is None else future(networks, chunk)
            values = value_to_go(now, later, len(policies), 2)
            return np.asarray(np.einsum("npca,npa->npc", values, probabilities))

        numbers = len(policies) * 2 * examples.actions
        found: NDArray[np.float32] = in_blocks(
            block, numbers, states, learner.outcomes[rows], chosen.astype(np.float32)
        )
        return found

    def targets(networks: ValueNetwork | None, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        followed, stage = examples.continues[rows], int(learner.folds.step[rows[0]])
        target = np.zeros((len(rows), len(policies), 2), np.float32)
        target[followed] = learner.settings.discount * next_values(networks, stage + 1, rows[followed] + 1)
        return target

    futures = fit_backward(examples, learner.folds, targets, len(policies), 2, learner.settings, learner.seed)
    return PolicyValues(learner.immediate, futures, len(policies), steps, examples.layout)
