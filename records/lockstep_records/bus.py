"""Bus bandwidth as nccl-tests reckons it: what the slowest link carries, whatever the group's size.

The formulas are those of https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
"""

from functools import cache

_BY_SHARE = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
_WHOLE = frozenset({"broadcast", "send_recv"})


@cache  # few kinds and sizes of groups, and some are asked for in every step
def bus_factor(kind: str, ranks: int) -> float:
    """Bytes on the bus for each byte of a collective; its size is that which nccl-tests prints.

    Args:
        kind: a value of the label ``kind``.
        ranks: in the collective's group; one rank alone moves nothing.

    Raises:
        ValueError: no factor is known of the kind, or the group is empty.
    """
    if ranks < 1:
        raise ValueError(f"ranks {ranks} must be at least 1, the rank itself")
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in _BY_SHARE:
        return (ranks - 1) / ranks
    if kind in _WHOLE:
        return 1.0 if ranks > 1 else 0.0
    raise ValueError(f"kind {kind!r} has no factor of bus bandwidth; use a value of the label kind")
