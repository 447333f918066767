"""Training steps a second of d3rlpy's DoubleDQN on one core; runs in an environment of its own, prints JSON."""

from __future__ import annotations

import json
import sys
import time

import d3rlpy
import numpy as np
import torch

WARM_UP_STEPS = 50


def main() -> None:
    steps, batch, units, features, actions, users, length = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    rows = users * length
    terminals = np.zeros(rows)
    terminals[length - 1 :: length] = 1.0
    dataset = d3rlpy.dataset.MDPDataset(
        observations=generator.normal(size=(rows, features)).astype(np.float32),
        actions=generator.integers(0, actions, size=(rows, 1)),
        rewards=generator.normal(size=(rows, 1)).astype(np.float32),
        terminals=terminals,
        action_space=d3rlpy.constants.ActionSpace.DISCRETE,
        action_size=actions,
    )
    encoder = d3rlpy.models.VectorEncoderFactory([units, units])
    learner = d3rlpy.algos.DoubleDQNConfig(batch_size=batch, encoder_factory=encoder).create(device="cpu")
    learner.build_with_dataset(dataset)
    for step in range(WARM_UP_STEPS + steps):
        if step == WARM_UP_STEPS:
            start = time.process_time()
        learner.update(dataset.sample_transition_batch(batch))
    print(json.dumps({"steps_a_second": steps / (time.process_time() - start)}))


if __name__ == "__main__":
    main()
