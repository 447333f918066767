"""What a log's features add up to: enough to fit an encoder, whatever the parts the log came in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.log import Log
from redenvelope.log.moments import NumberSums, merge_numbers, number_sums

__all__ = ["FeatureSums", "feature_sums", "merge_features"]


@dataclass(frozen=True, eq=False)
class FeatureSums:
    """Sums of some users' features; sums of parts that were read against the same schema merge."""

    first_step: int
    last_step: int
    numeric_names: tuple[str, ...]
    numbers: tuple[NumberSums, ...]
    """[numeric features]"""
    category_names: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    """The labels of each category, sorted."""
    label_users: tuple[NDArray[np.int64], ...]
    """How many users ever had each label, [labels] for each category."""
    static: frozenset[str]
    """Names of the features that never change within a user, as the whole log knows them."""


def feature_sums(log: Log) -> FeatureSums:
    """The sums of a log of at least one row."""
    features = log.features
    within = np.ones(len(log), dtype=bool)
    within[log.starts[:-1]] = False
    person: NDArray[np.int64] = np.repeat(np.cumsum(log.begins, dtype=np.int64), log.lengths)
    return FeatureSums(
        first_step=log.first_step,
        last_step=log.first_step + log.campaign_steps - 1,
        numeric_names=features.numeric_names,
        numbers=tuple(number_sums(features.numeric[:, column], within) for column in range(features.numeric.shape[1])),
        category_names=features.category_names,
        labels=features.labels,
        label_users=tuple(
            _label_users(features.codes[:, column], len(labels), person)
            for column, labels in enumerate(features.labels)
        ),
        static=features.static,
    )


def _label_users(codes: NDArray[np.int32], labels: int, person: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many people ever had each label, [labels], given the code and the person of each row, [rows]."""
    pairs = person * (labels + 1) + codes + 1
    first = np.ones(len(pairs), dtype=bool)
    first[1:] = pairs[1:] != pairs[:-1]  # most labels stay as they are within a user
    return np.bincount(np.unique(pairs[first]) % (labels + 1), minlength=labels + 1)[1:]


def merge_features(parts: Sequence[FeatureSums]) -> FeatureSums:
    """The sums of all parts, added in their order."""
    first = parts[0]
    return FeatureSums(
        first_step=min(part.first_step for part in parts),
        last_step=max(part.last_step for part in parts),
        numeric_names=first.numeric_names,
        numbers=tuple(merge_numbers(column) for column in zip(*(part.numbers for part in parts), strict=True)),
        category_names=first.category_names,
        labels=first.labels,
        label_users=tuple(np.sum(users, axis=0) for users in zip(*(part.label_users for part in parts), strict=True)),
        static=first.static,
    )
