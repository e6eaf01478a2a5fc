"""Every label of jobs, GPUs and the agent, once: identities, and small closed sets of values."""

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
OF_GPU = (GPU, UUID)
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
SRAM_UNIT = Label(
    name="sram_unit",
    help="unit that holds the SRAM",
    values=("l2", "sm", "pcie", "mcu", "other"),
)
AVAILABILITY = Label(
    name="availability",
    help="how many spare rows a bank has left",
    values=("max", "high", "partial", "low", "none"),
)
RETIRED_BY = Label(
    name="retired_by",
    help="errors that led to the retirement",
    values=("single_bit", "double_bit"),
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
    name="verdict",
    help="verdict now, from good to bad",
    values=("ok", "degraded", "failed"),
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
STEP_PHASES = (
    "data",
    "forward",
    "backward",
    "sync",
    "optimizer",
    "checkpoint",
    "eval",
    "other",
)
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
    values=(
        "span_exception",
        "shape_change",
        "no_step",
        "page_deleted",
        "fork",
    ),
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
    name="domain",
    help="clock domain of the GPU",
    values=("sm", "mem", "graphics", "video"),
)
