"""Intervals of one axis, closed at the begin and open at the end: steps, seconds, nanoseconds."""

from typing import TypeVar

N = TypeVar("N", int, float)


def overlap(begin: N, end: N, other_begin: N, other_end: N) -> N:
    """Length that two intervals share; 0 where they only touch or lie apart."""
    shared = min(end, other_end) - max(begin, other_begin)
    return shared if shared > 0 else type(shared)(0)


def do_overlap(begin: N, end: N, other_begin: N, other_end: N) -> bool:
    """Whether two intervals share more than an end point."""
    return begin < other_end and other_begin < end
