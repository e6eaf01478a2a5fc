"""Finds the signs of the nodes of slow ranks, in a Prometheus and in the job's own events."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lockstep_records.events.event import Event
from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.document.published import Sign
from lockstep_reports.signs.series import SERIES, NodeSeries
from lockstep_reports.verdict.verdict import Episode

if TYPE_CHECKING:
    from lockstep_prometheus.client import Prometheus

_STEP_SECONDS, _MOST_POINTS = 5.0, 2000
_RATE_SECONDS = 60.0  # two scrapes at least, at any interval that is usual
_MARGIN = 0.5  # of the episode, before and after it, so that its ends can be compared
_MAX_SIGNS = 12
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


def is_proof(points_by_node: Mapping[str, Points], node: str, least: float, spans: Spans) -> bool:
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


def find_signs(analysis: StepAnalysis, server: "Prometheus") -> tuple[Sign, ...]:
    """Signs of the nodes of slow ranks during their episodes, proven ones first.

    Raises:
        ValueError: the server does not answer.
    """
    signs = [
        sign
        for episode in analysis.episodes
        for sign in _ask_about_episode(analysis, server, episode)
    ]
    return tuple(sorted(signs, key=lambda sign: (not sign.proven, -sign.value))[:_MAX_SIGNS])


def event_signs(analysis: StepAnalysis, events: tuple[Event, ...]) -> tuple[Sign, ...]:
    """Events of the nodes of slow ranks during their episodes, by the job's own events."""
    signs = []
    for episode in analysis.episodes:
        begin, end = analysis.episode_span(episode)
        nodes = _nodes_of(analysis, episode)
        for event in events:
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
    return tuple(signs[:_MAX_SIGNS])


def _nodes_of(analysis: StepAnalysis, episode: Episode) -> set[str]:
    return {
        member.node
        for member in analysis.steps.members
        if member.rank in episode.ranks and member.node
    }


def _ask_about_episode(
    analysis: StepAnalysis, server: "Prometheus", episode: Episode
) -> Iterator[Sign]:
    begin, end = analysis.episode_span(episode)
    nodes = _nodes_of(analysis, episode)
    if begin is None or end is None or not nodes:
        return
    margin = max(_MARGIN * (end - begin), 4 * _RATE_SECONDS)
    recorded = Span(begin - margin, end + margin)
    step = max(_STEP_SECONDS, (recorded.end - recorded.begin) / _MOST_POINTS)
    spans = Spans(Span(begin, end), recorded, _RATE_SECONDS + 2 * step)
    everyone = tuple(sorted({*analysis.steps.nodes} - {""}))
    for series in SERIES:
        query = series.query(everyone, f"{_RATE_SECONDS:.0f}s")
        by_kind = _group_by_kind(server, series, query, recorded, step)
        for kind, points_by_node in by_kind.items():
            for node in sorted(nodes):
                found = activity(points_by_node.get(node, ()), series.least, spans.episode)
                if found is not None:
                    yield Sign(
                        cause=f"{series.cause}{kind}", node=node, begin_time=found.span.begin,
                        end_time=found.span.end, value=found.peak, unit=series.unit,
                        source=f"{server.address} {series.metric.name}",
                        proven=is_proof(points_by_node, node, series.least, spans),
                        episode_start_step=episode.start_step,
                    )  # fmt: skip


def _group_by_kind(
    server: "Prometheus", series: NodeSeries, query: str, recorded: Span, step: float
) -> dict[str, dict[str, Points]]:
    """Points by node, for each value of the label that tells kinds apart."""
    by_kind: dict[str, dict[str, Points]] = {}
    for answer in server.over(query, recorded.begin, recorded.end, step):
        value = "" if series.label is None else answer.labels.get(series.label.name, "")
        kind = f"_{value}" if value else ""
        by_kind.setdefault(kind, {})[answer.labels.get("node", "")] = answer.points
    return by_kind
