"""Reads the series of trouble on a job's nodes, from a Prometheus that scrapes the agents."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lockstep_catalogue import fabric, gpu, host, incidents
from lockstep_catalogue.labels import NODE, PRESSURE, RESOURCE, THROTTLE
from lockstep_catalogue.metric import Label, Metric
from lockstep_catalogue.promql import Matcher, by, eq, one_of, rate, select
from lockstep_prometheus.client import Prometheus
from lockstep_reports.recording.recording import NodeSeries, Points, Recording

_STEP_SECONDS, _MAX_POINTS, _MAX_CELLS = 5.0, 2000, 1 << 19
_RATE_SECONDS = 60.0  # two scrapes at least, at any interval that is usual
_MARGIN = 0.5  # of the run, before and after it, so that the ends of episodes can be compared


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """A kind of trouble.

    Attributes:
        cause: name of the sign.
        metric: a counter, of which the rate counts.
        matchers: of labels besides the node.
        least: rate that counts as a sign; below it lies what healthy nodes show now and then.
        below: a gauge whose lack against ``metric``, a gauge too, counts instead.
        label: a cause of its own for each value, such as a reason to throttle.
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
SERIES: tuple[Trouble, ...] = (
    # Idle clocks and those that somebody has set are no trouble.
    # Each reason is a cause of its own: heat, the power brake of the rack, or the power cap.
    Trouble(cause="gpu_throttling", metric=gpu.GPU_THROTTLE_SECONDS, unit=_SHARE,
               least=_WAITING, label=THROTTLE,
               matchers=(one_of(THROTTLE, "sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal",
                                "hw_power_brake"),)),
    Trouble(cause="gpu_ecc_errors", metric=gpu.GPU_ECC_ERRORS, unit=_COUNT, least=_ANY),
    Trouble(cause="gpu_xid", metric=incidents.GPU_XID_INCIDENTS, unit=_COUNT, least=_ANY,
               label=incidents.XID),
    Trouble(cause="pcie_width", metric=gpu.GPU_PCIE_WIDTH_MAX, unit="lanes", least=_ANY,
               below=gpu.GPU_PCIE_WIDTH),
    Trouble(cause="pcie_replays", metric=gpu.GPU_PCIE_REPLAYS, unit=_COUNT, least=1.0),
    Trouble(cause="pcie_errors", metric=fabric.PCIE_AER_ERRORS, unit=_COUNT, least=_ANY),
    Trouble(cause="nvlink_errors", metric=gpu.NVLINK_ERRORS, unit=_COUNT, least=_ANY),
    Trouble(cause="port_errors", metric=fabric.PORT_ERRORS, unit=_COUNT, least=_ANY),
    Trouble(cause="packet_errors", metric=fabric.NET_ERRORS, unit=_COUNT, least=_ANY),
    Trouble(cause="retransmissions", metric=fabric.RDMA_QP_ERRORS, unit=_COUNT,
               least=_ANY),
    Trouble(cause="storage_retransmissions", metric=host.STORAGE_RETRANSMISSIONS, unit=_COUNT,
               least=_ANY),
    Trouble(cause="cpu_pressure", metric=host.PRESSURE_SECONDS, unit=_SHARE, least=_WAITING,
               matchers=(eq(RESOURCE, "cpu"), eq(PRESSURE, "some"))),
    Trouble(cause="cpu_throttling", metric=host.JOB_THROTTLED_SECONDS, unit=_SHARE,
               least=_WAITING),
    Trouble(cause="memory_pressure", metric=host.PRESSURE_SECONDS, unit=_SHARE, least=_WAITING,
               matchers=(eq(RESOURCE, "memory"), eq(PRESSURE, "some"))),
    Trouble(cause="disk_waits", metric=host.PRESSURE_SECONDS, unit=_SHARE, least=_WAITING,
               matchers=(eq(RESOURCE, "io"), eq(PRESSURE, "some"))),
)  # fmt: skip


def add_node_series(recording: Recording, address: str) -> Recording:
    """The recording with what a Prometheus knows of its nodes, from before the run to after it.

    Raises ValueError where the server does not answer.
    """
    steps = recording.steps
    nodes = tuple(sorted({*steps.nodes} - {""}))
    begin, end = steps.measure_span()
    if not nodes or begin is None or end is None:
        return recording
    margin = max(_MARGIN * (end - begin), 4 * _RATE_SECONDS)
    span = begin - margin, end + margin
    with Prometheus(address) as server:
        found = tuple(each for series in SERIES for each in _read(server, series, nodes, span))
    return replace(recording, node_series=found)


def _read(
    server: Prometheus, series: Trouble, nodes: tuple[str, ...], span: tuple[float, float]
) -> Iterator[NodeSeries]:
    """The series of all nodes, one for each value of the label that tells kinds apart."""
    begin, end = span
    step = max(_STEP_SECONDS, (end - begin) / min(_MAX_POINTS, max(1, _MAX_CELLS // len(nodes))))
    window = max(_RATE_SECONDS, 2 * step)
    by_kind: dict[str, dict[str, Points]] = {}
    for answer in server.over(series.query(nodes, f"{window:.0f}s"), begin, end, step):
        value = "" if series.label is None else answer.labels.get(series.label.name, "")
        kind = f"_{value}" if value else ""
        by_kind.setdefault(kind, {})[answer.labels.get(NODE.name, "")] = answer.points
    for kind, points_by_node in by_kind.items():
        yield NodeSeries(
            cause=f"{series.cause}{kind}",
            source=f"{server.address} {series.metric.name}",
            unit=series.unit,
            least=series.least,
            points_by_node=points_by_node,
            resolution_seconds=window + 2 * step,
        )
