"""Lengths of a step's sequences, as a row has them."""

from collections.abc import Sequence
from typing import TypeAlias

# Shortest and longest sequence, their sum and number, and the sum of the squares.
Lengths: TypeAlias = tuple[int, int, int, int, float]
NO_LENGTHS = (0, 0, 0, 0, 0.0)
MAX_COUNT = (1 << 32) - 1  # tokens and samples of a row have 32 bits


def figures_of(lengths: Sequence[int]) -> Lengths:
    """Shortest and longest length, their sum and number, and the sum of their squares."""
    squares = float(sum(length * length for length in lengths))
    return min(lengths), max(lengths), sum(lengths), len(lengths), squares


def lengths_of(sequence_lengths: Sequence[int]) -> Lengths:
    """Those figures; raises ValueError where a row cannot hold them."""
    if not sequence_lengths:
        return NO_LENGTHS
    lengths = figures_of(sequence_lengths)
    if lengths[0] < 0 or max(lengths[1], lengths[2]) > MAX_COUNT:
        raise ValueError("sequence_lengths are outside of what a row can hold")
    return lengths
