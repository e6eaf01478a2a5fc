"""Closed rows about ports and adapters in detail."""

from lockstep_catalogue import events, fabric_ports, gpu_owner, pcie
from lockstep_catalogue.fabric_labels import (
    ADAPTER,
    CAST,
    CONGESTION,
    DISTANCE,
    ENDPOINT,
    FIRMWARE,
    PHYSICAL_STATE,
    PORT,
    PORT_ABOVE,
    PORT_STATE,
    QP_ERROR,
    RAIL,
    TRANSFER,
)
from lockstep_catalogue.labels import (
    DEVICE,
    DIRECTION,
    JOB_ID,
    NODE,
    PCI_BUS_ID,
    RANK,
)
from lockstep_catalogue.promql import by
from lockstep_dashboards.layouts.fabric_ports import (
    NO_INFINIBAND,
    NO_LOSS,
    OF_ALL,
    OF_DEVICES,
    OF_PORTS,
    errors,
    moved,
    present_ports,
)
from lockstep_dashboards.panel import Query, Row
from lockstep_dashboards.selection import (
    MOST_ROWS,
    above_zero,
    largest,
)
from lockstep_dashboards.series_panels import column, table

PORT_DETAIL = Row(
    title="Ports in detail",
    collapsed=True,
    panels=(
        moved(
            fabric_ports.PORT_PACKETS,
            DIRECTION,
            title="Packets of ports",
            good="alike on the ports of a job.",
            otherwise="many small packets: collectives of small messages.",
            may_be_empty=NO_INFINIBAND,
        ),
        moved(
            fabric_ports.RDMA_BYTES,
            TRANSFER,
            title="Bytes of RDMA transfers",
            good="follows the traffic of the ports.",
            otherwise="traffic without RDMA: the collectives fell back to sockets.",
            may_be_empty=NO_INFINIBAND,
        ),
        moved(
            fabric_ports.PORT_EXTENDED_BYTES,
            DIRECTION,
            title="Bytes of ports by 64-bit counters",
            good="as the traffic of the ports.",
            otherwise="they differ: the narrow counters overflow between scrapes.",
            may_be_empty="kernels of today count in 64 bits anyway",
        ),
        moved(
            fabric_ports.PORT_EXTENDED_PACKETS,
            CAST,
            title="Packets of ports by 64-bit counters",
            good="as the packets of the ports.",
            otherwise="they differ: the narrow counters overflow between scrapes.",
            may_be_empty="kernels of today count in 64 bits anyway",
        ),
        moved(
            fabric_ports.RDMA_CONGESTION,
            CONGESTION,
            title="Congestion of RDMA",
            good="few.",
            otherwise="incast: the switches mark; look at the placement of the job.",
            may_be_empty=NO_LOSS,
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
            may_be_empty=NO_LOSS,
        ),
        table(
            fabric_ports.PORT_STATE_INFO,
            present_ports(fabric_ports.PORT_STATE_INFO, PORT_STATE, PHYSICAL_STATE),
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
            present_ports(fabric_ports.PORT_INFO, ADAPTER, FIRMWARE),
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
            chosen=OF_DEVICES,
            width=12,
        ),
    ),
)
