"""Bus bandwidth as nccl-tests computes it: what the slowest link carries, for any size of group.

The formulas are those of https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
"""

from functools import cache

_SHARDED = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
_UNSCALED = frozenset({"broadcast", "send_recv"})


@cache  # few kinds and sizes of groups, some of them needed in every step
def bus_factor(kind: str, ranks: int) -> float:
    """Bytes on the bus for each byte of a collective, whose size is that which nccl-tests prints.

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
