"""Metrics of PCIe links, RDMA ports and network interfaces, by the kernel."""

from lockstep_catalogue import labels
from lockstep_catalogue.metric import Label, Metric

# Metrics of the PCIe links of GPUs and network adapters, by the kernel.

_DEVICE = "/sys/bus/pci/devices/PCI_BUS_ID"

PCIE_INFO = Metric(
    name="lockstep_pcie_device_info",
    labels=(labels.PCI_BUS_ID, labels.ENDPOINT, labels.DEVICE, labels.PORT_ABOVE, labels.NUMA_NODE),
    help="A GPU or network adapter and the port above it, always 1.",
    source=f"{_DEVICE}: class, infiniband, net, numa_node and its place in the tree",
)
PCIE_SPEED = Metric(
    name="lockstep_pcie_link_speed_transfers_per_second",
    labels=(labels.PCI_BUS_ID,),
    help="Present speed of the link, in transfers per second and lane.",
    source=f"{_DEVICE}/current_link_speed",
)
PCIE_LANES = Metric(
    name="lockstep_pcie_link_lanes",
    labels=(labels.PCI_BUS_ID,),
    help="Present lanes of the link.",
    source=f"{_DEVICE}/current_link_width",
)
# Against both ends: a card in a narrow slot is as it should be, a link below both is a fault.
PCIE_RATIO = Metric(
    name="lockstep_pcie_link_capability_ratio",
    labels=(labels.PCI_BUS_ID,),
    help="Speed times lanes of the link, as a share of what both of its ends support.",
    source=f"{_DEVICE}/current_link_speed, max_link_speed and width, and of the port above",
)
# The kernel's own counters, also of adapters and of the port above; a hung driver does not stop
# them.
PCIE_AER_ERRORS = Metric(
    name="lockstep_pcie_aer_errors_total",
    labels=(labels.PCI_BUS_ID, labels.LINK_END, labels.SEVERITY),
    help="Errors that an end of the link reported; the port above appears with its first error.",
    source=f"{_DEVICE}/aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal: the total",
)
PCIE_AER_KINDS = Metric(
    name="lockstep_pcie_aer_kind_errors_total",
    labels=(labels.PCI_BUS_ID, labels.LINK_END, labels.SEVERITY, labels.AER_ERROR),
    help="PCIe errors by kind, as an end of the link reported them; absent before the first.",
    source=f"{_DEVICE}/aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal",
)
AFFINITY = Metric(
    name="lockstep_fabric_affinity_info",
    labels=(labels.PCI_BUS_ID, labels.DEVICE, labels.DISTANCE, labels.RAIL),
    help="Adapters nearest to the GPU at this PCI address, always 1.",
    source="common bridges and memory nodes in /sys/bus/pci/devices",
)

# Metrics of RDMA ports: InfiniBand, Omni-Path, RoCE, iWARP and EFA, by /sys/class/infiniband.

_PORT = "/sys/class/infiniband/DEVICE/ports/PORT"
_COUNTERS = f"{_PORT}/counters"
_HW_COUNTERS = f"{_PORT}/hw_counters"
_PORT_LABELS = (labels.DEVICE, labels.PORT)


def _metric(name: str, text: str, source: str, *more: Label, for_users: str = "") -> Metric:
    labels = (*_PORT_LABELS, *more)
    return Metric(name=name, labels=labels, help=text, source=source, for_users=for_users)


PORT_INFO = _metric(
    "lockstep_fabric_port_info",
    "Identity of the port and its adapter, always 1.",
    "/sys/class/infiniband/DEVICE/hca_type, fw_ver, board_id, device",
    labels.LINK_LAYER,
    labels.ADAPTER,
    labels.FIRMWARE,
    labels.BOARD,
    labels.INTERFACE,
    labels.PCI_BUS_ID,
)
# The EFA driver hard-codes ACTIVE and LinkUp.
PORT_UP = _metric(
    "lockstep_fabric_port_up",
    "1 while the port is active, else 0; absent on EFA, whose driver always reports active.",
    f"{_PORT}/state",
)
PORT_STATE_INFO = _metric(
    "lockstep_fabric_port_state_info",
    "Logical and physical state of the port, always 1 on the present pair.",
    f"{_PORT}/state, phys_state",
    labels.PORT_STATE,
    labels.PHYSICAL_STATE,
    for_users="node_exporter: node_infiniband_state_id, _physical_state_id",
)
PORT_RATE = _metric(
    "lockstep_fabric_port_rate_bytes_per_second",
    "Signalling rate of the port in one direction, over all its lanes.",
    f"{_PORT}/rate x 125000000",
)
PORT_RATE_EXPECTED = _metric(
    "lockstep_fabric_port_rate_expected_bytes_per_second",
    "Best rate of the node's ports of this board since the agent started, or its interface's.",
    f"{_PORT}/rate, /sys/class/net/INTERFACE/speed",
)
# port_rcv_data and port_xmit_data count words of four bytes; EFA counts bytes.
PORT_BYTES = _metric(
    "lockstep_fabric_port_bytes_total",
    "Bytes through the port.",
    f"{_COUNTERS}/port_rcv_data, port_xmit_data x 4; {_HW_COUNTERS}/rx_bytes, tx_bytes on EFA",
    labels.DIRECTION,
)
PORT_PACKETS = _metric(
    "lockstep_fabric_port_packets_total",
    "Packets through the port.",
    f"{_COUNTERS}/port_rcv_packets, unicast_rcv_packets, multicast_rcv_packets and of transmission",
    labels.DIRECTION,
    labels.CAST,
    for_users="node_exporter: node_infiniband_port_packets_transmitted_total",
)
PORT_EXTENDED_BYTES = _metric(
    "lockstep_fabric_port_extended_bytes_total",
    "Bytes through the port, by the separate 64-bit counters of older kernels.",
    f"{_PORT}/counters_ext/port_rcv_data_64, port_xmit_data_64 x 4",
    labels.DIRECTION,
    for_users="node_exporter: node_infiniband_legacy_data_received_bytes_total",
)
PORT_EXTENDED_PACKETS = _metric(
    "lockstep_fabric_port_extended_packets_total",
    "Packets through the port, by the separate 64-bit counters of older kernels.",
    f"{_PORT}/counters_ext/port_rcv_packets_64, port_xmit_packets_64, port_unicast_rcv_packets",
    labels.DIRECTION,
    labels.CAST,
    for_users="node_exporter: node_infiniband_legacy_unicast_packets_received_total",
)
# A high share on one rail means back-pressure from a congested port elsewhere.
PORT_WAIT = _metric(
    "lockstep_fabric_port_transmit_wait_ticks_total",
    "Ticks in which the port had data to send and could not; the tick is the adapter's own.",
    f"{_COUNTERS}/port_xmit_wait",
)
# drivers/infiniband/core/sysfs.c fixes the widths: symbol_error has 16 bits, link_downed 8 and
# buffer overruns 4.
PORT_ERRORS = _metric(
    "lockstep_fabric_port_errors_total",
    "Errors that the port counted; narrow counters stop at their ceiling.",
    f"{_COUNTERS}/symbol_error, link_downed and others",
    labels.PORT_ERROR,
)
# A clamped counter has no rate any more, so that its alert would be silent.
PORT_SATURATED = _metric(
    "lockstep_fabric_port_saturated",
    "1 on an error counter at its ceiling, which no longer counts; else absent.",
    f"{_COUNTERS}, against the 4, 8 or 16 bits of each",
    labels.PORT_ERROR,
)
# The queue pair is in error from here on, and NCCL's communicator with it.
RDMA_RETRIES_EXCEEDED = _metric(
    "lockstep_fabric_rdma_retries_exceeded_total",
    "Connections that broke because their retries were exhausted.",
    f"{_HW_COUNTERS}/req_transport_retries_exceeded, req_rnr_retries_exceeded",
    labels.RETRY,
)
RDMA_CONGESTION = _metric(
    "lockstep_fabric_rdma_congestion_packets_total",
    "Packets marked for congestion, or that notify a sender of it.",
    f"{_HW_COUNTERS}/np_ecn_marked_roce_packets, np_cnp_sent, rp_cnp_handled, rp_cnp_ignored",
    labels.CONGESTION,
)
RDMA_LOSSES = _metric(
    "lockstep_fabric_rdma_losses_total",
    "Signs of lost, late or repeated packets.",
    f"{_HW_COUNTERS}/out_of_sequence, local_ack_timeout_err and others",
    labels.PACKET_LOSS,
)
RDMA_QP_ERRORS = _metric(
    "lockstep_fabric_rdma_queue_pair_errors_total",
    "Work requests that ended in an error.",
    f"{_HW_COUNTERS}/req_cqe_error, resp_cqe_error and others",
    labels.QP_ERROR,
)
# mlx5 counts them only once `rdma statistic` has bound the optional counters.
RDMA_BYTES = _metric(
    "lockstep_fabric_rdma_bytes_total",
    "Bytes of RDMA transfers; on mlx5 only while the optional counters are bound.",
    f"{_HW_COUNTERS}/rdma_tx_bytes, rdma_rx_bytes; send_bytes, rdma_read_bytes and others on EFA",
    labels.TRANSFER,
)
PORT_HEALTH = Metric(
    name="lockstep_fabric_port_health_info",
    labels=(*_PORT_LABELS, labels.VERDICT, labels.PORT_REASON),
    help="Verdict on the port and its reason, always 1; absent on a port that was never up.",
    source="state, rate, errors and flaps of the last ten minutes",
)

# Metrics of network interfaces: traffic, errors, pauses and congestion, by the kernel.

_STATISTICS = "/sys/class/net/DEVICE/statistics"

NET_UP = Metric(
    name="lockstep_fabric_net_up",
    labels=(labels.DEVICE,),
    help="1 while the interface is operationally up, else 0.",
    source="/sys/class/net/DEVICE/operstate",
)
# The file holds megabits per second.
NET_SPEED = Metric(
    name="lockstep_fabric_net_speed_bytes_per_second",
    labels=(labels.DEVICE,),
    help="Line rate of the interface in one direction; absent where the driver reports none.",
    source="/sys/class/net/DEVICE/speed x 125000",
)
NET_BYTES = Metric(
    name="lockstep_fabric_net_bytes_total",
    labels=(labels.DEVICE, labels.DIRECTION),
    help="Bytes through the interface.",
    source=f"{_STATISTICS}/rx_bytes, tx_bytes",
)
NET_PACKETS = Metric(
    name="lockstep_fabric_net_packets_total",
    labels=(labels.DEVICE, labels.DIRECTION),
    help="Packets through the interface.",
    source=f"{_STATISTICS}/rx_packets, tx_packets",
    for_users="node_exporter: node_network_receive_packets_total",
)
NET_ERRORS = Metric(
    name="lockstep_fabric_net_errors_total",
    labels=(labels.DEVICE, labels.DIRECTION),
    help="Packets lost to errors on the interface.",
    source=f"{_STATISTICS}/rx_errors, tx_errors",
)
NET_DROPPED = Metric(
    name="lockstep_fabric_net_dropped_total",
    labels=(labels.DEVICE, labels.DIRECTION),
    help="Packets that the interface or the host dropped.",
    source=f"{_STATISTICS}/rx_dropped, tx_dropped",
    for_users="node_exporter: node_network_receive_drop_total",
)
NET_CARRIER_CHANGES = Metric(
    name="lockstep_fabric_net_carrier_changes_total",
    labels=(labels.DEVICE,),
    help="Changes of the interface's link between up and down.",
    source="/sys/class/net/DEVICE/carrier_changes",
)

NET_SPEED_MAX = Metric(
    name="lockstep_fabric_net_speed_max_bytes_per_second",
    labels=(labels.DEVICE,),
    help="Fastest line rate that adapter and transceiver support.",
    source="ethtool: supported link modes",
)
BOND_MEMBERS = Metric(
    name="lockstep_fabric_bond_members",
    labels=(labels.DEVICE,),
    help="Interfaces in the bond.",
    source="/sys/class/net/DEVICE/bonding/slaves",
    for_users="node_exporter: node_bonding_slaves",
)
BOND_MEMBERS_UP = Metric(
    name="lockstep_fabric_bond_members_up",
    labels=(labels.DEVICE,),
    help="Interfaces of the bond that are operationally up.",
    source="/sys/class/net/MEMBER/operstate",
    for_users="node_exporter: node_bonding_active",
)
NET_PAUSES = Metric(
    name="lockstep_fabric_net_pause_frames_total",
    labels=(labels.DEVICE, labels.DIRECTION, labels.PRIORITY),
    help="Pause frames (PFC and global); a single priority appears with its first frame.",
    source="ethtool: rx_prio0_pause, tx_pause_ctrl_phy and their like",
)
NET_PAUSE_SECONDS = Metric(
    name="lockstep_fabric_net_pause_seconds_total",
    labels=(labels.DEVICE, labels.DIRECTION),
    help="Time for which priorities were paused, summed over them.",
    source="ethtool: rx_prio0_pause_duration, pfc_pri0_rx_duration_us and their like",
)
# At the error level mlx5 has reached its time-out and disables flow control.
NET_PAUSE_STORMS = Metric(
    name="lockstep_fabric_net_pause_storms_total",
    labels=(labels.DEVICE, labels.STORM),
    help="Pause storms (pauses that do not end) that the adapter detected, by severity.",
    source="ethtool: tx_pause_storm_warning_events, tx_pause_storm_error_events",
)
NET_ECN_MARKED = Metric(
    name="lockstep_fabric_net_ecn_marked_packets_total",
    labels=(labels.DEVICE,),
    help="Received packets that a switch had marked for congestion.",
    source="ethtool: rx_ecn_mark",
)
NET_DISCARDS = Metric(
    name="lockstep_fabric_net_discards_total",
    labels=(labels.DEVICE, labels.DISCARD),
    help="Packets that the adapter dropped, or that a cloud withheld beyond an allowance.",
    source="ethtool: rx_discards_phy, rx_out_of_buffer and their like",
)
NET_PHY_ERRORS = Metric(
    name="lockstep_fabric_net_phy_errors_total",
    labels=(labels.DEVICE, labels.PHY_ERROR),
    help="Errors of the physical layer by kind; marginal cables and optics cause them.",
    source="ethtool: rx_symbol_err_phy, rx_corrected_bits_phy and their like",
)
NET_RDMA_BYTES = Metric(
    name="lockstep_fabric_net_rdma_bytes_total",
    labels=(labels.DEVICE, labels.DIRECTION),
    help="Bytes of RDMA through the interface, which bypass the kernel.",
    source="ethtool: rx_vport_rdma_unicast_bytes, rx_rdma_bytes and their like",
)
