"""PromQL that several conditions share: ranks of a job by state, and where a rank runs."""

from lockstep_catalogue import training
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE, RANK, STATE
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import by, names, one_of, select

JOB_LABELS = (CLUSTER, JOB_ID)
RANK_LABELS = (*JOB_LABELS, RANK)
ON_JOB = f"on ({names(*JOB_LABELS)})"
ON_RANK = f"on ({names(*RANK_LABELS)})"


def num_ranks(*states: str) -> str:
    """Ranks of each job that are in one of the states."""
    return by("sum", select(training.RANKS, one_of(STATE, *states)), *JOB_LABELS)


def in_training() -> str:
    """Filter for the right side of ``and``: jobs of which a rank trains."""
    return f"{ON_JOB} ({num_ranks('training')} > 0)"


def newest_of_rank(labels: tuple[Label, ...], newest: str) -> str:
    """One series a rank with value 1, for a ``group_left`` join.

    ``topk`` keeps one of several series of a rank, and ``group`` makes ties harmless: a join that
    meets two series on its right side fails the whole rule.
    """
    return by("group", f"topk by ({names(*RANK_LABELS)}) (1, {newest})", *labels)


def node_of_rank() -> str:
    """The node of each rank, as one series a rank."""
    # Two agents report a rank that has moved until its job leaves: the newer progress counts.
    progress = (
        f"on ({names(*RANK_LABELS)}, instance) group_left () {select(training.LAST_PROGRESS)}"
    )
    return newest_of_rank((*RANK_LABELS, NODE), f"{select(training.RANK_INFO)} * {progress}")
