"""Series that recording rules compute of jobs: steps, lateness, goodput.

The PromQL is in ``lockstep_alerts.rules``. A group is what does the same work and ends together:
the ranks of one pipeline stage, or all ranks of a job without stages.
"""

from lockstep_catalogue.labels import CLUSTER, GOODPUT, JOB_ID, NODE, PHASE, PP, RANK
from lockstep_catalogue.metric import Recorded

_JOB = (CLUSTER, JOB_ID)
_GROUP = (*_JOB, PP)
_OF_NODE = (*_JOB, NODE)
_PLACED_RANK = (*_JOB, NODE, PP, RANK)

PLACEMENT = Recorded(
    name="cluster_job_id_node_pp_rank:lockstep_train_rank_info:newest",
    labels=_PLACED_RANK,
    help="Where a rank runs and which pipeline stage it belongs to, always 1; one series a rank.",
)
PHASE_PER_STEP = Recorded(
    name="cluster_job_id_node_pp_rank_phase:lockstep_train_phase_seconds:per_step",
    labels=(*_PLACED_RANK, PHASE),
    help="Mean seconds per step by rank and phase, over four scrapes, or 5 min for long steps.",
)
STEP_MEAN = Recorded(
    name="cluster_job_id:lockstep_train_step_seconds:mean",
    labels=_JOB,
    help="Mean seconds per step of the job.",
)
LATENESS = Recorded(
    name="cluster_job_id_node_pp_rank:lockstep_train_lateness_seconds:per_step",
    labels=_PLACED_RANK,
    help="Seconds per step that the rank waits less than the rank of its group that waits most.",
)
LATENESS_RATIO = Recorded(
    name="cluster_job_id_node_pp_rank:lockstep_train_lateness:ratio",
    labels=_PLACED_RANK,
    help="Lateness beyond the median of its group as a share of the step: its cost to all ranks.",
)
NODE_LATENESS_RATIO = Recorded(
    name="cluster_job_id_node:lockstep_train_lateness:min_ratio",
    labels=_OF_NODE,
    help="Lateness ratio of the least late rank of a node that has several ranks of the job.",
)
EXCESS = Recorded(
    name="cluster_job_id_node_pp_rank_phase:lockstep_train_excess_seconds:per_step",
    labels=(*_PLACED_RANK, PHASE),
    help="Own work of the rank beyond the median of its group, by phase, per step.",
)
STANDING = Recorded(
    name="cluster_job_id:lockstep_train_standing_seconds:max",
    labels=_JOB,
    help="Time since the last progress of the rank that stands longest, where that is longer than "
    "a scrape and three mean steps: who is late then says nothing about who is slow.",
)
UNOBSERVED = Recorded(
    name="cluster_job_id_phase:lockstep_train_unobserved:ratio",
    labels=(*_JOB, PHASE),
    help="Share of the step in the phase for which a slow rank of the job would not show: sync "
    "where no rank waits, other where a quarter of the step or more is in no marked phase.",
)
STAGE_OWN = Recorded(
    name="cluster_job_id_pp_phase:lockstep_train_stage_own_seconds:per_step",
    labels=(*_GROUP, PHASE),
    help="Own work of the mean rank of a pipeline stage by phase, per step.",
)
STAGE_EXCESS = Recorded(
    name="cluster_job_id_pp_phase:lockstep_train_stage_excess_seconds:per_step",
    labels=(*_GROUP, PHASE),
    help="Own work of a stage's mean rank beyond the median of the stages, by phase, per step.",
)
STAGE_EXCESS_RATIO = Recorded(
    name="cluster_job_id_pp:lockstep_train_stage_excess:ratio",
    labels=_GROUP,
    help="Own work of a stage beyond the median of the stages as a share of the step.",
)
TOKENS_RATE = Recorded(
    name="cluster_job_id:lockstep_train_tokens:rate",
    labels=_JOB,
    help="Tokens per second of the job.",
)
MFU = Recorded(
    name="cluster_job_id:lockstep_train_mfu:ratio",
    labels=_JOB,
    help="Model FLOPs utilisation of the job: FLOPs of its tokens over the peak of its devices.",
)
GOODPUT_RATIO = Recorded(
    name="cluster_job_id:lockstep_train_goodput:ratio",
    labels=_JOB,
    help="Share of the ranks' wall clock spent in forward, backward and optimizer.",
)
STRAGGLER_WAIT = Recorded(
    name="cluster_job_id:lockstep_train_straggler_wait_seconds:rate",
    labels=_JOB,
    help="Seconds a second, summed over the ranks, in which ranks wait for the latest of their "
    "group beyond what its median rank makes them wait.",
)
GOODPUT_BY_STATE = Recorded(
    name="cluster_job_id_goodput:lockstep_train_goodput_seconds:rate",
    labels=(*_JOB, GOODPUT),
    help="Seconds a second, summed over the ranks, by goodput state; waiting for stragglers, which "
    "no page can tell, is taken out of communication.",
)
