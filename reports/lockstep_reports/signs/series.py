"""The series that show trouble on a node: one table, for a Prometheus that scrapes the agents."""

from dataclasses import dataclass

from lockstep_catalogue import fabric, gpu, host, incidents
from lockstep_catalogue.labels import NODE, PRESSURE, RESOURCE, THROTTLE
from lockstep_catalogue.metric import Label, Metric
from lockstep_catalogue.promql import Matcher, by, eq, one_of, rate, select


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
