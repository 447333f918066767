"""The neural environment model: an ensemble of outcome and transition networks, applied as one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.log.layout import StateLayout
from redenvelope.models.apply import apply_outcomes, apply_steps
from redenvelope.models.events import event_chances
from redenvelope.models.examples import require_states
from redenvelope.models.outcome import OutcomeNetwork
from redenvelope.models.targets import CostTarget, RewardTarget, new_target, target_as_dict
from redenvelope.models.transition import TailScale, TransitionNetwork, with_known_head
from redenvelope.models.weights import named_arrays, read_layout, restored

__all__ = ["Architecture", "NeuralModel"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Architecture:
    """The shape of the networks: all that is needed to build them anew."""

    layout: StateLayout
    actions: int
    events: int
    """What can come of an action, see events.py."""
    members: int
    outcome_hidden: tuple[int, ...]
    transition_hidden: tuple[int, ...]
    reward_structure: str
    cost_structure: str

    def networks(self, seed: int, reward_start: FloatArray, cost_start: FloatArray) -> dict[str, Any]:
        """Untrained networks that start from these scores [actions]; every array with a leading axis [members].

        A member does not depend on how many there are: the first is the same alone and in company.
        """
        structures = (self.reward_structure, self.cost_structure)
        members = []
        for member in range(self.members):
            generator = np.random.default_rng([seed, member])
            outcome = OutcomeNetwork(self.layout, self.actions, self.outcome_hidden, structures, generator)
            transition = TransitionNetwork(self.layout, self.actions, self.events, self.transition_hidden, generator)
            members.append({"outcome": outcome.start(reward_start, cost_start), "transition": transition})
        stacked: dict[str, Any] = jax.tree.map(
            lambda *arrays: np.stack([np.asarray(array) for array in arrays]), *members
        )
        return stacked


class NeuralModel(eqx.Module):
    """A learned world (see EnvironmentModel); every prediction is the mean over the members."""

    outcome: OutcomeNetwork
    """Arrays with a leading axis [members]."""
    transition: TransitionNetwork
    """Arrays with a leading axis [members]."""
    reward_target: RewardTarget
    cost_target: CostTarget
    scale: TailScale
    architecture: Architecture = eqx.field(static=True)

    @property
    def actions(self) -> int:
        """Number of actions, in the order of the action catalogue."""
        return self.architecture.actions

    @property
    def layout(self) -> StateLayout:
        """Where each part of a state stands."""
        return self.architecture.layout

    def member_outcomes(self, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean reward and cost of every action by every member, [members, n, actions] each."""

        now = jnp.asarray(states)
        return jax.vmap(lambda network: self._outcomes_of(network, now))(self.outcome)

    def _outcomes_of(self, network: OutcomeNetwork, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean reward and cost of every action by one member, [n, actions] each."""
        reward_scores, cost_scores = network(states)
        rewards = self.reward_target.mean(reward_scores)
        return rewards, self.cost_target.mean(cost_scores, rewards)

    def outcomes(self, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean reward and mean cost of every action: [n, width] -> ([n, actions], [n, actions])."""
        rewards, costs = self.member_outcomes(states)
        return rewards.mean(axis=0), costs.mean(axis=0)

    def successors(self, states: jax.Array) -> jax.Array:
        """Expected next state after every action: [n, width] -> [n, actions, width]."""
        now = jnp.asarray(states)
        chances = event_chances(*self.outcomes(now), self.cost_target, self.architecture.events).transpose(2, 1, 0)
        by_member = jax.vmap(lambda network: network.next_tail(now, chances, self.scale))(self.transition)
        members = self.architecture.members
        return with_known_head(now, sum(by_member[1:], by_member[0]) / members, self.layout)

    def predict(self, states: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean reward and cost of every action for many states, in batches: [n, width] -> [n, actions] each."""
        require_states(states, self.layout)
        rewards, costs = apply_outcomes(self, states)
        return rewards.astype(np.float64), costs.astype(np.float64)

    def roll_out(
        self, states: NDArray[np.float32], actions: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], FloatArray, FloatArray]:
        """Follow actions [n, depth] from states [n, width] on predicted states.

        Returns the expected states after each action [depth, n, width], and the expected reward and cost of
        each, [depth, n].
        """
        require_states(states, self.layout)
        everyone = np.arange(len(states))
        followed, rewards, costs = [], [], []
        now = states
        for taken in actions.T:
            step_rewards, step_costs, following = apply_steps(self, now)
            now = following[everyone, taken]
            followed.append(now)
            rewards.append(step_rewards[everyone, taken].astype(np.float64))
            costs.append(step_costs[everyone, taken].astype(np.float64))
        return np.stack(followed), np.stack(rewards), np.stack(costs)

    def of_member(self, member: int) -> NeuralModel:
        """One member's model, as an ensemble of its copies: the same shapes, so that nothing is compiled for it."""
        copies = [member] * self.architecture.members
        outcome, transition = jax.tree.map(lambda array: np.asarray(array)[copies], (self.outcome, self.transition))
        return NeuralModel(outcome, transition, self.reward_target, self.cost_target, self.scale, self.architecture)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
        """Plain data for JSON, and the weights by name."""
        config = {
            "architecture": asdict(self.architecture),
            "reward_target": target_as_dict(self.reward_target),
            "cost_target": target_as_dict(self.cost_target),
        }
        learned = {"outcome": self.outcome, "transition": self.transition, "scale": self.scale}
        return config, named_arrays(learned)

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, NDArray[np.float32]]) -> NeuralModel:
        """The model that `state` wrote."""
        architecture = _read_architecture(config["architecture"])
        parts = restored(_skeleton(architecture), arrays)
        targets = (new_target(config["reward_target"]), new_target(config["cost_target"]))
        return cls(parts["outcome"], parts["transition"], *targets, parts["scale"], architecture)


def _skeleton(architecture: Architecture) -> dict[str, Any]:
    """Untrained parts of the right shapes."""
    numbers = jnp.asarray(np.zeros(architecture.layout.dynamic_numbers, np.float32))
    scores = np.zeros(architecture.actions)
    return architecture.networks(0, scores, scores) | {"scale": TailScale(numbers, numbers, numbers)}


def _read_architecture(content: dict[str, Any]) -> Architecture:
    hidden = {name: tuple(content[name]) for name in ("outcome_hidden", "transition_hidden")}
    return Architecture(**content | hidden | {"layout": read_layout(content["layout"])})
