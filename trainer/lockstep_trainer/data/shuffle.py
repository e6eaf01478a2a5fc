"""A shuffle that is computed and not stored: the same for ever, and of any length."""

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_Words = NDArray[np.uint64]
# The constants of SplitMix64's finaliser.
_SHIFTS = tuple(np.uint64(shift) for shift in (30, 27, 31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def shuffled(places: NDArray[np.int64], size: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Where the places of 0 to ``size`` stand after a shuffle of all of them.

    A Feistel network permutes the next power of four; what falls beyond the size is sent through
    it again until it falls inside, which keeps it a permutation.

    Args:
        places: any of them, in any order; the result has their shape.
        size: how many there are, above every place.
        seed: of the run.
        epoch: each has its own order.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
    now = places.astype(np.uint64)
    outside = np.ones(now.shape, np.bool_)
    while outside.any():
        now[outside] = _permuted(now[outside], np.uint64(half), keys.astype(np.uint64))
        outside = now >= size
    return now.astype(np.int64)


def _permuted(words: _Words, half: np.uint64, keys: _Words) -> _Words:
    """One pass of the network over words of twice ``half`` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = words >> half, words & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return left << half | right


def _mixed(words: _Words) -> _Words:
    """Every bit of a word decides about every other."""
    words = (words ^ (words >> _SHIFTS[0])) * _FACTORS[0]
    words = (words ^ (words >> _SHIFTS[1])) * _FACTORS[1]
    return words ^ (words >> _SHIFTS[2])
