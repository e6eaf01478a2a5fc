"""Every label, once: identities, and small closed sets of values."""

from lockstep_catalogue.metric import AGENT_LABELS, Label
from lockstep_catalogue.vocabulary import GOODPUT_STATES

# Declarations, one after the other.
# fmt: off

CLUSTER, NODE = AGENT_LABELS
PROJECT = Label("project", "who the job is accounted to")
QUEUE = Label("queue", "queue or partition of the scheduler")
JOB_CLASS = Label("class", "class or quality of service of the job")
JOB_ID = Label("job_id", "one training job over all its attempts")
ATTEMPT = Label("attempt", "number of restarts of the job, from 0")
RANK = Label("rank", "global rank in the job")
LOCAL_RANK = Label("local_rank", "rank on its node")
WORLD_SIZE = Label("world_size", "number of ranks of the job")
GPU = Label("gpu", "index of the GPU on its node, as NVML counts")
UUID = Label("uuid", "UUID of the GPU")
MODEL = Label("model", "product name of the GPU")
DEVICE = Label("device", "network interface")
GPU_LABELS = (GPU, UUID)
ARCHITECTURE = Label("architecture", "chip family of the GPU, such as hopper")
PCI_BUS_ID = Label("pci_bus_id", "PCI address as the kernel writes it")
MINOR = Label("minor", "number in the GPU's device file")
SERIAL = Label("serial", "serial number on the board")
VBIOS = Label("vbios", "version of the GPU's BIOS")
CUDA = Label("cuda", "newest CUDA version that the driver serves")
COUNTED_BY = Label("counted_by", "who counts the GPUs; expected is the agent's configuration",
    ("nvml", "pci", "expected"))
GPU_STATE = Label("gpu_state", "whether and how the driver answers for the GPU",
    ("ok", "lost", "reset_required", "silent", "hung"))
MIG = Label("mig", "instance of a split GPU: GPU instance, slash, compute instance")
MIG_UUID = Label("mig_uuid", "UUID of an instance of a split GPU")
LIMIT = Label("limit", "kind of limit on power", ("enforced", "requested", "default", "min", "max"))
STATISTIC = Label("statistic", "lowest, mean or highest over a window", ("min", "mean", "max"))
THROTTLE = Label("throttle", "why clocks are held back", ("idle", "app_clocks", "sw_power_cap",
    "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake", "display"))
SENSOR = Label("sensor", "location of the temperature sensor", ("core", "memory"))
THRESHOLD = Label("threshold", "action of the driver from this temperature on",
    ("shutdown", "slowdown", "mem_max", "gpu_max"))
ECC = Label("ecc", "whether the error was corrected", ("corrected", "uncorrected"))
ECC_SCOPE = Label("ecc_scope", "since the driver was loaded, or for the life of the GPU",
    ("volatile", "aggregate"))
LOCATION = Label("location", "kind of memory",
    ("dram", "sram", "l1", "l2", "register_file", "texture", "cbu"))
AVAILABILITY = Label("availability", "how many spare rows a bank has left",
    ("max", "high", "partial", "low", "none"))
RETIRED_BY = Label("retired_by", "errors that led to the retirement", ("single_bit", "double_bit"))
ACTION = Label("action", "action that the driver demands", ("none", "gpu_reset", "node_reboot",
    "drain_p2p", "drain_and_reset", "recover_imex", "bus_reset", "system_reboot"))
PIPE = Label("pipe", "kind of tensor pipe", ("any", "hmma", "imma", "dfma", "dmma"))
LINK = Label("link", "NVLink of the GPU, from 0")
LINK_STATE = Label("link_state", "whether the link is up", ("active", "inactive"))
LINK_ERROR = Label("link_error", "kind of NVLink error", ("crc", "crc_flit", "crc_data", "ecc",
    "replay", "recovery", "recovery_failed", "malformed", "overrun", "receive", "receive_remote",
    "receive_general", "local_integrity", "discard", "effective", "symbol"))
BER = Label("ber", "kind of bit errors", ("effective", "symbol", "raw"))
FABRIC_STATE = Label("fabric_state", "progress in joining the NVLink fabric",
    ("not_started", "in_progress", "completed", "failed"))
CLIQUE = Label("clique", "partition of the NVLink fabric")
FABRIC = Label("fabric", "UUID of the NVLink fabric")
CHECK = Label("check", "check of the fabric", ("degraded_bandwidth", "route_recovery",
    "route_unhealthy", "access_timeout", "incorrect_configuration"))
PCIE_ERROR = Label("pcie_error", "kind of error on the PCIe link of a GPU", ("correctable",
    "nak_received", "receiver", "bad_tlp", "nak_sent", "bad_dllp", "non_fatal", "fatal",
    "unsupported_request", "lcrc"))
VERDICT = Label("verdict", "verdict now, from good to bad", ("ok", "degraded", "failed"))
VERSION = Label("version", "version of the program or driver")

# Coordinates of a rank in the device mesh; empty where the axis is not used.
DP = Label("dp", "coordinate on the data-parallel axis")
FSDP = Label("fsdp", "coordinate on the sharding axis")
PP = Label("pp", "coordinate on the pipeline axis: the stage")
TP = Label("tp", "coordinate on the tensor-parallel axis")
CP = Label("cp", "coordinate on the context-parallel axis")
EP = Label("ep", "coordinate on the expert-parallel axis")
MESH = (DP, FSDP, PP, TP, CP, EP)

OWN_WORK_PHASES = ("data", "forward", "backward", "optimizer", "other")
STEP_PHASES = ("data", "forward", "backward", "sync", "optimizer", "checkpoint", "eval", "other")
PHASE = Label("phase", "part of a step", STEP_PHASES)
STATE = Label("state", "activity of the rank, seen from outside",
    ("init", "training", "checkpoint", "eval", "restore", "done", "failed", "gone"))
OUTCOME = Label("outcome",
    "how an attempt to write a checkpoint ended; invalid was written and read back as damaged",
    ("ok", "failed", "invalid"))
KIND = Label("kind", "kind of collective",
    ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"))
GOODPUT = Label("goodput",
    "what the wall clock of a rank is spent on; the states exclude each other", GOODPUT_STATES)
RESTORE_OUTCOME = Label("restore",
    "how a restore ended; fallback skipped a newer checkpoint that was invalid",
    ("ok", "fallback", "failed"))
WRITING = Label("writing",
    "part of writing a checkpoint: steps wait for blocking, persisting may overlap them",
    ("blocking", "persisting"))
WHERE = Label("where", "value that was NaN or infinite; parameters and their gradients are sampled",
    ("loss", "gradient_norm", "parameters"))
ANOMALY = Label("anomaly", "kind of anomaly of the loss", ("spike", "divergence"))
MEMORY = Label("memory", "device memory by torch's allocator, or resident memory of the process",
    ("allocated", "reserved", "peak", "resident"))
TROUBLE = Label("trouble", "problem around the monitor of a rank that did not stop training",
    ("span_exception", "shape_change", "no_step", "page_deleted", "fork"))
CLOCK = Label("clock",
    "clock of the rank's times: host or device; different ones are never compared")
DIRECTION = Label("direction", "receive or transmit", ("receive", "transmit"))
COLLECTOR = Label("collector", "name of a collector of the agent")
WORKER = Label("worker", "worker thread of the agent, for a slow collector or one GPU")
REASON = Label("reason", "why a page could not be read",
    ("version", "truncated", "identity", "checksum", "io"))
DOMAIN = Label("domain", "clock domain of the GPU", ("sm", "mem", "graphics", "video"))

# Labels of ports, PCIe links and host resources: small closed sets, and names of devices.

PORT = Label("port", "number of the port on its adapter, from 1")
LINK_LAYER = Label("link_layer", "link layer of the port; unspecified on EFA",
    ("infiniband", "ethernet", "unspecified"))
BOARD = Label("board", "board id of the adapter, the same for all of its kind")
FIRMWARE = Label("firmware", "firmware version of the adapter")
ADAPTER = Label("adapter", "chip of the adapter, as its driver calls it")
INTERFACE = Label("interface", "network interface of the port, where it has one")
PORT_STATE = Label("port_state", "logical state of the port",
    ("none", "down", "init", "armed", "active", "active_defer"))
PHYSICAL_STATE = Label("physical_state", "physical state of the port", ("none", "sleep", "polling",
    "disabled", "training", "link_up", "link_error_recovery", "phy_test"))
CAST = Label("cast", "kind of packets counted", ("all", "unicast", "multicast"))
PORT_ERROR = Label("port_error", "kind of error that the port counts", ("symbol",
    "link_error_recovery", "link_downed", "receive", "receive_remote_physical",
    "receive_switch_relay", "receive_constraint", "receive_discards", "transmit_constraint",
    "transmit_discards", "local_link_integrity", "excessive_buffer_overrun", "vl15_dropped"))
RETRY = Label("retry", "which budget of retries was exhausted", ("transport", "rnr"))
CONGESTION = Label("congestion",
    "ECN-marked packets, and congestion notifications (CNP) about them",
    ("ecn_marked", "cnp_sent", "cnp_handled", "cnp_ignored"))
PACKET_LOSS = Label("packet_loss", "sign of lost, late or repeated packets", ("out_of_sequence",
    "sequence_error", "implied_nak", "ack_timeout", "duplicate_request", "receiver_not_ready",
    "out_of_buffer", "dropped", "retransmitted", "retransmit_timeout", "adaptive_retransmission",
    "adaptive_retransmission_timeout", "slow_restart", "peer_impaired", "peer_unresponsive"))
QP_ERROR = Label("qp_error", "how work requests failed, for the requester or the responder",
    ("requester_completion", "requester_flush", "requester_remote_access",
    "requester_remote_invalid", "responder_completion", "responder_flush", "responder_local_length",
    "responder_remote_access"))
TRANSFER = Label("transfer", "kind of RDMA transfer", ("transmit", "receive", "send",
    "receive_work", "read", "read_response", "write", "write_receive"))
PRIORITY = Label("priority", "priority of PFC, all is their sum", ("all", *map(str, range(8))))
PHY_ERROR = Label("phy_error", "kind of error of the physical layer",
    ("symbol", "corrected_bits", "pcs_symbol", "crc", "local_fault", "remote_fault"))
STORM = Label("storm", "severity of a storm of pauses", ("warning", "error"))
DISCARD = Label("discard", "where the adapter dropped packets", ("receive_port", "transmit_port",
    "receive_no_buffer", "receive_driver", "transmit_driver", "bandwidth_in_allowance",
    "bandwidth_out_allowance", "packet_allowance", "connection_allowance"))
PORT_REASON = Label("port_reason", "reason for the verdict on the port",
    ("none", "down", "flapping", "retries", "rate", "lanes", "errors", "blind", "pcie"))
ENDPOINT = Label("endpoint", "device at the end of the PCIe link", ("gpu", "nic"))
PORT_ABOVE = Label("port_above", "PCI address of the port at the link's other end")
NUMA_NODE = Label("numa_node", "NUMA node of the device")
LINK_END = Label("link_end", "the device itself, or the port above it", ("device", "port_above"))
SEVERITY = Label("severity", "severity of a PCIe error", ("correctable", "nonfatal", "fatal"))
AER_ERROR = Label("aer_error", "kind of PCIe error, as the kernel abbreviates it",
    ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF",
    "Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP",
    "ECRC", "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr",
    "PoisonTLPBlocked"))
DISTANCE = Label("distance",
    "what lies between GPU and adapter: one bridge, bridges, host bridge, NUMA node, sockets",
    ("pix", "pxb", "phb", "node", "sys"))
RAIL = Label("rail", "index of the adapter among those next to GPUs, by PCI address")
RESOURCE = Label("resource", "resource that tasks wait for", ("cpu", "memory", "io"))
PRESSURE = Label("pressure", "whether some or all tasks waited", ("some", "full"))
MEMORY_EVENT = Label("memory_event", "what the kernel did at a limit on memory",
    ("high", "max", "oom", "oom_kill"))
VOLUME = Label("volume", "block device, or major:minor of a network file system")
FILESYSTEM = Label("filesystem", "type of the file system")
SOURCE = Label("source", "device or export that is mounted")
MOUNT_POINT = Label("mount_point", "mount point, the shortest of several")
OPERATION = Label("operation", "kind of request to storage",
    ("read", "write", "commit", "metadata"))
NAMESPACE = Label("namespace", "namespace of the pod")
POD = Label("pod", "name of the pod")
CONTAINER = Label("container", "name of the container in the pod")
