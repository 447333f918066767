import numpy as np

from redenvelope.models.environment import bucket, filled


def test_buckets_hold_their_rows_and_are_few() -> None:
    sizes = np.arange(1, 500_000, 7)
    buckets = np.array([bucket(int(rows)) for rows in sizes])
    assert (buckets >= sizes).all()
    assert (np.diff(buckets) >= 0).all()
    assert len(set(buckets.tolist())) < 20
    # Nothing is more than doubled, and the large by no more than 131,072 rows.
    assert (buckets[sizes > 64] < 2 * sizes[sizes > 64]).all()
    assert (buckets - sizes < 2**17).all()


def test_a_bucket_has_room_for_itself() -> None:
    assert [bucket(rows) for rows in (1, 64, 65, 4_096, 4_097, 2**17, 2**17 + 1)] == [
        64, 64, 128, 4_096, 8_192, 2**17, 2**18,
    ]  # fmt: skip


def test_filling_adds_zeros_after_the_rows() -> None:
    whole = filled({"a": np.arange(3, dtype=np.int32), "b": np.ones((3, 2), np.float32)}, 5)
    np.testing.assert_array_equal(whole["a"], [0, 1, 2, 0, 0])
    np.testing.assert_array_equal(whole["b"], [[1, 1]] * 3 + [[0, 0]] * 2)
    assert whole["a"].dtype == np.int32
