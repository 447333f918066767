"""Learn what does not depend on the price: the outcomes of a step, and the behaviour policy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from redenvelope.errors import ModelError
from redenvelope.learning.folds import LearningSettings, UserFolds, always, gather, pick
from redenvelope.models.dataset import Examples, Rows
from redenvelope.models.networks import Folded, Immediate, OutcomeNetwork, WideDeep, slots, stack
from redenvelope.models.responses import allowed_structures, falls
from redenvelope.models.targets import (
    CostTarget,
    OutcomeTargets,
    RewardTarget,
    cost_target,
    reward_target,
    starting_scores,
    training_labels,
)
from redenvelope.models.training import train


def learn_immediate(examples: Examples, folds: UserFolds, settings: LearningSettings, seed: int) -> Immediate:
    """Learn the outcomes of a step and the behaviour policy from all rows of a log.

    They are separate from the values to go: they need not be learned again at every price, and rows of all steps
    train them together, with targets of their own (a probability, an amount).
    """
    training, held_out = folds.split(np.arange(len(examples)), "anything")
    rows = np.unique(training)
    (reward, cost), action = examples.outcomes[:, rows], examples.action[rows]
    rewarding: RewardTarget = reward_target(reward)
    costing: CostTarget = cost_target(cost, reward, action, examples.actions)
    propensity = examples.propensity[rows]
    structures = tuple(
        settings.structure or _structure(target, value, reward, action, propensity)
        for target, value in ((rewarding, reward), (costing, cost))
    )
    networks = []
    for fold in range(folds.count):
        generator = np.random.default_rng([seed, 0, fold])
        outcome = OutcomeNetwork(
            examples.layout, examples.actions, settings.hidden, (structures[0], structures[1]), generator
        )
        # It only has to detect rare actions: one hidden layer suffices.
        behaviour = WideDeep(examples.layout, settings.hidden[-1:], examples.actions, generator)
        networks.append(
            {"outcome": _started(outcome, examples, training[:, fold], rewarding, costing), "behaviour": behaviour}
        )
    stacked = stack(networks)
    result = train(
        {part: Folded(stacked[part], jnp.asarray(slots(folds.count))) for part in stacked},
        (rewarding, costing),
        immediate_loss,
        always(gather(examples, training)),
        len(training),
        gather(examples, held_out),
        settings.immediate,
        [(seed, 0, fold) for fold in range(folds.count)],
    )
    if not np.isfinite([losses[-1] for losses in result.held_out.values()]).all():
        raise ModelError(
            "learning the outcomes of a step diverged: the held-out loss is not a number; lower "
            "the learning rate, or check the log for extreme rewards or costs"
        )
    parts = result.networks
    return Immediate(parts["outcome"], parts["behaviour"], rewarding, costing, examples.actions)


def immediate_loss(networks: Any, constants: Any, rows: Any) -> dict[str, jax.Array]:
    """Mean losses of one fold's outcome and behaviour networks on FoldedRows (a training `Loss`)."""
    rewarding, costing = constants
    slot = networks["outcome"].slot
    states, action, reward, cost = (pick(column, slot) for column in rows[:4])
    own = Rows(states, action, jnp.stack([reward, cost], axis=1), next_tail=states, continues=reward)
    losses = networks["outcome"].network.losses(own, OutcomeTargets(rewarding, (costing,)))
    scores = networks["behaviour"].network(states)
    taken = (scores * jax.nn.one_hot(action, scores.shape[1])).sum(axis=1)
    behaviour_loss = jax.scipy.special.logsumexp(scores, axis=1) - taken
    return {"outcome": losses.mean(axis=1).sum(), "behaviour": behaviour_loss.mean()}


def _started(
    network: OutcomeNetwork,
    examples: Examples,
    rows: NDArray[np.int64],
    rewarding: RewardTarget,
    costing: CostTarget,
) -> OutcomeNetwork:
    """The network, starting from the means of its own fold's rows [any]: folds stay independent."""
    (reward, cost), action = examples.outcomes[:, rows], examples.action[rows]
    scores = [
        starting_scores(target, value, reward, action, examples.actions)
        for target, value in ((rewarding, reward), (costing, cost))
    ]
    return network.start(np.stack(scores))


def _structure(
    target: RewardTarget | CostTarget,
    value: NDArray[np.float64],
    reward: NDArray[np.float64],
    action: NDArray[np.int32],
    propensity: NDArray[np.float64],
) -> str:
    """The most restrictive structure that the log does not contradict."""
    used, labels = training_labels(target, value, reward, action)
    actions = int(action.max()) + 1
    return allowed_structures(falls(labels[used], action[used], propensity[used], actions))[0]
