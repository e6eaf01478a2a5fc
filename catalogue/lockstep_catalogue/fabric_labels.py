"""Labels of ports, PCIe links and host resources: small closed sets, and names of devices."""

from lockstep_catalogue.metric import Label

PORT = Label(name="port", help="number of the port on its adapter, from 1")
LINK_LAYER = Label(
    name="link_layer",
    help="link layer of the port; unspecified on EFA",
    values=("infiniband", "ethernet", "unspecified"),
)
BOARD = Label(name="board", help="board id of the adapter, the same for all of its kind")
FIRMWARE = Label(name="firmware", help="firmware version of the adapter")
ADAPTER = Label(name="adapter", help="chip of the adapter, as its driver calls it")
INTERFACE = Label(name="interface", help="network interface of the port, where it has one")
PORT_STATE = Label(
    name="port_state",
    help="logical state of the port",
    values=("none", "down", "init", "armed", "active", "active_defer"),
)
PHYSICAL_STATE = Label(
    name="physical_state",
    help="physical state of the port",
    values=(
        "none",
        "sleep",
        "polling",
        "disabled",
        "training",
        "link_up",
        "link_error_recovery",
        "phy_test",
    ),
)
CAST = Label(name="cast", help="kind of packets counted", values=("all", "unicast", "multicast"))
PORT_ERROR = Label(
    name="port_error",
    help="kind of error that the port counts",
    values=(
        "symbol",
        "link_error_recovery",
        "link_downed",
        "receive",
        "receive_remote_physical",
        "receive_switch_relay",
        "receive_constraint",
        "receive_discards",
        "transmit_constraint",
        "transmit_discards",
        "local_link_integrity",
        "excessive_buffer_overrun",
        "vl15_dropped",
    ),
)
RETRY = Label(
    name="retry", help="which budget of retries was exhausted", values=("transport", "rnr")
)
CONGESTION = Label(
    name="congestion",
    help="ECN-marked packets, and congestion notifications (CNP) about them",
    values=("ecn_marked", "cnp_sent", "cnp_handled", "cnp_ignored"),
)
PACKET_LOSS = Label(
    name="packet_loss",
    help="sign of lost, late or repeated packets",
    values=(
        "out_of_sequence",
        "sequence_error",
        "implied_nak",
        "ack_timeout",
        "duplicate_request",
        "receiver_not_ready",
        "out_of_buffer",
        "dropped",
        "retransmitted",
        "retransmit_timeout",
        "adaptive_retransmission",
        "adaptive_retransmission_timeout",
        "slow_restart",
        "peer_impaired",
        "peer_unresponsive",
    ),
)
QP_ERROR = Label(
    name="qp_error",
    help="how work requests failed, for the requester or the responder",
    values=(
        "requester_completion",
        "requester_flush",
        "requester_remote_access",
        "requester_remote_invalid",
        "responder_completion",
        "responder_flush",
        "responder_local_length",
        "responder_remote_access",
    ),
)
TRANSFER = Label(
    name="transfer",
    help="kind of RDMA transfer",
    values=(
        "transmit",
        "receive",
        "send",
        "receive_work",
        "read",
        "read_response",
        "write",
        "write_receive",
    ),
)
PRIORITY = Label(
    name="priority",
    help="priority of PFC, all is their sum",
    values=("all", *map(str, range(8))),
)
PHY_ERROR = Label(
    name="phy_error",
    help="kind of error of the physical layer",
    values=("symbol", "corrected_bits", "pcs_symbol", "crc", "local_fault", "remote_fault"),
)
STORM = Label(name="storm", help="severity of a storm of pauses", values=("warning", "error"))
DISCARD = Label(
    name="discard",
    help="where the adapter dropped packets",
    values=(
        "receive_port",
        "transmit_port",
        "receive_no_buffer",
        "receive_driver",
        "transmit_driver",
        "bandwidth_in_allowance",
        "bandwidth_out_allowance",
        "packet_allowance",
        "connection_allowance",
    ),
)
PORT_REASON = Label(
    name="port_reason",
    help="reason for the verdict on the port",
    values=("none", "down", "flapping", "retries", "rate", "lanes", "errors", "blind", "pcie"),
)
ENDPOINT = Label(name="endpoint", help="device at the end of the PCIe link", values=("gpu", "nic"))
PORT_ABOVE = Label(name="port_above", help="PCI address of the port at the link's other end")
NUMA_NODE = Label(name="numa_node", help="NUMA node of the device")
LINK_END = Label(
    name="link_end",
    help="the device itself, or the port above it",
    values=("device", "port_above"),
)
SEVERITY = Label(
    name="severity", help="severity of a PCIe error", values=("correctable", "nonfatal", "fatal")
)
AER_ERROR = Label(
    name="aer_error",
    help="kind of PCIe error, as the kernel abbreviates it",
    values=(
        "RxErr",
        "BadTLP",
        "BadDLLP",
        "Rollover",
        "Timeout",
        "NonFatalErr",
        "CorrIntErr",
        "HeaderOF",
        "Undefined",
        "DLP",
        "SDES",
        "TLP",
        "FCP",
        "CmpltTO",
        "CmpltAbrt",
        "UnxCmplt",
        "RxOF",
        "MalfTLP",
        "ECRC",
        "UnsupReq",
        "ACSViol",
        "UncorrIntErr",
        "BlockedTLP",
        "AtomicOpBlocked",
        "TLPBlockedErr",
        "PoisonTLPBlocked",
    ),
)
DISTANCE = Label(
    name="distance",
    help="what lies between GPU and adapter: one bridge, bridges, host bridge, NUMA node, sockets",
    values=("pix", "pxb", "phb", "node", "sys"),
)
RAIL = Label(name="rail", help="index of the adapter among those next to GPUs, by PCI address")
RESOURCE = Label(
    name="resource", help="resource that tasks wait for", values=("cpu", "memory", "io")
)
PRESSURE = Label(name="pressure", help="whether some or all tasks waited", values=("some", "full"))
MEMORY_EVENT = Label(
    name="memory_event",
    help="what the kernel did at a limit on memory",
    values=("high", "max", "oom", "oom_kill"),
)
VOLUME = Label(name="volume", help="block device, or major:minor of a network file system")
FILESYSTEM = Label(name="filesystem", help="type of the file system")
SOURCE = Label(name="source", help="device or export that is mounted")
MOUNT_POINT = Label(name="mount_point", help="mount point, the shortest of several")
OPERATION = Label(
    name="operation",
    help="kind of request to storage",
    values=("read", "write", "commit", "metadata"),
)
