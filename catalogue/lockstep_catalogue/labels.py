"""Every label, once: identity labels, and small closed sets with all their values."""

from lockstep_catalogue.metric import Label

CLUSTER = Label(name="cluster", help="name of the cluster")
PROJECT = Label(name="project", help="who the job is accounted to")
JOB_ID = Label(name="job_id", help="one training job over all its attempts")
ATTEMPT = Label(name="attempt", help="how often the job has been restarted, from 0")
NODE = Label(name="node", help="name of the machine")
RANK = Label(name="rank", help="global rank in the job")
LOCAL_RANK = Label(name="local_rank", help="rank on its node")
WORLD_SIZE = Label(name="world_size", help="number of ranks of the job")
GPU = Label(name="gpu", help="index of the GPU on its node, as NVML counts")
UUID = Label(name="uuid", help="UUID of the GPU")
MODEL = Label(name="model", help="product name of the GPU")
DEVICE = Label(name="device", help="network interface")
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
PHASE = Label(name="phase", help="part of a step that the rank spends time in", values=STEP_PHASES)
STATE = Label(
    name="state",
    help="what the rank is doing, seen from outside",
    values=("init", "training", "checkpoint", "eval", "restore", "done", "failed", "gone"),
)
OUTCOME = Label(
    name="outcome", help="how an attempt to write a checkpoint ended", values=("ok", "failed")
)
KIND = Label(
    name="kind",
    help="kind of collective",
    values=("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"),
)
GOODPUT = Label(
    name="goodput",
    help="what the wall clock of a rank goes into; the parts exclude each other",
    values=(
        "productive",
        "init",
        "data_wait",
        "comm_wait",
        "checkpoint",
        "eval",
        "restore",
        "rework",
        "hang",
        "unknown",
    ),
)
RESTORE_OUTCOME = Label(
    name="restore",
    help="how a restore ended; fallback passed over a newer checkpoint that was not valid",
    values=("ok", "fallback", "failed"),
)
WRITING = Label(
    name="writing",
    help="part of writing a checkpoint: blocking steps wait, persisting may go on beside them",
    values=("blocking", "persisting"),
)
WHERE = Label(
    name="where",
    help="where a value was NaN or infinite; parameters and their gradients are sampled",
    values=("loss", "gradient_norm", "parameters"),
)
ANOMALY = Label(
    name="anomaly", help="what the loss does that it should not", values=("spike", "divergence")
)
MEMORY = Label(
    name="memory",
    help="device memory as torch tells, or resident memory of the process",
    values=("allocated", "reserved", "peak", "resident"),
)
TROUBLE = Label(
    name="trouble",
    help="what went wrong around the monitor of a rank, while training went on",
    values=(
        "span_exception",
        "shape_change",
        "no_step",
        "page_deleted",
        "fork",
    ),
)
DIRECTION = Label(name="direction", help="receive or transmit", values=("receive", "transmit"))
COLLECTOR = Label(name="collector", help="name of a collector of the agent")
REASON = Label(
    name="reason",
    help="why a page could not be read",
    values=("version", "truncated", "identity", "checksum", "io"),
)
DOMAIN = Label(name="domain", help="clock domain of the GPU", values=("sm", "mem"))
