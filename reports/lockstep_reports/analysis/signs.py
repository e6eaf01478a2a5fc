"""Signs of trouble on the nodes of slow ranks, by their series and by the job's own events."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.recording.recording import NodeSeries, Points
from lockstep_reports.verdict.verdict import Episode

_MARGIN = 0.5  # of the episode, before and after it, so that its ends can be compared
_MIN_MARGIN_SECONDS = 240.0
_MAX_SIGNS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """Trouble on the node of a slow rank while it was slow.

    Attributes:
        cause: what it is, such as ``thermal_throttling``.
        begin_time: first moment of it in the window, seconds since 1970; ``end_time`` is the last.
        value: its highest value there, per second for what counts; ``unit`` names it.
        source: address and series, or file, that recorded it.
        proven: whether sign and slowness begin and end together, and no other node shows it.
    """

    cause: str
    node: str
    begin_time: float
    end_time: float
    value: float
    unit: str
    source: str
    proven: bool
    episode_start_step: int


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


def is_proof(points_by_node: Mapping[str, Points], node: str, least: float, spans: Spans) -> bool:
    """Whether a sign and an episode begin and end together, on this node of a slow rank alone.

    Null hypothesis: the sign comes and goes whatever the rank does. Coincidence of both ends within
    the resolution rejects it; a sign or an episode that fills the whole recording has no ends to
    compare, and one that other nodes show too would have made their ranks slow. From ``least`` on a
    value counts.
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


def find_signs(analysis: StepAnalysis) -> tuple[Sign, ...]:
    """Events and signs of the nodes of slow ranks during their episodes, proven ones first."""
    signs = [
        sign
        for episode in analysis.episodes
        for series in analysis.recording.node_series
        for sign in _signs_of(analysis, episode, series)
    ]
    by_weight = sorted(signs, key=lambda sign: (not sign.proven, -sign.value))
    return (*_list_events(analysis)[:_MAX_SIGNS], *by_weight[:_MAX_SIGNS])


def _list_events(analysis: StepAnalysis) -> list[Sign]:
    """Events of the nodes of slow ranks during their episodes, by the job's own events."""
    signs = []
    for episode in analysis.episodes:
        begin, end = analysis.episode_span(episode)
        nodes = _nodes_of(analysis, episode)
        for event in analysis.recording.events:
            node = str(event.fields.get("node") or event.node or "")
            if event.kind != "node_event" or node not in nodes or begin is None or end is None:
                continue
            if begin <= event.time <= end:
                signs.append(
                    Sign(
                        cause=str(event.fields.get("sign", "node_event")), node=node,
                        begin_time=event.time, end_time=event.time, value=1.0, unit="events",
                        source="events of the job", proven=False,
                        episode_start_step=episode.start_step,
                    )
                )  # fmt: skip
    return signs


def _nodes_of(analysis: StepAnalysis, episode: Episode) -> set[str]:
    return {
        member.node
        for member in analysis.steps.members
        if member.rank in episode.ranks and member.node
    }


def _signs_of(analysis: StepAnalysis, episode: Episode, series: NodeSeries) -> Iterator[Sign]:
    begin, end = analysis.episode_span(episode)
    if begin is None or end is None:
        return
    margin = max(_MARGIN * (end - begin), _MIN_MARGIN_SECONDS)
    recorded = Span(begin - margin, end + margin)
    spans = Spans(Span(begin, end), recorded, series.resolution_seconds)
    for node in sorted(_nodes_of(analysis, episode)):
        found = activity(series.points_by_node.get(node, ()), series.least, spans.episode)
        if found is not None:
            yield Sign(
                cause=series.cause, node=node, begin_time=found.span.begin,
                end_time=found.span.end, value=found.peak, unit=series.unit,
                source=series.source,
                proven=is_proof(series.points_by_node, node, series.least, spans),
                episode_start_step=episode.start_step,
            )  # fmt: skip
