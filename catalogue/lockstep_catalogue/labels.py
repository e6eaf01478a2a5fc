"""Every label, once: identities, and small closed sets of values."""

from lockstep_catalogue.metric import AGENT_LABELS, Label
from lockstep_catalogue.vocabulary import GOODPUT_STATES

CLUSTER, NODE = AGENT_LABELS
PROJECT = Label(name="project", help="who the job is accounted to")
QUEUE = Label(name="queue", help="queue or partition of the scheduler")
JOB_CLASS = Label(name="class", help="class or quality of service of the job")
JOB_ID = Label(name="job_id", help="one training job over all its attempts")
ATTEMPT = Label(name="attempt", help="number of restarts of the job, from 0")
RANK = Label(name="rank", help="global rank in the job")
LOCAL_RANK = Label(name="local_rank", help="rank on its node")
WORLD_SIZE = Label(name="world_size", help="number of ranks of the job")
GPU = Label(name="gpu", help="index of the GPU on its node, as NVML counts")
UUID = Label(name="uuid", help="UUID of the GPU")
MODEL = Label(name="model", help="product name of the GPU")
DEVICE = Label(name="device", help="network interface")
GPU_LABELS = (GPU, UUID)
ARCHITECTURE = Label(name="architecture", help="chip family of the GPU, such as hopper")
PCI_BUS_ID = Label(name="pci_bus_id", help="PCI address as the kernel writes it")
MINOR = Label(name="minor", help="number in the GPU's device file")
SERIAL = Label(name="serial", help="serial number on the board")
VBIOS = Label(name="vbios", help="version of the GPU's BIOS")
CUDA = Label(name="cuda", help="newest CUDA version that the driver serves")
COUNTED_BY = Label(
    name="counted_by",
    help="who counts the GPUs; expected is the agent's configuration",
    values=("nvml", "pci", "expected"),
)
GPU_STATE = Label(
    name="gpu_state",
    help="whether and how the driver answers for the GPU",
    values=("ok", "lost", "reset_required", "silent", "hung"),
)
MIG = Label(name="mig", help="instance of a split GPU: GPU instance, slash, compute instance")
MIG_UUID = Label(name="mig_uuid", help="UUID of an instance of a split GPU")
LIMIT = Label(
    name="limit",
    help="kind of limit on power",
    values=("enforced", "requested", "default", "min", "max"),
)
STATISTIC = Label(
    name="statistic", help="lowest, mean or highest over a window", values=("min", "mean", "max")
)
THROTTLE = Label(
    name="throttle",
    help="why clocks are held back",
    values=(
        "idle",
        "app_clocks",
        "sw_power_cap",
        "hw_slowdown",
        "sync_boost",
        "sw_thermal",
        "hw_thermal",
        "hw_power_brake",
        "display",
    ),
)
SENSOR = Label(name="sensor", help="location of the temperature sensor", values=("core", "memory"))
THRESHOLD = Label(
    name="threshold",
    help="action of the driver from this temperature on",
    values=("shutdown", "slowdown", "mem_max", "gpu_max"),
)
ECC = Label(name="ecc", help="whether the error was corrected", values=("corrected", "uncorrected"))
ECC_SCOPE = Label(
    name="ecc_scope",
    help="since the driver was loaded, or for the life of the GPU",
    values=("volatile", "aggregate"),
)
LOCATION = Label(
    name="location",
    help="kind of memory",
    values=("dram", "sram", "l1", "l2", "register_file", "texture", "cbu"),
)
AVAILABILITY = Label(
    name="availability",
    help="how many spare rows a bank has left",
    values=("max", "high", "partial", "low", "none"),
)
RETIRED_BY = Label(
    name="retired_by", help="errors that led to the retirement", values=("single_bit", "double_bit")
)
ACTION = Label(
    name="action",
    help="action that the driver demands",
    values=(
        "none",
        "gpu_reset",
        "node_reboot",
        "drain_p2p",
        "drain_and_reset",
        "recover_imex",
        "bus_reset",
        "system_reboot",
    ),
)
PIPE = Label(
    name="pipe", help="kind of tensor pipe", values=("any", "hmma", "imma", "dfma", "dmma")
)
LINK = Label(name="link", help="NVLink of the GPU, from 0")
LINK_STATE = Label(name="link_state", help="whether the link is up", values=("active", "inactive"))
LINK_ERROR = Label(
    name="link_error",
    help="kind of NVLink error",
    values=(
        "crc",
        "crc_flit",
        "crc_data",
        "ecc",
        "replay",
        "recovery",
        "recovery_failed",
        "malformed",
        "overrun",
        "receive",
        "receive_remote",
        "receive_general",
        "local_integrity",
        "discard",
        "effective",
        "symbol",
    ),
)
BER = Label(name="ber", help="kind of bit errors", values=("effective", "symbol", "raw"))
FABRIC_STATE = Label(
    name="fabric_state",
    help="progress in joining the NVLink fabric",
    values=("not_started", "in_progress", "completed", "failed"),
)
CLIQUE = Label(name="clique", help="partition of the NVLink fabric")
FABRIC = Label(name="fabric", help="UUID of the NVLink fabric")
CHECK = Label(
    name="check",
    help="check of the fabric",
    values=(
        "degraded_bandwidth",
        "route_recovery",
        "route_unhealthy",
        "access_timeout",
        "incorrect_configuration",
    ),
)
PCIE_ERROR = Label(
    name="pcie_error",
    help="kind of error on the PCIe link of a GPU",
    values=(
        "correctable",
        "nak_received",
        "receiver",
        "bad_tlp",
        "nak_sent",
        "bad_dllp",
        "non_fatal",
        "fatal",
        "unsupported_request",
        "lcrc",
    ),
)
VERDICT = Label(
    name="verdict", help="verdict now, from good to bad", values=("ok", "degraded", "failed")
)
VERSION = Label(name="version", help="version of the program or driver")

# Coordinates of a rank in the device mesh; empty where the axis is not used.
DP = Label(name="dp", help="coordinate on the data-parallel axis")
FSDP = Label(name="fsdp", help="coordinate on the sharding axis")
PP = Label(name="pp", help="coordinate on the pipeline axis: the stage")
TP = Label(name="tp", help="coordinate on the tensor-parallel axis")
CP = Label(name="cp", help="coordinate on the context-parallel axis")
EP = Label(name="ep", help="coordinate on the expert-parallel axis")
MESH = (DP, FSDP, PP, TP, CP, EP)

OWN_WORK_PHASES = ("data", "forward", "backward", "optimizer", "other")
STEP_PHASES = ("data", "forward", "backward", "sync", "optimizer", "checkpoint", "eval", "other")
PHASE = Label(name="phase", help="part of a step", values=STEP_PHASES)
STATE = Label(
    name="state",
    help="activity of the rank, seen from outside",
    values=("init", "training", "checkpoint", "eval", "restore", "done", "failed", "gone"),
)
OUTCOME = Label(
    name="outcome",
    help="how an attempt to write a checkpoint ended; invalid was written and read back as damaged",
    values=("ok", "failed", "invalid"),
)
KIND = Label(
    name="kind",
    help="kind of collective",
    values=("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"),
)
GOODPUT = Label(
    name="goodput",
    help="what the wall clock of a rank is spent on; the states exclude each other",
    values=GOODPUT_STATES,
)
RESTORE_OUTCOME = Label(
    name="restore",
    help="how a restore ended; fallback skipped a newer checkpoint that was invalid",
    values=("ok", "fallback", "failed"),
)
WRITING = Label(
    name="writing",
    help="part of writing a checkpoint: steps wait for blocking, persisting may overlap them",
    values=("blocking", "persisting"),
)
WHERE = Label(
    name="where",
    help="value that was NaN or infinite; parameters and their gradients are sampled",
    values=("loss", "gradient_norm", "parameters"),
)
ANOMALY = Label(name="anomaly", help="kind of anomaly of the loss", values=("spike", "divergence"))
MEMORY = Label(
    name="memory",
    help="device memory by torch's allocator, or resident memory of the process",
    values=("allocated", "reserved", "peak", "resident"),
)
TROUBLE = Label(
    name="trouble",
    help="problem around the monitor of a rank that did not stop training",
    values=("span_exception", "shape_change", "no_step", "page_deleted", "fork"),
)
CLOCK = Label(
    name="clock",
    help="clock of the rank's times: host or device; different ones are never compared",
)
DIRECTION = Label(name="direction", help="receive or transmit", values=("receive", "transmit"))
COLLECTOR = Label(name="collector", help="name of a collector of the agent")
WORKER = Label(name="worker", help="worker thread of the agent, for a slow collector or one GPU")
REASON = Label(
    name="reason",
    help="why a page could not be read",
    values=("version", "truncated", "identity", "checksum", "io"),
)
DOMAIN = Label(
    name="domain", help="clock domain of the GPU", values=("sm", "mem", "graphics", "video")
)

# Labels of ports, PCIe links and host resources: small closed sets, and names of devices.

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
    name="priority", help="priority of PFC, all is their sum", values=("all", *map(str, range(8)))
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
    name="link_end", help="the device itself, or the port above it", values=("device", "port_above")
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
NAMESPACE = Label(name="namespace", help="namespace of the pod")
POD = Label(name="pod", help="name of the pod")
CONTAINER = Label(name="container", help="name of the container in the pod")
