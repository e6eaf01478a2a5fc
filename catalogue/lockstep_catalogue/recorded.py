"""Series that recording rules compute: of jobs, of slices and of objectives.

The rule files take them in this order; the PromQL is in ``lockstep_alerts.rules``.
"""

from lockstep_catalogue import labels
from lockstep_catalogue.foreign import ALERT_CAUSE as CAUSE
from lockstep_catalogue.ledger import JOB_CLASS, SLO, SLO_WINDOWS, WINDOW
from lockstep_catalogue.metric import Label, Recorded

# Series that recording rules compute of jobs: steps, lateness, goodput. A group is what does the
# same work and ends together: the ranks of one pipeline stage, or all ranks of a job without
# stages.

_JOB = (labels.CLUSTER, labels.JOB_ID)
_GROUP = (*_JOB, labels.PP)
_NODE_LABELS = (*_JOB, labels.NODE)
_PLACED_RANK = (*_JOB, labels.NODE, labels.PP, labels.RANK)

JOB_GPUS = Recorded(
    name="cluster_job_id_project_queue_class:lockstep_train_job:gpus",
    labels=(*_JOB, labels.PROJECT, labels.QUEUE, labels.JOB_CLASS),
    help="Ranks of the job, by project, queue and class; kept 15 min after its last sample.",
)
JOB_SIZE = Recorded(
    name="cluster_job_id:lockstep_train_job:gpus",
    labels=_JOB,
    help="Ranks of the job; of one that says nothing of itself those that its agents see.",
)
JOB_STEP = Recorded(
    name="cluster_job_id:lockstep_train_step:max", labels=_JOB, help="Newest step of the job."
)
JOB_QUIET = Recorded(
    name="cluster_job_id:lockstep_train_job:quiet",
    labels=_JOB,
    help="Jobs that wake nobody: 1 below the size of a page, 2 of a class that never pages.",
)
PLACEMENT = Recorded(
    name="cluster_job_id_node_pp_rank:lockstep_train_rank_info:newest",
    labels=_PLACED_RANK,
    help="Where a rank runs and which pipeline stage it belongs to, always 1; one series a rank.",
)
LONG_PHASE_PER_STEP = Recorded(
    name="cluster_job_id_rank_phase:lockstep_train_phase_seconds:per_long_step",
    labels=(*_JOB, labels.RANK, labels.PHASE),
    help="Mean seconds per step by rank and phase over 5 or 20 min, of steps of eight seconds on.",
    every_seconds=60,
)
PHASE_PER_STEP = Recorded(
    name="cluster_job_id_node_pp_rank_phase:lockstep_train_phase_seconds:per_step",
    labels=(*_PLACED_RANK, labels.PHASE),
    help="Mean seconds per step by rank and phase, over four scrapes; 5 or 20 min for long steps.",
)
STEP_MEAN = Recorded(
    name="cluster_job_id:lockstep_train_step_seconds:mean",
    labels=_JOB,
    help="Mean seconds per step of the job.",
)
LATENESS = Recorded(
    name="cluster_job_id_node_pp_rank:lockstep_train_lateness_seconds:per_step",
    labels=_PLACED_RANK,
    help="Seconds per step that the rank waits less than the rank of its group that waits most; "
    "absent where ranks exchange parameters independently of each other.",
)
LATENESS_RATIO = Recorded(
    name="cluster_job_id_node_pp_rank:lockstep_train_lateness:ratio",
    labels=_PLACED_RANK,
    help="Lateness beyond the median of its group as a share of the step: its cost to all ranks.",
)
NODE_LATENESS_RATIO = Recorded(
    name="cluster_job_id_node:lockstep_train_lateness:min_ratio",
    labels=_NODE_LABELS,
    help="Lateness ratio of the least late rank of a node that has several ranks of the job.",
)
EXCESS = Recorded(
    name="cluster_job_id_node_pp_rank_phase:lockstep_train_excess_seconds:per_step",
    labels=(*_PLACED_RANK, labels.PHASE),
    help="Own work of a late rank, or of the latest of its job, beyond the median of its group, by "
    "phase, per step.",
)
PROGRESS_AGE = Recorded(
    name="cluster_job_id:lockstep_train_progress_age_seconds:median",
    labels=_JOB,
    help="Time since the last progress of the median rank by its node's clock.",
)
STANDING = Recorded(
    name="cluster_job_id:lockstep_train_standing_seconds:max",
    labels=_JOB,
    help="Time since the last progress of the median rank by its node's clock, where it is longer "
    "than a scrape and three mean steps: who is late then says nothing about who is slow.",
)
NET_ATTEMPT = Recorded(
    name="cluster_job_id:lockstep_train_attempt:net",
    labels=_JOB,
    help="Newest attempt of a job that came further than all before it; later ones only repeat.",
)
UNOBSERVED = Recorded(
    name="cluster_job_id_phase:lockstep_train_unobserved:ratio",
    labels=(*_JOB, labels.PHASE),
    help="Share of the step in the phase for which a slow rank of the job would not show: sync "
    "where no rank waits, other where a quarter of the step or more is in no marked phase.",
)
STAGE_OWN = Recorded(
    name="cluster_job_id_pp_phase:lockstep_train_stage_own_seconds:per_step",
    labels=(*_GROUP, labels.PHASE),
    help="Own work of the mean rank of a pipeline stage by phase, per step.",
)
STAGE_EXCESS = Recorded(
    name="cluster_job_id_pp_phase:lockstep_train_stage_excess_seconds:per_step",
    labels=(*_GROUP, labels.PHASE),
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
STRAGGLER_WAIT = Recorded(
    name="cluster_job_id:lockstep_train_straggler_wait_seconds:rate",
    labels=_JOB,
    help="Seconds a second, summed over the ranks, in which ranks wait for the latest of their "
    "group beyond what its median rank makes them wait.",
)
GOODPUT_SPENT = Recorded(
    name="cluster_job_id_goodput:lockstep_train_goodput_seconds:spent",
    labels=(*_JOB, labels.GOODPUT),
    help="Seconds a second, summed over the ranks, by goodput state as the pages tell it.",
)
GOODPUT_BY_STATE = Recorded(
    name="cluster_job_id_goodput:lockstep_train_goodput_seconds:rate",
    labels=(*_JOB, labels.GOODPUT),
    help="Seconds a second, summed over the ranks, by goodput state; waiting for stragglers, which "
    "no page can tell, is taken out of communication.",
)
PRODUCTIVE = Recorded(
    name="cluster_job_id:lockstep_train_goodput_seconds:productive_ratio",
    labels=_JOB,
    help="Share of the time of the ranks of a job that was productive in five minutes.",
)
LATE_PART = Recorded(
    name="cluster_cause_job_id_node_phase_pp_rank:lockstep_train_late_part:ratio",
    labels=(labels.CLUSTER, CAUSE, *_JOB[1:], labels.NODE, labels.PHASE, labels.PP, labels.RANK),
    help="Share of the step that a rank, a whole node or a slowed stage, by its cause, costs the "
    "others, with the phase in which most of it is.",
)
CARRIED = Recorded(
    name="cluster_job_id_node:lockstep_train_ranks:carried",
    labels=_NODE_LABELS,
    help="When a node carried ranks of a job: those that it had when it was last seen, an hour ago "
    "at most.",
)
GONE = Recorded(
    name="cluster_job_id_node:lockstep_agent_info:gone",
    labels=_NODE_LABELS,
    help="Nodes that carried ranks of a job when they were last seen, an hour ago at most, and are "
    "gone now: silent while the job stands or is not seen, or not ready by Kubernetes.",
)
JOB_LOSS = Recorded(
    name="cluster_job_id:lockstep_train_job_loss:gpus",
    labels=_JOB,
    help="GPUs of a job whose time is lost now: all of one that stands or is gone, else the share "
    "that a late rank costs, or that it is slower than in its best hour; 0 of one that does well.",
)
HIT = Recorded(
    name="cluster_cause_job_id_node:lockstep_train_ranks:hit",
    labels=(labels.CLUSTER, CAUSE, labels.JOB_ID, labels.NODE),
    help="Nodes of jobs on which a cause stands that several nodes may share.",
)
SHARED_LOSS = Recorded(
    name="cluster_cause_job_id:lockstep_train_shared_loss:gpus",
    labels=(labels.CLUSTER, CAUSE, labels.JOB_ID),
    help="GPUs whose time a cause that several nodes share takes from a job.",
)
CLUSTER_LOSS = Recorded(
    name="cluster_cause_job_id:lockstep_train_job_loss:gpus",
    labels=(labels.CLUSTER, CAUSE, labels.JOB_ID),
    help="GPUs whose time a cause that several jobs share takes from a job; the sum over the jobs "
    "is above the limit of a page.",
)

# Series that recording rules compute of slices: was a job as good as it had been itself? A slice is
# the five minutes before an evaluation; a job is compared with its own best hour, never with
# another job.

_SLICE_LABELS = (*_JOB, SLO)

JOB_PHASES = Recorded(
    name="cluster_job_id_phase:lockstep_train_phase_seconds:rate5m",
    labels=(*_JOB, labels.PHASE),
    help="Seconds a second that the ranks of a job spend in a phase together, over five minutes.",
)
SLICE_VALUE = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:value5m",
    labels=_SLICE_LABELS,
    help="What an objective measures of a job in the last five minutes: tokens a second of "
    "stepping, seconds a step, share of the step in sync, bytes a second on the bus; of cost "
    "GPU-seconds a token over an hour.",
)
SLICE_SUSTAINED = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:median1h",
    labels=_SLICE_LABELS,
    help="Median of a job's slices of the last hour, where half an hour of them exists.",
)
SLICE_CONFIGURATION = Recorded(
    name="cluster_job_id:lockstep_train_configuration:tokens",
    labels=_JOB,
    help="Tokens a step and rank times the ranks of the job: another value begins a new baseline.",
)
SLICE_BASELINE = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:best1d",
    labels=_SLICE_LABELS,
    help="A job's best hour of the last day, with which its slices are compared.",
)
SLICE_RATIO = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:ratio",
    labels=_SLICE_LABELS,
    help="The last five minutes of a job over its best hour of the last day: 0.5 is half as good.",
)
LAST_DURABLE = Recorded(
    name="cluster_job_id:lockstep_train_last_durable_checkpoint_timestamp_seconds:max",
    labels=_JOB,
    help="Wall clock at which the newest durable checkpoint of a job was complete.",
)
CHECKPOINT_INTERVAL = Recorded(
    name="cluster_job_id:lockstep_train_checkpoint_interval_seconds:mean1d",
    labels=_JOB,
    help="Mean time between the durable checkpoints of a job in the last day; absent before two.",
)
WORK_AT_RISK = Recorded(
    name="cluster_job_id:lockstep_train_at_risk_gpu_seconds:sum",
    labels=_JOB,
    help="Productive GPU-seconds of a job since its newest durable checkpoint, or since its "
    "attempt began: work that is lost if it ends now.",
)
USUAL_AT_RISK = Recorded(
    name="cluster_job_id:lockstep_train_usual_at_risk_gpu_seconds:max",
    labels=_JOB,
    help="The most productive GPU-seconds that a durable checkpoint of this attempt has saved; "
    "below zero while only one has, whose interval may have been cut short.",
)
SLICE_LIMIT = Recorded(
    name="slo:lockstep_train_slice:min_ratio",
    labels=(SLO,),
    help="Least ratio of a slice to the best hour of its job, as the alert spec declares.",
)
SLICE_BAD = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:bad",
    labels=_SLICE_LABELS,
    help="1 where the last five minutes of a job do not meet an objective, else 0; absent where "
    "nothing can be said.",
)
SLICES_TOTAL = Recorded(
    name="cluster_slo:lockstep_train_slices:total",
    labels=(labels.CLUSTER, SLO),
    help="Slices of jobs, allocated GPUs and running jobs that are counted now for an objective.",
)
SLICES_BAD = Recorded(
    name="cluster_slo:lockstep_train_slices:bad",
    labels=(labels.CLUSTER, SLO),
    help="Slices, GPUs and jobs that are counted now for an objective and do not meet it.",
)

# Series that recording rules compute of each objective: counts, budgets and burn rates. The names
# are those of Sloth where it has one, so that its boards show these objectives too; ``job_class``
# is empty where a series is of the whole cluster.

PERIOD, SLICE_PERIOD = "28d", "7d"
"""Windows over which an objective holds; slices are in Prometheus, which keeps 15 days."""
PERIOD_DAYS = {PERIOD: 28, SLICE_PERIOD: 7}
SLOTH_ID = Label(name="sloth_id", help="cluster and objective")
SLOTH_SERVICE = Label(name="sloth_service", help="the cluster, as boards of Sloth choose it")
SLOTH_SLO = Label(name="sloth_slo", help="the objective, with the class of jobs where it has one")
SLOTH_OBJECTIVE = Label(name="sloth_objective", help="the objective in percent")
SLOTH_SPEC = Label(name="sloth_spec", help="what declares the objective", values=("lockstep/v1",))

_COUNTED = (labels.CLUSTER, JOB_CLASS, SLO, WINDOW)
_SLOTH = (SLOTH_ID, SLOTH_SERVICE, SLOTH_SLO)
_OBJECTIVE = (labels.CLUSTER, JOB_CLASS, SLO, *_SLOTH)

COUNTER_TOTAL = Recorded(
    name="cluster_slo:lockstep_ledger_slo_counter:total5m",
    labels=(labels.CLUSTER, SLO),
    help="Increase in five minutes of a counter that an objective of the alert spec names.",
)
COUNTER_BAD = Recorded(
    name="cluster_slo:lockstep_ledger_slo_counter:bad5m",
    labels=(labels.CLUSTER, SLO),
    help="Increase in five minutes of a counter of an objective, of what does not meet it.",
)
TOTAL_EVENTS = Recorded(
    name="slo:sli_total:increase",
    level="slo",
    labels=_COUNTED,
    help="Events of an objective in a window; GPU-seconds of goodput, ettr and "
    "job_success_gpu_seconds; slices of what is counted in slices.",
)
BAD_EVENTS = Recorded(
    name="slo:sli_bad:increase",
    level="slo",
    labels=_COUNTED,
    help="Events, GPU-seconds or slices of an objective in a window that did not meet it.",
)
GOAL = Recorded(
    name="job_class_slo:lockstep_ledger_slo:good_ratio",
    labels=(JOB_CLASS, SLO),
    help="Share of good events that the alert spec declares, of all jobs or of a class of them.",
)
OBJECTIVE = Recorded(
    name="slo:objective:ratio",
    level="slo",
    labels=_OBJECTIVE,
    help="Share of good events that is promised; a class without a promise has the cluster's.",
)
SLO_INFO = Recorded(
    name="sloth_slo_info",
    level="sloth_slo_info",
    labels=(*_OBJECTIVE, SLOTH_OBJECTIVE, SLOTH_SPEC),
    help="Always 1, with what boards of Sloth show of the objective.",
)
ERROR_BUDGET = Recorded(
    name="slo:error_budget:ratio",
    level="slo",
    labels=_OBJECTIVE,
    help="Share of bad events that the objective allows.",
)
TIME_PERIOD = Recorded(
    name="slo:time_period:days",
    level="slo",
    labels=_OBJECTIVE,
    help="Days over which the objective holds.",
)


def _error_ratio(window: str) -> Recorded:
    return Recorded(
        name=f"slo:sli_error:ratio_rate{'1d' if window == '24h' else window}",
        level="slo",
        labels=_OBJECTIVE,
        help=f"Share of bad events in the last {window}; absent where nothing happened.",
    )


ERROR_RATIOS = {window: _error_ratio(window) for window in SLO_WINDOWS}
"""Share of bad events by window."""

CURRENT_BURN_RATE = Recorded(
    name="slo:current_burn_rate:ratio",
    level="slo",
    labels=_OBJECTIVE,
    help="How many times faster than allowed the budget is spent: of events over 6 hours, of "
    "GPU-seconds over one, of slices in the last five minutes.",
)
PERIOD_BURN_RATE = Recorded(
    name="slo:period_burn_rate:ratio",
    level="slo",
    labels=_OBJECTIVE,
    help="Share of the error budget of the period that is spent: 1 is all of it.",
)
BUDGET_REMAINING = Recorded(
    name="slo:period_error_budget_remaining:ratio",
    level="slo",
    labels=_OBJECTIVE,
    help="Share of the error budget that is left in the period; below 0 it is overspent.",
)
