"""Clustered standard errors: users with several episodes form one cluster each, and so do the users of a village or
store.

Episodes of one person have dependent errors, so errors, bounds and tests count people; users who share a draw or a
shock have dependent errors too, so they count clusters (`--cluster`). The estimate stays the mean over episodes. A
person, or a cluster, contributes the sum of its episodes' deviations from that mean, scaled so that the mean over
people is the same (the linearised ratio of two sums over people). A `Log` has the keys of its clusters, or of its
users, with equal keys adjacent.
"""

from __future__ import annotations

import numpy as np

from redenvelope.arrays import FloatArray, KeyArray
from redenvelope.log.log import begins_of


def person_keys(keys: KeyArray) -> KeyArray:
    """The distinct people, [people], from the keys of episodes [users], where equal keys are adjacent."""
    return keys[begins_of(keys)]


def by_person(added: FloatArray, keys: KeyArray, axis: int = 1) -> FloatArray:
    """Aggregate influences of episodes along an axis [users] to influences of people; unchanged if every person has one
    episode."""
    begins = begins_of(keys)
    people, episodes = int(np.count_nonzero(begins)), len(keys)
    if people == episodes:
        return added
    mean = added.mean(axis=axis, keepdims=True)
    sums = np.add.reduceat(added - mean, np.flatnonzero(begins), axis=axis)
    return np.asarray(mean + sums * (people / episodes))


def design_effect(added: FloatArray, keys: KeyArray) -> FloatArray:
    """Factor by which clustering widens standard errors, [prices]: the largest over outcomes, and at least 1. `added`
    holds influences, [outcomes, users, prices]."""
    people = by_person(added, keys)
    if people.shape == added.shape:
        return np.ones(added.shape[-1])
    clustered = people.std(axis=1, ddof=1) / np.sqrt(people.shape[1])
    plain = added.std(axis=1, ddof=1) / np.sqrt(added.shape[1])
    ratio = np.divide(clustered, plain, out=np.ones_like(plain), where=plain > 0)
    return np.asarray(np.maximum(ratio.max(axis=0), 1.0))
