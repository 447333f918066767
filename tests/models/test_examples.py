from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import Encoder, ModelError, log_from_frame
from redenvelope.models.dataset import Examples, require_states

FRAME = pl.DataFrame(
    {
        "user": ["a", "a", "a", "b", "b"],
        "step": [0, 1, 3, 0, 1],
        "action": ["none", "coin", "none", "coin", "none"],
        "propensity": [0.5] * 5,
        "reward": [0.0, 1.0, 0.0, 1.0, 1.0],
        "cost": [0.0, 1.0, 0.0, 1.0, 0.0],
        "age": [30.0, 30.0, 30.0, 50.0, 50.0],
        "visits": [1.0, 2.0, 5.0, 7.0, 3.0],
    }
)


def test_a_log_becomes_rows_and_a_gap_is_no_next_state() -> None:
    log = log_from_frame(FRAME)
    examples = Examples.from_log(log, Encoder.fit(log))
    assert (len(examples), examples.users, examples.actions) == (5, 2, 2)
    np.testing.assert_array_equal(examples.continues, [True, False, False, True, False])
    np.testing.assert_array_equal(examples.is_last, [False, False, True, False, True])
    gathered = examples.gather(np.array([3, 0]))
    np.testing.assert_array_equal(gathered.next_tail, examples.states[[4, 1]][:, examples.layout.step + 1 :])
    np.testing.assert_array_equal(gathered.outcomes, [[1.0, 1.0], [0.0, 0.0]])


def test_held_out_rows_belong_to_other_users(draw: Callable[[int, int], Examples]) -> None:
    examples = draw(1_000, 0)
    rows, held_out = examples.split_users(0.2, seed=3)
    user = np.repeat(np.arange(1_000), np.diff(examples.starts))
    # A fifth of a thousand, give or take four standard errors of a share.
    assert abs(len(np.unique(user[held_out])) - 200) < 4 * np.sqrt(1_000 * 0.2 * 0.8)
    assert not set(user[rows]) & set(user[held_out])
    assert len(rows) + len(held_out) == len(examples)


def test_who_is_held_out_depends_on_the_user_alone(draw: Callable[[int, int], Examples]) -> None:
    examples = draw(300, 0)
    whole = set(examples.split_users(0.2, seed=3)[1])
    some = replace(
        examples,
        **{name: getattr(examples, name)[:300] for name in ("states", "action", "propensity", "continues")},
        outcomes=examples.outcomes[:, :300],
        starts=examples.starts[:101],
        keys=examples.keys[:100],
    )
    assert set(some.split_users(0.2, seed=3)[1]) == {row for row in whole if row < 300}
    assert set(examples.split_users(0.2, seed=4)[1]) != whole


def test_one_user_cannot_be_split(draw: Callable[[int, int], Examples]) -> None:
    with pytest.raises(ModelError, match="log more users"):
        draw(1, 0).split_users(0.1, seed=0)


def test_chunks_read_a_memory_map_as_memory(draw: Callable[[int, int], Examples], tmp_path: Path) -> None:
    examples = draw(40, 0)
    np.save(tmp_path / "states.npy", examples.states)
    mapped = Examples(**vars(examples) | {"states": np.load(tmp_path / "states.npy", mmap_mode="r")})
    rows = np.arange(0, len(examples), 2)
    chunks = list(mapped.chunks(rows, 25))
    assert [len(chunk.action) for chunk in chunks] == [25, 25, 10]
    np.testing.assert_array_equal(np.concatenate([chunk.states for chunk in chunks]), examples.states[rows])


def test_a_state_that_is_no_number_is_refused_in_words(draw: Callable[[int, int], Examples]) -> None:
    examples = draw(2, 0)
    states = examples.states.copy()
    states[3, 1] = np.nan
    with pytest.raises(ModelError, match=r"row 3 contains a value that is not a number \(column 1 of 8\)"):
        require_states(states, examples.layout)
    with pytest.raises(ModelError, match=r"shape \(rows, 8\)"):
        require_states(states[:, :4], examples.layout)
