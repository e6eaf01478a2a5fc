"""Which recorded values are signs, and which signs prove a cause."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Points = Sequence[tuple[float, float]]


class Span(NamedTuple):
    """Begin and end in seconds since 1970."""

    begin: float
    end: float


class Spans(NamedTuple):
    """An episode, what the series cover, and by how much either end may be off."""

    episode: Span
    recorded: Span
    resolution_seconds: float


class Activity(NamedTuple):
    """When a series was above its limit, and its highest value then."""

    span: Span
    peak: float


def activity(points: Points, least: float, window: Span) -> Activity | None:
    """When a series was above ``least`` within a window; None where it never was."""
    active = [(at, value) for at, value in points if window.begin <= at <= window.end]
    active = [(at, value) for at, value in active if value > least]
    if not active:
        return None
    return Activity(Span(active[0][0], active[-1][0]), max(value for _, value in active))


def is_proof(
    points_by_node: Mapping[str, Points],
    node: str,
    least: float,
    spans: Spans,
) -> bool:
    """Whether a sign and an episode begin and end together, on this node alone.

    Null hypothesis: the sign comes and goes whatever the rank does. Coincidence of both ends within
    the resolution rejects it; a sign or an episode that fills the whole recording has no ends to
    compare, and one that other nodes show too would have made their ranks slow.

    Args:
        points_by_node: times and values of the series of each node.
        node: of the slow rank.
        least: value that counts.
        spans: of the episode and of the series.
    """
    episode, recorded, resolution = spans
    found = activity(points_by_node.get(node, ()), least, recorded)
    if found is None or episode.begin - recorded.begin <= resolution:
        return False
    goes_on = recorded.end - episode.end <= resolution
    begins = abs(found.span.begin - episode.begin) <= resolution
    ends = goes_on or abs(found.span.end - episode.end) <= resolution
    inside = [value for at, value in points_by_node[node] if episode.begin <= at <= episode.end]
    lasts = 2 * sum(value > least for value in inside) > len(inside)
    elsewhere = any(
        activity(points, least, episode) is not None
        for other, points in points_by_node.items()
        if other != node
    )
    return begins and ends and lasts and not elsewhere
