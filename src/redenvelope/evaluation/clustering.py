"""Clustered errors: users with several episodes are one cluster each, and so are the users of a village or a store.

Episodes of one person err together, so errors, bounds and tests count people; users who share a draw or a shock err
together, so they count clusters (`--cluster`). The estimate stays the mean over episodes; a person, or a cluster, adds
the sum of its episodes' deviations from it, scaled so that the mean over people is the same (the linearised ratio of
two sums over people). A `Log` has the keys of its clusters, or of its users, and keeps those of one adjacent.
"""

from __future__ import annotations

import numpy as np

from redenvelope.arrays import FloatArray, KeyArray
from redenvelope.log.log import begins_of


def person_keys(keys: KeyArray) -> KeyArray:
    """The distinct people, [people], of the keys of episodes [users], where those of one person are adjacent."""
    return keys[begins_of(keys)]


def by_person(added: FloatArray, keys: KeyArray, axis: int = 1) -> FloatArray:
    """What people add to an estimate, given what their episodes add along an axis [users]; unchanged where every
    person has one."""
    begins = begins_of(keys)
    people, episodes = int(np.count_nonzero(begins)), len(keys)
    if people == episodes:
        return added
    mean = added.mean(axis=axis, keepdims=True)
    sums = np.add.reduceat(added - mean, np.flatnonzero(begins), axis=axis)
    return np.asarray(mean + sums * (people / episodes))


def design_effect(added: FloatArray, keys: KeyArray) -> FloatArray:
    """Factor by which errors widen when people are counted instead of episodes, [prices]: the largest of all outcomes,
    and at least 1. `added` is [outcomes, users, prices]."""
    people = by_person(added, keys)
    if people.shape == added.shape:
        return np.ones(added.shape[-1])
    clustered = people.std(axis=1, ddof=1) / np.sqrt(people.shape[1])
    plain = added.std(axis=1, ddof=1) / np.sqrt(added.shape[1])
    ratio = np.divide(clustered, plain, out=np.ones_like(plain), where=plain > 0)
    return np.asarray(np.maximum(ratio.max(axis=0), 1.0))
