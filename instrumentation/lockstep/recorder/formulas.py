"""Formulas that both recorders call: bus bandwidth, and figures of sequence lengths."""

from collections.abc import Sequence
from functools import cache

_SHARDED = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
_UNSCALED = frozenset({"broadcast", "send_recv"})
MAX_COUNT = (1 << 32) - 1  # tokens and samples of a row have 32 bits


@cache  # few kinds and sizes of groups, some of them needed in every step
def bus_factor(kind: str, ranks: int) -> float:
    """Bytes on the bus for each byte of a collective, whose size is that which nccl-tests prints.

    What the slowest link carries, for any size of group; the formulas are those of
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.

    Args:
        kind: a value of the label ``kind``.
        ranks: size of the collective's group; a group of one moves nothing.

    Returns:
        A factor of at least 0 and less than 2, without a unit.

    Raises:
        ValueError: the kind has no factor, or the group is empty.
    """
    if ranks < 1:
        raise ValueError(f"ranks {ranks} must be at least 1, the rank itself")
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in _SHARDED:
        return (ranks - 1) / ranks
    if kind in _UNSCALED:
        return 1.0 if ranks > 1 else 0.0
    raise ValueError(f"kind {kind!r} has no factor of bus bandwidth; use a value of the label kind")


def sequence_figures(lengths: Sequence[int]) -> tuple[int, int, int, int, float]:
    """Shortest and longest length, their sum and number, and the sum of their squares.

    Raises:
        ValueError: a row cannot hold them.
    """
    shortest, longest, total = min(lengths), max(lengths), sum(lengths)
    if shortest < 0 or max(longest, total) > MAX_COUNT:
        raise ValueError("sequence_lengths are outside of what a row can hold")
    return shortest, longest, total, len(lengths), float(sum(n * n for n in lengths))
