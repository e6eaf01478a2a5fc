"""What single ranks of a job stand out by, and what ranks of other nodes are compared with.

A rank has a series here only while it stands out: at most one a node and quantity, or eight ranks
that ran out of memory.
"""

from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE, RANK
from lockstep_catalogue.metric import Label, Metric

_OF_NODE = (CLUSTER, JOB_ID, NODE)
PART_OF_MODEL = Label(
    name="part_of_model",
    help="coordinates, beyond dp, of the ranks that hold the same part; all without any",
)
LOAD = Label(
    name="load",
    help="per step: samples, tokens, tokens of the longest sequence, squares of all lengths",
    values=("samples", "tokens", "longest_sequence", "squares"),
)


def _metric(name: str, text: str, *labels: Label) -> Metric:
    return Metric(name=name, labels=(*_OF_NODE, *labels), help=text, source="rank page")


HEAVIEST_LOAD = _metric(
    "lockstep_train_heaviest_load",
    "Load of the node's rank that has most of it, mean over its newest 64 steps.",
    RANK,
    LOAD,
)
MEDIAN_LOAD = _metric(
    "lockstep_train_median_load",
    "Median load of the node's ranks, each the mean over its newest 64 steps.",
    LOAD,
)
OUT_OF_MEMORY_RANK = Metric(
    name="lockstep_train_rank_out_of_memory_total",
    labels=(*_OF_NODE, RANK),
    help="Allocations that failed on a rank that had some; at most eight ranks of a node.",
    source="rank page",
)
FINGERPRINT = _metric(
    "lockstep_train_fingerprint",
    "Fingerprint of parameters and gradients of a part of the model; replicas have the same.",
    PART_OF_MODEL,
)
FINGERPRINT_STEP = _metric(
    "lockstep_train_fingerprint_step",
    "Step of that fingerprint; only fingerprints of one step can be compared.",
    PART_OF_MODEL,
)
