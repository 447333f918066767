"""Keyed randomness: one number in [0, 1) for each user, stream, seed and step, and the action drawn with it.

Folds, samples, groups and draws all come from here. A stream is named after its purpose, so that no two purposes share
numbers, whatever the seed.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from redenvelope.arrays import FloatArray, KeyArray

_WHOLE = re.compile(r"(0|-?[1-9][0-9]*)(\.0+)?")
_NARROW = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)
_KEY_BYTES = 8
_MOST_DIGITS = 20  # of a 64-bit integer, with its sign
_LARGEST = 2**64 - 1
# Texts that `user_key` reads as 64-bit integers for certain, and texts that it may normalise before hashing.
_PLAIN_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_READ_OTHERWISE = r"^-?[0-9]+(\.0+)?$|^[\s\x1c-\x1f]|[\s\x1c-\x1f]$"
# The odd constant of SplitMix64: keeps a key of zero from mixing to zero.
_GOLDEN = 0x9E3779B97F4A7C15


def user_key(user: int | str) -> int:
    """The key of one id. 7, "7" and "7.0" are one user, because the stored type of an id depends on the others."""
    if isinstance(user, str):
        user = user.strip()
        whole = _WHOLE.fullmatch(user)
        if whole is None or len(whole[1]) > _MOST_DIGITS:
            return _text_key(user if whole is None else whole[1])
        user = int(whole[1])
    return user & _LARGEST if -(2**63) <= user < 2**63 else _text_key(str(user))


def user_keys(users: pl.Series) -> KeyArray:
    """The keys of ids [users], integers or text; equal ids have equal keys on every machine."""
    if users.dtype in _NARROW:
        return users.cast(pl.Int64).to_numpy().view(np.uint64)
    text = users.cast(pl.String)
    keys = np.empty(len(text), dtype=np.uint64)
    integer = text.str.contains(_PLAIN_INTEGER)
    otherwise = text.str.contains(_READ_OTHERWISE) & ~integer
    keys[integer.to_numpy()] = text.filter(integer).cast(pl.Int64).to_numpy().view(np.uint64)
    keys[otherwise.to_numpy()] = [user_key(user) for user in text.filter(otherwise)]
    itself = ~(integer | otherwise)
    keys[itself.to_numpy()] = _text_keys(text.filter(itself))
    return keys


def _text_keys(texts: pl.Series) -> KeyArray:
    """`_text_key` of each text, several times faster, because the hash state is initialised once and copied."""
    begin, digests = hashlib.blake2b(digest_size=_KEY_BYTES).copy, []
    for text in texts.cast(pl.Binary):
        digest = begin()
        digest.update(text)
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)


def _text_key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest())


def fraction(keys: KeyArray, stream: str, seed: int, step: ArrayLike = 0) -> FloatArray:
    """A number in [0, 1) for each key [users], determined by key, stream, seed and step (a number, or [users])."""
    steps = np.atleast_1d(np.asarray(step, dtype=np.int64)).astype(np.uint64)
    if len(keys) == len(steps) == 1:  # a single request: Python integers are several times faster
        mixed = _mix(_mix(int(keys[0]) ^ _stream_key(stream, seed)) ^ _mix(int(steps[0])))
        return np.array([(mixed >> 11) * 2.0**-53])
    words = _mix(_mix(np.asarray(keys, dtype=np.uint64) ^ np.uint64(_stream_key(stream, seed))) ^ _mix(steps))
    return np.asarray((words >> 11).astype(np.float64) * 2.0**-53)


def fold(keys: KeyArray, folds: int, stream: str, seed: int) -> NDArray[np.int64]:
    """The fold of each key, from 0 to folds − 1, [users]; the folds are of about equal size."""
    return np.minimum((fraction(keys, stream, seed) * folds).astype(np.int64), folds - 1)


def member_of(keys: KeyArray, members: int) -> NDArray[np.int64]:
    """The member of a cross-fitted plan that each key follows, [users], made without its group; no seed changes it."""
    return fold(keys, members, "member", 0)


def draw(probabilities: ArrayLike, uniforms: ArrayLike) -> NDArray[np.intp]:
    """One action drawn for each row: probabilities [..., actions], uniforms in [0, 1) [...] -> [...]."""
    shape = np.shape(probabilities)
    if shape[:-1] == (1,):  # a single request, as above; the sums are the same
        edge = list(accumulate(np.asarray(probabilities, dtype=np.float64)[0].tolist()))
        reached = np.asarray(uniforms, dtype=np.float64).item() * edge[-1]
        return np.array([bisect_right(edge, reached, hi=len(edge) - 1)], dtype=np.intp)
    # Put actions first, so that every operation runs along all rows at once: numpy is slow along short rows.
    edges = np.array(np.moveaxis(np.asarray(probabilities, dtype=np.float64), -1, 0), order="C")
    for action in range(1, len(edges)):
        edges[action] += edges[action - 1]
    # Compare with the total, and leave out the last edge, so that rounding puts no draw beyond it.
    reach = np.asarray(uniforms, dtype=np.float64) * edges[-1]
    return np.asarray((reach >= edges[:-1]).sum(axis=0), dtype=np.intp)


@lru_cache(maxsize=256)
def _stream_key(stream: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{stream}".encode(), digest_size=8).digest())


def _mix(words: Any) -> Any:
    """SplitMix64's finaliser for an array or a number: every input bit affects every output bit."""
    words = (words + _GOLDEN) & _LARGEST
    words = ((words ^ (words >> 30)) * 0xBF58476D1CE4E5B9) & _LARGEST
    words = ((words ^ (words >> 27)) * 0x94D049BB133111EB) & _LARGEST
    return words ^ (words >> 31)
