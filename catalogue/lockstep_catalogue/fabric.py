"""What the network ports of a node tell."""

from lockstep_catalogue.labels import DEVICE, DIRECTION
from lockstep_catalogue.metric import Kind, Metric, Unit

_STATISTICS = "/sys/class/net/DEVICE/statistics"

NET_UP = Metric(
    name="lockstep_fabric_net_up",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=(DEVICE,),
    help="1 while the interface is operationally up, else 0.",
    source="/sys/class/net/DEVICE/operstate",
)
NET_SPEED = Metric(
    name="lockstep_fabric_net_speed_bytes_per_second",
    kind=Kind.GAUGE,
    unit=Unit.BYTES_PER_SECOND,
    labels=(DEVICE,),
    help="Line rate of the interface in one direction; absent where the driver does not tell.",
    source="/sys/class/net/DEVICE/speed x 125000",
)
NET_BYTES = Metric(
    name="lockstep_fabric_net_bytes_total",
    kind=Kind.COUNTER,
    unit=Unit.BYTES,
    labels=(DEVICE, DIRECTION),
    help="Bytes that went through the interface.",
    source=f"{_STATISTICS}/rx_bytes, tx_bytes",
)
NET_PACKETS = Metric(
    name="lockstep_fabric_net_packets_total",
    kind=Kind.COUNTER,
    unit=Unit.NONE,
    labels=(DEVICE, DIRECTION),
    help="Packets that went through the interface.",
    source=f"{_STATISTICS}/rx_packets, tx_packets",
)
NET_ERRORS = Metric(
    name="lockstep_fabric_net_errors_total",
    kind=Kind.COUNTER,
    unit=Unit.NONE,
    labels=(DEVICE, DIRECTION),
    help="Packets lost to errors on the interface.",
    source=f"{_STATISTICS}/rx_errors, tx_errors",
)
NET_DROPPED = Metric(
    name="lockstep_fabric_net_dropped_total",
    kind=Kind.COUNTER,
    unit=Unit.NONE,
    labels=(DEVICE, DIRECTION),
    help="Packets that the interface or the host dropped.",
    source=f"{_STATISTICS}/rx_dropped, tx_dropped",
)
NET_CARRIER_CHANGES = Metric(
    name="lockstep_fabric_net_carrier_changes_total",
    kind=Kind.COUNTER,
    unit=Unit.NONE,
    labels=(DEVICE,),
    help="How often the link of the interface went up or down.",
    source="/sys/class/net/DEVICE/carrier_changes",
)

METRICS = (
    NET_UP,
    NET_SPEED,
    NET_BYTES,
    NET_PACKETS,
    NET_ERRORS,
    NET_DROPPED,
    NET_CARRIER_CHANGES,
)
