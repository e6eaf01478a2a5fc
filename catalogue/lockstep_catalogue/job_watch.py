"""Metrics that the agent derives from a job's pages: hangs, bus bandwidth, device time.

They need no special launcher. All ranks of a node are summed.
"""

from lockstep_catalogue.labels import CLUSTER, JOB_ID, KIND, NODE, PHASE, RANK, STEP_PHASES
from lockstep_catalogue.metric import Label, Metric

_OF_NODE = (CLUSTER, JOB_ID, NODE)
PHASE_AT_HANG = Label(
    name="hang_phase",
    help="phase that the rank is in; gone when its process has ended",
    values=("init", *STEP_PHASES, "restore", "gone"),
)

ATTEMPT_NUMBER = Metric(
    name="lockstep_train_attempt",
    labels=_OF_NODE,
    help="Restarts of the job before its newest attempt on the node, from 0.",
    source="rank page",
)
WORLD_RANKS = Metric(
    name="lockstep_train_world_ranks",
    labels=_OF_NODE,
    help="Ranks of the entire job, as the node's ranks of the newest attempt report it.",
    source="rank page",
)
HUNG_RANKS = Metric(
    name="lockstep_train_hung_ranks",
    labels=_OF_NODE,
    help="Running ranks of the node without progress for 20 median steps and the time-out.",
    source="rank page and /proc",
)
HANG_FIRST = Metric(
    name="lockstep_train_hang_first_seconds",
    labels=(*_OF_NODE, RANK, PHASE_AT_HANG),
    help="Seconds without progress of the hung rank of the node that stopped first.",
    source="rank page and /proc",
)
HANG_MISSING = Metric(
    name="lockstep_train_hang_missing_info",
    labels=(*_OF_NODE, RANK, PHASE_AT_HANG),
    help="Ranks of the node that the others wait for in a hang, always 1; at most eight.",
    source="rank page and /proc",
)
BUS_BYTES = Metric(
    name="lockstep_train_collective_bus_bytes_total",
    labels=(*_OF_NODE, KIND),
    help="Bytes of collectives on the bus, by the factors of nccl-tests; sum over the node's "
    "ranks.",
    source="rank page",
)
BUS_RATE = Metric(
    name="lockstep_train_collective_bus_bytes_per_second",
    labels=(*_OF_NODE, KIND),
    help="Bus bytes per exposed second of the rank that waited least in the last poll.",
    source="rank page, between two polls",
)
HOST_BOUND_SECONDS = Metric(
    name="lockstep_train_host_bound_seconds_total",
    labels=(*_OF_NODE, PHASE),
    help="Seconds in which GPU streams were idle because the host was late, by the host's phase.",
    source="rank page",
)
DEVICE_STEPS = Metric(
    name="lockstep_train_device_steps_total",
    labels=_OF_NODE,
    help="Steps timed by the GPU's stream; sum over the node's ranks.",
    source="rank page",
)
LAUNCH_BOUND_STEPS = Metric(
    name="lockstep_train_launch_bound_steps_total",
    labels=_OF_NODE,
    help="Device-timed steps in which the stream waited for kernel launches for 10 % or more; "
    "sum over the node's ranks.",
    source="rank page",
)
