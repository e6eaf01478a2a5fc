"""Rows about InfiniBand and RoCE ports: state, traffic, and what is lost."""

from lockstep_catalogue import Label, Metric, Unit, events, fabric_ports, gpu_owner, pcie
from lockstep_catalogue.fabric_labels import (
    ADAPTER,
    CAST,
    CONGESTION,
    DISTANCE,
    ENDPOINT,
    FIRMWARE,
    PACKET_LOSS,
    PHYSICAL_STATE,
    PORT,
    PORT_ABOVE,
    PORT_ERROR,
    PORT_REASON,
    PORT_STATE,
    QP_ERROR,
    RAIL,
    RETRY,
    TRANSFER,
)
from lockstep_catalogue.labels import (
    CLUSTER,
    DEVICE,
    DIRECTION,
    JOB_ID,
    NODE,
    PCI_BUS_ID,
    RANK,
    VERDICT,
)
from lockstep_catalogue.promql import Matcher, by, one_of
from lockstep_dashboards.colors import BAD, GOOD
from lockstep_dashboards.panel import Panel, Query, Row, ValueText
from lockstep_dashboards.selection import (
    MOST_ROWS,
    NUM_WORST,
    Selection,
    above_zero,
    largest,
    of_largest,
)
from lockstep_dashboards.series_panels import column, stat, state_timeline, table, time_series
from lockstep_dashboards.variables import THESE_DEVICES, THESE_NODES, THIS_CLUSTER

OF_PORTS = Selection((THIS_CLUSTER, THESE_NODES, THESE_DEVICES), (CLUSTER, NODE, DEVICE, PORT))
OF_ALL = Selection((THIS_CLUSTER, THESE_NODES), ())
_DEVICES = Selection(OF_PORTS.matchers, (CLUSTER, NODE, DEVICE))
_PORT = (CLUSTER, NODE, DEVICE, PORT)
_LEGEND = "{{node}} {{device}}"
_NO_LOSS = "ports that lost nothing, or whose driver does not count it, have none"
NO_INFINIBAND = "a cluster without InfiniBand or RoCE has none"
_BAD = one_of(VERDICT, "degraded", "failed")
_UP_OR_DOWN = (
    ValueText(value=0, text="down", color=BAD),
    ValueText(value=1, text="up", color=GOOD),
)


def worst_rates(metric: Metric, *labels: Label, chosen: Selection = OF_PORTS) -> Query:
    """Rates of the devices on which a counter grew most in the range."""
    grown = chosen.by("sum", f"increase({chosen.of(metric)}[$__range] @ end())")
    return of_largest(
        chosen.by("sum", chosen.rate(metric), *labels),
        grown,
        *chosen.labels,
        legend=" ".join([_LEGEND, *(f"{{{{{label.name}}}}}" for label in labels)]),
        count=NUM_WORST if not labels else NUM_WORST // 2,
    )


def errors(
    metric: Metric,
    *labels: Label,
    title: str,
    otherwise: str,
    chosen: Selection = OF_PORTS,
    width: int = 8,
) -> Panel:
    """A table of what a counter of errors has counted in the range, the most first."""
    return table(
        metric,
        above_zero(chosen.by("sum", chosen.increase(metric), *labels)),
        title=title,
        note="Within the range.",
        good="empty.",
        otherwise=otherwise,
        columns=(*(each for each in chosen.labels if each != CLUSTER), *labels),
        width=width,
        may_be_empty=_NO_LOSS,
    )


def _present(metric: Metric, *labels: Label, where: tuple[Matcher, ...] = ()) -> Query:
    return Query(
        expression=f"topk({MOST_ROWS}, {OF_PORTS.by('max', OF_PORTS.of(metric, *where), *labels)})"
    )


def _link_states() -> Panel:
    """The ports that were down longest in the range."""
    up = OF_PORTS.by("min", OF_PORTS.of(fabric_ports.PORT_UP))
    mean = f"avg_over_time({OF_PORTS.of(fabric_ports.PORT_UP)}[$__range] @ end())"
    least = f"bottomk(25, {OF_PORTS.by('min', mean)})"
    return state_timeline(
        fabric_ports.PORT_UP,
        Query(
            expression=f"{up} and on (cluster, node, device, port) {least}",
            legend="{{node}} {{device}}",
        ),
        title="Link states",
        note="The 25 ports that were up least.",
        good="one blue band a port.",
        otherwise="a band with gaps flaps: change cable or transceiver; all of a node: the node.",
        texts=_UP_OR_DOWN,
        width=16,
        height=10,
        may_be_empty=NO_INFINIBAND,
    )


def _share_of_line_rate() -> Panel:
    bytes_rate = _DEVICES.by("sum", OF_PORTS.rate(fabric_ports.PORT_BYTES), PORT, DIRECTION)
    line_rate = OF_PORTS.by("max", OF_PORTS.of(fabric_ports.PORT_RATE))
    on_port = "on (cluster, node, device, port)"
    grown = OF_PORTS.by(
        "sum", f"increase({OF_PORTS.of(fabric_ports.PORT_BYTES)}[$__range] @ end())"
    )
    return time_series(
        fabric_ports.PORT_BYTES,
        of_largest(
            f"{bytes_rate} / {on_port} group_left () {line_rate}",
            grown,
            *_PORT,
            legend="{{node}} {{device}} {{direction}}",
        ),
        title="Share of the line rate",
        note="The ports that moved most.",
        good="peaks near 100 % in collectives, and alike on the ports of a job.",
        otherwise="a port that stays behind the others of its rail has errors or a lower rate.",
        unit=Unit.RATIO,
        may_be_empty=NO_INFINIBAND,
    )


PORTS = Row(
    title="Ports now",
    panels=(
        stat(
            fabric_ports.PORT_UP,
            Query(
                expression=f"avg ({OF_PORTS.of(fabric_ports.PORT_UP)})", legend="ports that are up"
            ),
            title="Ports that are up",
            good="100 %.",
            otherwise="the timeline beside it names those that are down.",
            unit=Unit.RATIO,
            width=8,
            height=5,
            may_be_empty=NO_INFINIBAND,
        ),
        _link_states(),
        table(
            fabric_ports.PORT_HEALTH,
            _present(fabric_ports.PORT_HEALTH, VERDICT, PORT_REASON, where=(_BAD,)),
            title="Ports that are not well",
            good="empty.",
            otherwise="docs/agent.md says what each reason means and what mends it.",
            columns=(NODE, DEVICE, PORT, VERDICT, PORT_REASON),
            width=10,
            may_be_empty=_NO_LOSS,
        ),
        table(
            fabric_ports.PORT_RATE,
            Query(
                expression=above_zero(
                    f"1 - {OF_PORTS.by('min', OF_PORTS.of(fabric_ports.PORT_RATE))} / "
                    f"{OF_PORTS.by('max', OF_PORTS.of(fabric_ports.PORT_RATE_EXPECTED))}"
                ).expression
            ),
            title="Missing share of the expected rate",
            good="empty.",
            otherwise="lanes or speed are down: reseat the cable.",
            unit=Unit.RATIO,
            columns=(NODE, DEVICE, PORT),
            width=6,
            may_be_empty=_NO_LOSS,
        ),
    ),
)
TRAFFIC = Row(
    title="Traffic and loss",
    panels=(
        _share_of_line_rate(),
        time_series(
            fabric_ports.PORT_WAIT,
            worst_rates(fabric_ports.PORT_WAIT),
            title="Ticks with data that could not be sent",
            note="The ports that waited most.",
            per_second=True,
            good="near none outside of collectives.",
            otherwise="many ports: the fabric is congested; one: its peer receives too slowly.",
            may_be_empty=NO_INFINIBAND,
        ),
        errors(
            fabric_ports.PORT_ERRORS,
            PORT_ERROR,
            title="Errors of ports",
            otherwise="symbol errors: cable; link_downed: transceiver or switch.",
        ),
        errors(
            fabric_ports.RDMA_RETRIES_EXCEEDED,
            RETRY,
            title="Connections that broke",
            otherwise="the job of this port fails with a time-out: see its peers too.",
        ),
        errors(
            fabric_ports.RDMA_LOSSES,
            PACKET_LOSS,
            title="Signs of lost packets",
            otherwise="adaptive routing reorders some; a steady growth is loss.",
        ),
    ),
)
PORT_DETAIL = Row(
    title="Ports in detail",
    collapsed=True,
    panels=(
        time_series(
            fabric_ports.PORT_PACKETS,
            worst_rates(fabric_ports.PORT_PACKETS, DIRECTION),
            title="Packets of ports",
            per_second=True,
            good="alike on the ports of a job.",
            otherwise="many small packets: collectives of small messages.",
            may_be_empty=NO_INFINIBAND,
        ),
        time_series(
            fabric_ports.RDMA_BYTES,
            worst_rates(fabric_ports.RDMA_BYTES, TRANSFER),
            title="Bytes of RDMA transfers",
            per_second=True,
            good="follows the traffic of the ports.",
            otherwise="traffic without RDMA: the collectives fell back to sockets.",
            may_be_empty=NO_INFINIBAND,
        ),
        time_series(
            fabric_ports.PORT_EXTENDED_BYTES,
            worst_rates(fabric_ports.PORT_EXTENDED_BYTES, DIRECTION),
            title="Bytes of ports by 64-bit counters",
            per_second=True,
            good="as the traffic of the ports.",
            otherwise="they differ: the narrow counters overflow between scrapes.",
            may_be_empty="kernels of today count in 64 bits anyway",
        ),
        time_series(
            fabric_ports.PORT_EXTENDED_PACKETS,
            worst_rates(fabric_ports.PORT_EXTENDED_PACKETS, CAST),
            title="Packets of ports by 64-bit counters",
            per_second=True,
            good="as the packets of the ports.",
            otherwise="they differ: the narrow counters overflow between scrapes.",
            may_be_empty="kernels of today count in 64 bits anyway",
        ),
        time_series(
            fabric_ports.RDMA_CONGESTION,
            worst_rates(fabric_ports.RDMA_CONGESTION, CONGESTION),
            title="Packets marked for congestion",
            per_second=True,
            good="few.",
            otherwise="incast: the switches mark; look at the placement of the job.",
            may_be_empty=_NO_LOSS,
        ),
        errors(
            fabric_ports.RDMA_QP_ERRORS,
            QP_ERROR,
            title="Work requests that failed",
            otherwise="flush errors follow another error: find the first.",
            width=12,
        ),
        table(
            fabric_ports.PORT_SATURATED_COUNTERS,
            column(
                fabric_ports.PORT_SATURATED_COUNTERS,
                above_zero(OF_PORTS.by("max", OF_PORTS.of(fabric_ports.PORT_SATURATED_COUNTERS))),
                "counters at their ceiling",
            ),
            column(
                fabric_ports.PORT_SATURATED,
                above_zero(OF_PORTS.by("sum", OF_PORTS.of(fabric_ports.PORT_SATURATED))),
                "named",
            ),
            title="Counters at their ceiling",
            good="empty.",
            otherwise="they count no more: `perfquery -R` resets them.",
            columns=(NODE, DEVICE, PORT),
            may_be_empty=_NO_LOSS,
        ),
        table(
            fabric_ports.PORT_STATE_INFO,
            _present(fabric_ports.PORT_STATE_INFO, PORT_STATE, PHYSICAL_STATE),
            title="States of ports",
            good="active and link_up.",
            otherwise="init: the subnet manager is away; polling: no signal.",
            columns=(NODE, DEVICE, PORT, PORT_STATE, PHYSICAL_STATE),
            may_be_empty=NO_INFINIBAND,
        ),
        table(
            fabric_ports.PORT_LANES,
            largest(OF_PORTS.by("max", OF_PORTS.of(fabric_ports.PORT_LANES)), MOST_ROWS),
            title="Lanes of ports",
            good="4 on each.",
            otherwise="fewer: reseat the cable.",
            columns=(NODE, DEVICE, PORT),
            may_be_empty=NO_INFINIBAND,
        ),
        table(
            gpu_owner.PORT_OWNER_INFO,
            largest(
                by("max", OF_PORTS.of(gpu_owner.PORT_OWNER_INFO), NODE, DEVICE, JOB_ID, RANK),
                MOST_ROWS,
            ),
            title="Jobs that use the adapters",
            good="one job an adapter.",
            otherwise="two jobs on one adapter share its bandwidth.",
            columns=(NODE, DEVICE, JOB_ID, RANK),
            may_be_empty=NO_INFINIBAND,
        ),
    ),
)
INVENTORY = Row(
    title="Adapters and their places",
    collapsed=True,
    panels=(
        table(
            fabric_ports.PORT_INFO,
            _present(fabric_ports.PORT_INFO, ADAPTER, FIRMWARE),
            title="Adapters",
            good="one firmware for each kind.",
            otherwise="update it before hunting for other causes.",
            columns=(NODE, DEVICE, ADAPTER, FIRMWARE),
            may_be_empty=NO_INFINIBAND,
        ),
        table(
            pcie.AFFINITY,
            largest(
                by("max", OF_PORTS.of(pcie.AFFINITY), NODE, PCI_BUS_ID, DEVICE, DISTANCE, RAIL),
                MOST_ROWS,
            ),
            title="Adapters nearest to the GPUs",
            good="pix or pxb, one rail a GPU.",
            otherwise="sys: the traffic crosses sockets; the adapter sits in the wrong slot.",
            columns=(NODE, PCI_BUS_ID, DEVICE, DISTANCE, RAIL),
            may_be_empty=NO_INFINIBAND,
        ),
        table(
            pcie.PCIE_RATIO,
            Query(
                expression="bottomk(50, "
                + by("min", OF_ALL.of(pcie.PCIE_RATIO), NODE, PCI_BUS_ID)
                + ")"
            ),
            title="PCIe links, the worst first",
            note="What they run at, of what both ends support.",
            good="100 % under load.",
            otherwise="reseat the card: a narrow link slows every step.",
            columns=(NODE, PCI_BUS_ID),
            width=8,
        ),
        table(
            pcie.PCIE_SPEED,
            column(
                pcie.PCIE_SPEED,
                Query(
                    expression=f"bottomk({MOST_ROWS}, "
                    + by("min", OF_ALL.of(pcie.PCIE_SPEED), NODE, PCI_BUS_ID)
                    + ")"
                ),
                "transfers per second",
            ),
            title="Speeds of PCIe links, the slowest first",
            good="as on the other nodes.",
            otherwise="an idle link may use a lower one; under load it is a fault.",
            columns=(NODE, PCI_BUS_ID),
            width=8,
        ),
        table(
            pcie.PCIE_LANES,
            Query(
                expression=f"bottomk({MOST_ROWS}, "
                + by("min", OF_ALL.of(pcie.PCIE_LANES), NODE, PCI_BUS_ID)
                + ")"
            ),
            title="Lanes of PCIe links, the fewest first",
            good="16 for GPUs and adapters.",
            otherwise="reseat the card.",
            columns=(NODE, PCI_BUS_ID),
            width=8,
        ),
        table(
            pcie.PCIE_INFO,
            largest(
                by("max", OF_ALL.of(pcie.PCIE_INFO), NODE, PCI_BUS_ID, ENDPOINT, PORT_ABOVE),
                MOST_ROWS,
            ),
            title="Devices on the bus",
            good="as many on each node.",
            otherwise="a missing one fell off the bus.",
            columns=(NODE, PCI_BUS_ID, ENDPOINT, PORT_ABOVE),
        ),
        errors(
            events.NIC_INCIDENTS,
            events.NIC_INCIDENT,
            title="Incidents of adapters",
            otherwise="the kernel log of the node has the lines.",
            chosen=_DEVICES,
            width=12,
        ),
    ),
)
