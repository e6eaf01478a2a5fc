"""Metrics of network interfaces: traffic, errors, pauses and congestion, by the kernel."""

from lockstep_catalogue.fabric_labels import DISCARD, PHY_ERROR, PRIORITY, STORM
from lockstep_catalogue.labels import DEVICE, DIRECTION
from lockstep_catalogue.metric import Metric

_STATISTICS = "/sys/class/net/DEVICE/statistics"

NET_UP = Metric(
    name="lockstep_fabric_net_up",
    labels=(DEVICE,),
    help="1 while the interface is operationally up, else 0.",
    source="/sys/class/net/DEVICE/operstate",
)
# The file holds megabits per second.
NET_SPEED = Metric(
    name="lockstep_fabric_net_speed_bytes_per_second",
    labels=(DEVICE,),
    help="Line rate of the interface in one direction; absent where the driver reports none.",
    source="/sys/class/net/DEVICE/speed x 125000",
)
NET_BYTES = Metric(
    name="lockstep_fabric_net_bytes_total",
    labels=(DEVICE, DIRECTION),
    help="Bytes through the interface.",
    source=f"{_STATISTICS}/rx_bytes, tx_bytes",
)
NET_PACKETS = Metric(
    name="lockstep_fabric_net_packets_total",
    labels=(DEVICE, DIRECTION),
    help="Packets through the interface.",
    source=f"{_STATISTICS}/rx_packets, tx_packets",
)
NET_ERRORS = Metric(
    name="lockstep_fabric_net_errors_total",
    labels=(DEVICE, DIRECTION),
    help="Packets lost to errors on the interface.",
    source=f"{_STATISTICS}/rx_errors, tx_errors",
)
NET_DROPPED = Metric(
    name="lockstep_fabric_net_dropped_total",
    labels=(DEVICE, DIRECTION),
    help="Packets that the interface or the host dropped.",
    source=f"{_STATISTICS}/rx_dropped, tx_dropped",
)
NET_CARRIER_CHANGES = Metric(
    name="lockstep_fabric_net_carrier_changes_total",
    labels=(DEVICE,),
    help="Changes of the interface's link between up and down.",
    source="/sys/class/net/DEVICE/carrier_changes",
)

NET_SPEED_MAX = Metric(
    name="lockstep_fabric_net_speed_max_bytes_per_second",
    labels=(DEVICE,),
    help="Fastest line rate that adapter and transceiver support.",
    source="ethtool: supported link modes",
)
NET_VIRTUAL_FUNCTIONS = Metric(
    name="lockstep_fabric_net_virtual_functions",
    labels=(DEVICE,),
    help="Virtual functions of the port; they do not count as ports.",
    source="/sys/class/net/DEVICE/device/sriov_numvfs",
)
BOND_MEMBERS = Metric(
    name="lockstep_fabric_bond_members",
    labels=(DEVICE,),
    help="Interfaces in the bond.",
    source="/sys/class/net/DEVICE/bonding/slaves",
)
BOND_MEMBERS_UP = Metric(
    name="lockstep_fabric_bond_members_up",
    labels=(DEVICE,),
    help="Interfaces of the bond that are operationally up.",
    source="/sys/class/net/MEMBER/operstate",
)
NET_PAUSES = Metric(
    name="lockstep_fabric_net_pause_frames_total",
    labels=(DEVICE, DIRECTION, PRIORITY),
    help="Pause frames (PFC and global); a single priority appears with its first frame.",
    source="ethtool: rx_prio0_pause, tx_pause_ctrl_phy and their like",
)
NET_PAUSE_SECONDS = Metric(
    name="lockstep_fabric_net_pause_seconds_total",
    labels=(DEVICE, DIRECTION),
    help="Time for which priorities were paused, summed over them.",
    source="ethtool: rx_prio0_pause_duration, pfc_pri0_rx_duration_us and their like",
)
# At the error level mlx5 has reached its time-out and disables flow control.
NET_PAUSE_STORMS = Metric(
    name="lockstep_fabric_net_pause_storms_total",
    labels=(DEVICE, STORM),
    help="Pauses without end that the adapter detected, by severity.",
    source="ethtool: tx_pause_storm_warning_events, tx_pause_storm_error_events",
)
NET_ECN_MARKED = Metric(
    name="lockstep_fabric_net_ecn_marked_packets_total",
    labels=(DEVICE,),
    help="Received packets that a switch had marked for congestion.",
    source="ethtool: rx_ecn_mark",
)
NET_DISCARDS = Metric(
    name="lockstep_fabric_net_discards_total",
    labels=(DEVICE, DISCARD),
    help="Packets that the adapter dropped, or that a cloud withheld beyond an allowance.",
    source="ethtool: rx_discards_phy, rx_out_of_buffer and their like",
)
NET_PHY_ERRORS = Metric(
    name="lockstep_fabric_net_phy_errors_total",
    labels=(DEVICE, PHY_ERROR),
    help="Errors of the physical layer by kind; marginal cables and optics cause them.",
    source="ethtool: rx_symbol_err_phy, rx_corrected_bits_phy and their like",
)
NET_RDMA_BYTES = Metric(
    name="lockstep_fabric_net_rdma_bytes_total",
    labels=(DEVICE, DIRECTION),
    help="Bytes of RDMA through the interface, which bypass the kernel.",
    source="ethtool: rx_vport_rdma_unicast_bytes, rx_rdma_bytes and their like",
)
