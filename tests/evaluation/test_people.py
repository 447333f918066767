"""Several episodes of one user count once: errors against a simulation of users whose episodes err together."""

import numpy as np
import polars as pl
import pytest

from redenvelope import ColumnMap, log_from_frame, split
from redenvelope.evaluation.confidence import Spread
from redenvelope.evaluation.influence import by_person, design_effect, person_keys
from redenvelope.log.log import join_logs
from tests.log.files import many_users
from tests.partitioned_log import read_partitions


def drawn(generator: np.random.Generator, people: int) -> tuple[np.ndarray, np.ndarray]:
    """What sequences add, [1, sequences, 1], and their keys: one to four a person, with a part in common."""
    lengths = generator.integers(1, 5, people)
    common = np.repeat(generator.normal(0, 1, people), lengths)
    values = 3 + common + generator.normal(0, 0.5, len(common))
    return values[None, :, None], np.repeat(np.arange(people, dtype=np.uint64), lengths)


def test_the_error_is_that_of_repeated_samples() -> None:
    generator = np.random.default_rng(3)
    means, errors, naive = [], [], []
    for _ in range(400):
        added, keys = drawn(generator, 300)
        people = by_person(added, keys)
        assert people.shape == (1, 300, 1)
        assert people.mean() == pytest.approx(added.mean())
        means.append(added.mean())
        errors.append(float(Spread.of(people, axis=1).standard_error[0, 0]))
        naive.append(float(Spread.of(added, axis=1).standard_error[0, 0]))
    # 400 samples know a standard deviation to 3.5 %; counting sequences claims a third less than there is.
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.11)
    assert np.mean(naive) < 0.75 * np.std(means)
    assert design_effect(added, keys)[0] == pytest.approx(errors[-1] / naive[-1])


def test_people_with_one_sequence_each_change_nothing() -> None:
    added = np.random.default_rng(1).normal(size=(2, 50, 3))
    keys = np.arange(50, dtype=np.uint64)
    assert by_person(added, keys) is added
    assert design_effect(added, keys).tolist() == [1.0, 1.0, 1.0]
    assert person_keys(np.repeat(keys, 3)).tolist() == keys.tolist()


def test_episodes_are_sequences_and_folds_are_by_user() -> None:
    waves = [many_users(2).with_columns(wave=pl.lit(wave), cost=pl.col("cost") + wave) for wave in (2, 1, 10)]
    columns = ColumnMap(episode="wave")
    log = log_from_frame(pl.concat(waves).sample(fraction=1.0, shuffle=True, seed=2), columns)
    assert (len(log.users), log.people, log.campaign_steps) == (720, 240, 3)
    assert "240 users in 720 episodes" in repr(log)
    assert not log.has_gaps
    assert (log.lengths == 3).all()
    # In the order of the waves, for every user: what a wave added to the cost tells which it is.
    plain = log_from_frame(many_users(2))
    added = log.cost.reshape(240, 3, 3) - plain.cost.reshape(240, 1, 3)
    assert np.unique(added.round(9), axis=0).tolist() == [[[1.0] * 3, [2.0] * 3, [10.0] * 3]]
    folds = [set(fold.users) for fold in split(log)]
    assert not folds[0] & folds[1] and not folds[0] & folds[2] and not folds[1] & folds[2]
    assert [len(fold) for fold in folds] == [len(set(fold.users)) for fold in split(plain)]
    schema, parts = read_partitions(pl.concat(waves), columns, parts=3)
    together = join_logs(list(parts))
    assert schema.users == 240
    np.testing.assert_array_equal(together.cost, log.cost)
    np.testing.assert_array_equal(together.users.to_numpy(), log.users.to_numpy())
