"""Series that recording rules compute of slices: was a job as good as it had been itself?

A slice is the five minutes before an evaluation; a job is compared with its own best hour, never
with another job. The PromQL is in ``lockstep_alerts.rules``.
"""

from lockstep_catalogue.labels import CLUSTER, JOB_ID, PHASE
from lockstep_catalogue.ledger import SLO
from lockstep_catalogue.metric import Recorded

_JOB = (CLUSTER, JOB_ID)
_OF_SLICE = (*_JOB, SLO)

JOB_PHASES = Recorded(
    name="cluster_job_id_phase:lockstep_train_phase_seconds:rate5m",
    labels=(*_JOB, PHASE),
    help="Seconds a second that the ranks of a job spend in a phase together, over five minutes.",
)
SLICE_VALUE = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:value5m",
    labels=_OF_SLICE,
    help="What an objective measures of a job in the last five minutes: tokens a second of "
    "stepping, seconds a step, share of the step in sync, bytes a second on the bus; of cost "
    "GPU-seconds a token over an hour.",
)
SLICE_SUSTAINED = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:median1h",
    labels=_OF_SLICE,
    help="Median of a job's slices of the last hour, where half an hour of them exists.",
)
SLICE_BASELINE = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:best1d",
    labels=_OF_SLICE,
    help="A job's best hour of the last day: what its slices are held against.",
)
SLICE_RATIO = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:ratio",
    labels=_OF_SLICE,
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
SLICE_LIMIT = Recorded(
    name="slo:lockstep_train_slice:min_ratio",
    labels=(SLO,),
    help="Least ratio of a slice to the best hour of its job, as the alert spec declares.",
)
SLICE_BAD = Recorded(
    name="cluster_job_id_slo:lockstep_train_slice:bad",
    labels=_OF_SLICE,
    help="1 where the last five minutes of a job do not meet an objective, else 0; absent where "
    "nothing can be said.",
)
SLICES_TOTAL = Recorded(
    name="cluster_slo:lockstep_train_slices:total",
    labels=(CLUSTER, SLO),
    help="Slices of jobs, allocated GPUs and running jobs that are counted now for an objective.",
)
SLICES_BAD = Recorded(
    name="cluster_slo:lockstep_train_slices:bad",
    labels=(CLUSTER, SLO),
    help="Slices, GPUs and jobs that are counted now for an objective and do not meet it.",
)
