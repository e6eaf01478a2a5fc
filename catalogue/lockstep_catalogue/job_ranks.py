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
    "Mean load per step of the node's heaviest rank, over its newest 64 steps.",
    RANK,
    LOAD,
)
MEDIAN_LOAD = _metric(
    "lockstep_train_median_load",
    "Median over the node's ranks of the mean load per step, over the newest 64 steps.",
    LOAD,
)
OUT_OF_MEMORY_RANK = Metric(
    name="lockstep_train_rank_out_of_memory_total",
    labels=(*_OF_NODE, RANK),
    help="Failed allocations per rank, of at most eight ranks of the node that had some.",
    source="rank page",
)
FINGERPRINT = _metric(
    "lockstep_train_fingerprint",
    "Fingerprint of a part's parameters and gradients on the node; equal on all replicas.",
    PART_OF_MODEL,
)
FINGERPRINT_STEP = _metric(
    "lockstep_train_fingerprint_step",
    "Step at which the node took the fingerprint; only equal steps can be compared.",
    PART_OF_MODEL,
)
