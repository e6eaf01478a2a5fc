"""Metrics of RDMA ports: InfiniBand, Omni-Path, RoCE, iWARP and EFA, by /sys/class/infiniband."""

from lockstep_catalogue.fabric_labels import (
    ADAPTER,
    BOARD,
    CAST,
    CONGESTION,
    FIRMWARE,
    INTERFACE,
    LINK_LAYER,
    PACKET_LOSS,
    PHYSICAL_STATE,
    PORT,
    PORT_ERROR,
    PORT_REASON,
    PORT_STATE,
    QP_ERROR,
    RETRY,
    TRANSFER,
)
from lockstep_catalogue.labels import DEVICE, DIRECTION, PCI_BUS_ID, VERDICT
from lockstep_catalogue.metric import Label, Metric

_PORT = "/sys/class/infiniband/DEVICE/ports/PORT"
_COUNTERS = f"{_PORT}/counters"
_HW_COUNTERS = f"{_PORT}/hw_counters"
_OF_PORT = (DEVICE, PORT)


def _metric(name: str, text: str, source: str, *more: Label) -> Metric:
    return Metric(name=name, labels=(*_OF_PORT, *more), help=text, source=source)


PORT_INFO = _metric(
    "lockstep_fabric_port_info",
    "Identity of the port and its adapter, always 1.",
    "/sys/class/infiniband/DEVICE/hca_type, fw_ver, board_id, device",
    LINK_LAYER,
    ADAPTER,
    FIRMWARE,
    BOARD,
    INTERFACE,
    PCI_BUS_ID,
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
    PORT_STATE,
    PHYSICAL_STATE,
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
PORT_LANES = _metric(
    "lockstep_fabric_port_lanes",
    "Lanes of the port's link.",
    f"{_PORT}/rate",
)
# port_rcv_data and port_xmit_data count words of four bytes; EFA counts bytes.
PORT_BYTES = _metric(
    "lockstep_fabric_port_bytes_total",
    "Bytes through the port.",
    f"{_COUNTERS}/port_rcv_data, port_xmit_data x 4; {_HW_COUNTERS}/rx_bytes, tx_bytes on EFA",
    DIRECTION,
)
PORT_PACKETS = _metric(
    "lockstep_fabric_port_packets_total",
    "Packets through the port.",
    f"{_COUNTERS}/port_rcv_packets, unicast_rcv_packets, multicast_rcv_packets and of transmission",
    DIRECTION,
    CAST,
)
PORT_EXTENDED_BYTES = _metric(
    "lockstep_fabric_port_extended_bytes_total",
    "Bytes through the port, by the separate 64-bit counters of older kernels.",
    f"{_PORT}/counters_ext/port_rcv_data_64, port_xmit_data_64 x 4",
    DIRECTION,
)
PORT_EXTENDED_PACKETS = _metric(
    "lockstep_fabric_port_extended_packets_total",
    "Packets through the port, by the separate 64-bit counters of older kernels.",
    f"{_PORT}/counters_ext/port_rcv_packets_64, port_xmit_packets_64, port_unicast_rcv_packets",
    DIRECTION,
    CAST,
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
    PORT_ERROR,
)
# A clamped counter has no rate any more, so that its alert would be silent.
PORT_SATURATED = _metric(
    "lockstep_fabric_port_saturated",
    "1 on an error counter at its ceiling, which no longer counts; else absent.",
    f"{_COUNTERS}, against the 4, 8 or 16 bits of each",
    PORT_ERROR,
)
PORT_SATURATED_COUNTERS = _metric(
    "lockstep_fabric_port_saturated_counters",
    "Number of the port's error counters at their ceiling.",
    f"{_COUNTERS}, against the 4, 8 or 16 bits of each",
)
# The queue pair is in error from here on, and NCCL's communicator with it.
RDMA_RETRIES_EXCEEDED = _metric(
    "lockstep_fabric_rdma_retries_exceeded_total",
    "Connections that broke because their retries were exhausted.",
    f"{_HW_COUNTERS}/req_transport_retries_exceeded, req_rnr_retries_exceeded",
    RETRY,
)
RDMA_CONGESTION = _metric(
    "lockstep_fabric_rdma_congestion_packets_total",
    "Packets marked for congestion, or that notify a sender of it.",
    f"{_HW_COUNTERS}/np_ecn_marked_roce_packets, np_cnp_sent, rp_cnp_handled, rp_cnp_ignored",
    CONGESTION,
)
RDMA_LOSSES = _metric(
    "lockstep_fabric_rdma_losses_total",
    "Signs of lost, late or repeated packets.",
    f"{_HW_COUNTERS}/out_of_sequence, local_ack_timeout_err and others",
    PACKET_LOSS,
)
RDMA_QP_ERRORS = _metric(
    "lockstep_fabric_rdma_queue_pair_errors_total",
    "Work requests that ended in an error.",
    f"{_HW_COUNTERS}/req_cqe_error, resp_cqe_error and others",
    QP_ERROR,
)
# mlx5 counts them only once `rdma statistic` has bound the optional counters.
RDMA_BYTES = _metric(
    "lockstep_fabric_rdma_bytes_total",
    "Bytes of RDMA transfers; on mlx5 only while the optional counters are bound.",
    f"{_HW_COUNTERS}/rdma_tx_bytes, rdma_rx_bytes; send_bytes, rdma_read_bytes and others on EFA",
    TRANSFER,
)
PORT_HEALTH = Metric(
    name="lockstep_fabric_port_health_info",
    labels=(*_OF_PORT, VERDICT, PORT_REASON),
    help="Verdict on the port and its reason, always 1; absent on a port that was never up.",
    source="state, rate, errors and flaps of the last ten minutes",
)
