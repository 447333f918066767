"""Store what the peers say on a small fixed input, for the tests: python benchmarks/peers/store_numbers.py"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from environment import PACKAGES, peer_python

USERS, STEPS, ACTIONS = 25, 3, 4
HOME = Path(__file__).resolve().parents[2]


def fixed_input(seed: int, rows: int) -> dict[str, np.ndarray]:
    """Rows of a made-up log, seen through a made-up policy and baseline."""
    generator = np.random.default_rng(seed)
    logger = generator.dirichlet(np.full(ACTIONS, 3.0), size=rows).round(3).clip(min=0.01)
    action = np.array([generator.choice(ACTIONS, p=row / row.sum()) for row in logger])
    probabilities = generator.dirichlet(np.ones(ACTIONS), size=rows)
    return {
        "action": action,
        "reward": generator.normal(1.0, 1.0, size=rows).round(4),
        "propensity": logger[np.arange(rows), action],
        "probabilities": probabilities / probabilities.sum(axis=1, keepdims=True),
        "action_values": generator.normal(1.0, 0.5, size=(rows, ACTIONS)).round(4),
    }


def ask(kind: str, arrays: dict[str, np.ndarray]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        for name, array in arrays.items():
            np.save(Path(folder) / f"{name}.npy", array)
        (Path(folder) / "steps.txt").write_text(str(STEPS))
        command = [peer_python(), Path(__file__).parent / "run.py", kind, folder]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(answer.splitlines()[-1])["values"]


def main() -> None:
    arrays = fixed_input(7, USERS * STEPS)
    content = {
        "command": "python benchmarks/peers/store_numbers.py",
        "packages": list(PACKAGES),
        "steps": STEPS,
        "input": {name: array.tolist() for name, array in arrays.items()},
        "obp": ask("one_step", arrays),
        "scope_rl": ask("sequential", arrays),
    }
    path = HOME / "tests" / "evaluation" / "peer_numbers.json"
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
