"""A shuffle of any length that is computed, not stored, and is the same on every machine."""

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_Words = NDArray[np.uint64]
# The constants of SplitMix64's finaliser.
_SHIFTS = tuple(np.uint64(shift) for shift in (30, 27, 31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def shuffled(indices: NDArray[np.int64], size: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """New positions of some of the indices 0 to ``size`` - 1 after a shuffle of all of them.

    A Feistel network permutes the next power of four. An index that lands beyond the size goes
    through the network again until it lands inside (cycle walking), which keeps it a permutation.

    Args:
        indices: in any order; the result has their shape.
        size: number of indices, above every index.
        seed: of the run.
        epoch: every epoch has its own order.
    """
    # Both halves of a word have the same number of bits, hence the power of four.
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
    positions = indices.astype(np.uint64)
    outside = np.ones(positions.shape, np.bool_)
    # At most three of four indices are outside, so few passes are needed.
    while outside.any():
        positions[outside] = _permuted(positions[outside], np.uint64(half), keys.astype(np.uint64))
        outside = positions >= size
    return positions.astype(np.int64)


def _permuted(words: _Words, half: np.uint64, keys: _Words) -> _Words:
    """One pass of the network over words of twice ``half`` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = words >> half, words & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return left << half | right


def _mixed(words: _Words) -> _Words:
    """SplitMix64's finaliser: every input bit affects every output bit."""
    words = (words ^ (words >> _SHIFTS[0])) * _FACTORS[0]
    words = (words ^ (words >> _SHIFTS[1])) * _FACTORS[1]
    return words ^ (words >> _SHIFTS[2])
