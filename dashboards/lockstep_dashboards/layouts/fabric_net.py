"""Rows about Ethernet interfaces."""

from lockstep_catalogue import Metric, fabric, verdicts
from lockstep_catalogue.fabric_labels import DISCARD, PHY_ERROR, PRIORITY, STORM
from lockstep_catalogue.labels import CLUSTER, DEVICE, DIRECTION, NODE, VERDICT
from lockstep_dashboards.layouts.fabric_ports import POINTS, errors, moved, worst_rates
from lockstep_dashboards.panel import Query, Row
from lockstep_dashboards.selection import MOST_ROWS, Selection, above_zero
from lockstep_dashboards.series_panels import column, table, time_series
from lockstep_dashboards.variables import THESE_NODES, THIS_CLUSTER

OF_INTERFACES = Selection((THIS_CLUSTER, THESE_NODES), (CLUSTER, NODE, DEVICE))
_NO_COUNTER = "drivers that do not count it, and interfaces without any, have none"


def _most(metric: Metric) -> Query:
    gauge = OF_INTERFACES.by("max", OF_INTERFACES.of(metric))
    return Query(expression=f"topk({MOST_ROWS}, {gauge})")


ETHERNET = Row(
    title="Ethernet",
    panels=(
        time_series(
            fabric.NET_BYTES,
            worst_rates(fabric.NET_BYTES, DIRECTION, chosen=OF_INTERFACES),
            title="Traffic of interfaces",
            note="Those that moved most.",
            max_points=POINTS,
            per_second=True,
            good="below the line rate.",
            otherwise="at the line rate, checkpoints or data compete with gradients.",
            width=8,
        ),
        errors(
            fabric.NET_ERRORS,
            DIRECTION,
            title="Packets lost to errors",
            otherwise="cable, transceiver, or the switch's port.",
            chosen=OF_INTERFACES,
        ),
        errors(
            fabric.NET_DROPPED,
            DIRECTION,
            title="Packets dropped",
            otherwise="receive: the host is too slow; rings are too short.",
            chosen=OF_INTERFACES,
        ),
    ),
)
ETHERNET_DETAIL = Row(
    title="Ethernet in detail",
    collapsed=True,
    panels=(
        table(
            fabric.NET_UP,
            column(
                fabric.NET_UP,
                Query(
                    expression=f"bottomk({MOST_ROWS}, "
                    f"{OF_INTERFACES.by('min', OF_INTERFACES.of(fabric.NET_UP))})"
                ),
                "up",
            ),
            column(fabric.NET_SPEED, _most(fabric.NET_SPEED), "line rate"),
            column(fabric.NET_SPEED_MAX, _most(fabric.NET_SPEED_MAX), "fastest"),
            title="Interfaces",
            good="up, at the fastest rate.",
            otherwise="a lower rate was negotiated: change the cable.",
            columns=(NODE, DEVICE),
            may_be_empty=_NO_COUNTER,
        ),
        table(
            fabric.BOND_MEMBERS,
            column(fabric.BOND_MEMBERS, _most(fabric.BOND_MEMBERS), "members"),
            column(fabric.BOND_MEMBERS_UP, _most(fabric.BOND_MEMBERS_UP), "up"),
            column(
                fabric.NET_VIRTUAL_FUNCTIONS,
                _most(fabric.NET_VIRTUAL_FUNCTIONS),
                "virtual functions",
            ),
            title="Bonds and virtual functions",
            good="all members up.",
            otherwise="a bond with one member has half the bandwidth and no spare.",
            columns=(NODE, DEVICE),
            may_be_empty=_NO_COUNTER,
        ),
        moved(
            fabric.NET_PACKETS,
            DIRECTION,
            title="Packets of interfaces",
            good="follows the traffic.",
            otherwise="many small packets cost processor time.",
            chosen=OF_INTERFACES,
            may_be_empty="",
        ),
        moved(
            fabric.NET_RDMA_BYTES,
            DIRECTION,
            title="RDMA past the kernel",
            good="where collectives use RoCE.",
            otherwise="none: they fell back to sockets.",
            chosen=OF_INTERFACES,
            may_be_empty=_NO_COUNTER,
        ),
        moved(
            fabric.NET_PAUSE_SECONDS,
            DIRECTION,
            title="Time paused",
            good="below 1 % of the range.",
            otherwise="receive: the fabric is congested; transmit: this host is too slow.",
            chosen=OF_INTERFACES,
            may_be_empty=_NO_COUNTER,
        ),
        errors(
            fabric.NET_PAUSES,
            DIRECTION,
            PRIORITY,
            title="Pause frames",
            otherwise="on a priority that is not lossless: PFC is configured wrongly.",
            chosen=OF_INTERFACES,
        ),
        errors(
            fabric.NET_PAUSE_STORMS,
            STORM,
            title="Storms of pauses",
            otherwise="a host that pauses without end stops its switch: reset the adapter.",
            chosen=OF_INTERFACES,
        ),
        errors(
            fabric.NET_ECN_MARKED,
            title="Packets marked for congestion",
            otherwise="incast, or thresholds of the switch too low.",
            chosen=OF_INTERFACES,
        ),
        errors(
            fabric.NET_DISCARDS,
            DISCARD,
            title="Packets discarded by the adapter",
            otherwise="buffers are too short, or a cloud's allowance is spent.",
            chosen=OF_INTERFACES,
        ),
        errors(
            fabric.NET_PHY_ERRORS,
            PHY_ERROR,
            title="Errors of the physical layer",
            otherwise="corrected bits are normal; the others mean cable or transceiver.",
            chosen=OF_INTERFACES,
        ),
        table(
            verdicts.EXPECTED_PORT_HEALTH,
            above_zero(
                OF_INTERFACES.by(
                    "max",
                    OF_INTERFACES.of(verdicts.EXPECTED_PORT_HEALTH),
                    VERDICT,
                    verdicts.EXPECTED_REASON,
                )
            ),
            title="Ports that the agents expect",
            good="all ok.",
            otherwise="missing: the adapter is gone; the others: see its state.",
            columns=(NODE, DEVICE, VERDICT, verdicts.EXPECTED_REASON),
            width=8,
            may_be_empty="agents that are told no ports to expect have none",
        ),
    ),
)
