"""The series that show trouble on a node: one table, for a Prometheus that scrapes the agents."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lockstep_catalogue import fabric, gpu, host, incidents
from lockstep_catalogue.labels import NODE, PRESSURE, RESOURCE, THROTTLE
from lockstep_catalogue.metric import Label, Metric
from lockstep_catalogue.promql import Matcher, by, eq, one_of, rate, select
from lockstep_records.events.event import Event
from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.document.published import Sign
from lockstep_reports.verdict.verdict import Episode

if TYPE_CHECKING:
    from lockstep_prometheus.client import Prometheus


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSeries:
    """A kind of trouble.

    Attributes:
        cause: name of the sign.
        metric: a counter, of which the rate counts.
        matchers: of labels besides the node.
        least: rate that counts as a sign; below it lies what healthy nodes show now and then.
        below: a gauge whose lack against ``metric``, a gauge too, counts instead.
        labels: a cause of its own for each value, such as a reason to throttle.
    """

    cause: str
    metric: Metric
    unit: str
    least: float
    matchers: tuple[Matcher, ...] = ()
    below: Metric | None = None
    label: Label | None = None

    def query(self, nodes: tuple[str, ...], window: str) -> str:
        """PromQL of the series of some nodes, by node and label."""
        of_nodes = one_of(NODE, *nodes)
        names = (NODE,) if self.label is None else (NODE, self.label)
        if self.below is not None:
            lack = f"{select(self.metric, of_nodes)} - {select(self.below, of_nodes)}"
            return by("max", lack, NODE)
        return by("sum", rate(self.metric, window, of_nodes, *self.matchers), *names)


_SHARE, _COUNT = "s/s", "1/s"
_WAITING = 0.1  # a tenth of the time; short waits are part of every step
_ANY = 0.0
SERIES: tuple[NodeSeries, ...] = (
    # Idle clocks and those that somebody has set are no trouble.
    # Each reason is a cause of its own: heat, the power brake of the rack, or the power cap.
    NodeSeries(cause="gpu_throttling", metric=gpu.GPU_THROTTLE_SECONDS, unit=_SHARE,
               least=_WAITING, label=THROTTLE,
               matchers=(one_of(THROTTLE, "sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal",
                                "hw_power_brake"),)),
    NodeSeries(cause="gpu_ecc_errors", metric=gpu.GPU_ECC_ERRORS, unit=_COUNT, least=_ANY),
    NodeSeries(cause="gpu_xid", metric=incidents.GPU_XID_INCIDENTS, unit=_COUNT, least=_ANY,
               label=incidents.XID),
    NodeSeries(cause="pcie_width", metric=gpu.GPU_PCIE_WIDTH_MAX, unit="lanes", least=_ANY,
               below=gpu.GPU_PCIE_WIDTH),
    NodeSeries(cause="pcie_replays", metric=gpu.GPU_PCIE_REPLAYS, unit=_COUNT, least=1.0),
    NodeSeries(cause="pcie_errors", metric=fabric.PCIE_AER_ERRORS, unit=_COUNT, least=_ANY),
    NodeSeries(cause="nvlink_errors", metric=gpu.NVLINK_ERRORS, unit=_COUNT, least=_ANY),
    NodeSeries(cause="port_errors", metric=fabric.PORT_ERRORS, unit=_COUNT, least=_ANY),
    NodeSeries(cause="packet_errors", metric=fabric.NET_ERRORS, unit=_COUNT, least=_ANY),
    NodeSeries(cause="retransmissions", metric=fabric.RDMA_QP_ERRORS, unit=_COUNT,
               least=_ANY),
    NodeSeries(cause="storage_retransmissions", metric=host.STORAGE_RETRANSMISSIONS, unit=_COUNT,
               least=_ANY),
    NodeSeries(cause="cpu_pressure", metric=host.PRESSURE_SECONDS, unit=_SHARE, least=_WAITING,
               matchers=(eq(RESOURCE, "cpu"), eq(PRESSURE, "some"))),
    NodeSeries(cause="cpu_throttling", metric=host.JOB_THROTTLED_SECONDS, unit=_SHARE,
               least=_WAITING),
    NodeSeries(cause="memory_pressure", metric=host.PRESSURE_SECONDS, unit=_SHARE, least=_WAITING,
               matchers=(eq(RESOURCE, "memory"), eq(PRESSURE, "some"))),
    NodeSeries(cause="disk_waits", metric=host.PRESSURE_SECONDS, unit=_SHARE, least=_WAITING,
               matchers=(eq(RESOURCE, "io"), eq(PRESSURE, "some"))),
)  # fmt: skip


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
