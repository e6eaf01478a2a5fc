"""Metrics that the ledger serves: of jobs, and of its own work."""

from typing import Any

from lockstep_catalogue import labels
from lockstep_catalogue.metric import Endpoint, Kind, Label, Metric
from lockstep_catalogue.vocabulary import FAILURE_CLASSES, OUTCOMES

# Metrics of jobs that the ledger serves: counters without a job id, every combination at 0.

JOB_CLASS = Label(name="job_class", help="kind of work, such as pretraining; empty without one")
JOB_OUTCOME = Label(name="job_outcome", help="what became of the job", values=OUTCOMES)
FAILURE_CLASS = Label(
    name="failure_class",
    help="who has to act on the end of the job; none where nobody has to",
    values=("none", *FAILURE_CLASSES),
)
JOB_STATUS = Label(
    name="job_status",
    help="whether the job waits, runs, or ended without its outcome being settled yet",
    values=("pending", "running", "ended"),
)
DEADLINE = Label(
    name="deadline", help="whether the declared deadline was met", values=("met", "missed")
)
REQUEUED_AFTER = Label(
    name="requeued_after",
    help="why the job went back to the queue",
    values=("preemption", "infra", "user", "unknown"),
)
SLO_WINDOWS = {
    "5m": 300.0,
    "30m": 1800.0,
    "1h": 3600.0,
    "2h": 7200.0,
    "6h": 21_600.0,
    "24h": 86_400.0,
    "3d": 259_200.0,
    "7d": 604_800.0,
    "28d": 2_419_200.0,
}
"""Seconds of each window for which the ledger counts, by its name."""
SLOS = (
    "job_success",
    "job_success_gpu_seconds",
    "time_to_complete",
    "queue_wait",
    "checkpoint_success",
    "preemption_loss",
    "resume_success",
    "requeue",
    "goodput",
    "ettr",
)
"""``goodput`` counts productive time as good, ``ettr`` all time in which a job moves on."""
GPU_SECOND_SLOS = ("job_success_gpu_seconds", "goodput", "ettr")
EVENT_SLOS = tuple(slo for slo in SLOS if slo not in GPU_SECOND_SLOS)
"""Objectives whose events are counted by the piece; those of the others are GPU-seconds."""
SLICE_SLOS = (
    "throughput",
    "step_latency",
    "gradient_sync",
    "bus_bandwidth",
    "cost",
    "checkpoint_blocking",
    "recovery_point",
    "loss_convergence",
    "gpu_activity",
    "telemetry",
)
"""Objectives whose events are slices of the time of a job, a GPU or a cluster: rules count them."""
SLO_COUNTS_SECONDS = 10.0
"""Time between two counts per window of a ledger whose store is counted within a second."""
SLO = Label(name="slo", help="objective that the events count for", values=(*SLOS, *SLICE_SLOS))
WINDOW = Label(name="window", help="time up to now", values=tuple(SLO_WINDOWS))
SLO_EVENT = Label(
    name="slo_event", help="events that met the objective, or all", values=("good", "total")
)
GROUP = (labels.CLUSTER, labels.QUEUE, labels.PROJECT, JOB_CLASS)
"""Labels by which jobs are counted."""
_DURATION_BUCKETS = (60.0, 600.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)
_WAIT_BUCKETS = (60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0)


def _declare_ledger(
    name: str, help_text: str, source: str, by: tuple[Label, ...] = (), **settings: Any
) -> Metric:
    return Metric(
        name=name, labels=by, help=help_text, source=source, endpoint=Endpoint.LEDGER, **settings
    )


def _counter(
    name: str, by: tuple[Label, ...], help_text: str, source: str, for_users: str = ""
) -> Metric:
    full_name = f"lockstep_ledger_{name}_total"
    return _declare_ledger(full_name, help_text, source, by, for_users=for_users)


JOBS_FINISHED = _counter(
    "jobs_finished",
    (*GROUP, JOB_OUTCOME, FAILURE_CLASS),
    "Jobs whose outcome is settled, each once over all its attempts.",
    "ends of jobs on all their nodes",
)
JOBS_FINISHED_GPU_SECONDS = _counter(
    "jobs_finished_gpu_seconds",
    (*GROUP, JOB_OUTCOME, FAILURE_CLASS),
    "GPU-seconds allocated to the jobs whose outcome is settled.",
    "starts and ends of nodes, times their GPUs",
)
JOBS_STARTED = _counter(
    "jobs_started", GROUP, "Jobs that started, each once over all its attempts.", "starts of jobs"
)
ATTEMPTS_STARTED = _counter(
    "attempts_started", GROUP, "Attempts that started, including the first of each job.", "attempts"
)
GPU_SECONDS = _counter(
    "gpu_seconds",
    (*GROUP, labels.GOODPUT),
    "Allocated GPU-seconds by goodput state; the states sum to the allocation.",
    "ends of nodes, with the goodput that the job reports",
)
CURRENCY = Label(
    name="currency", help="ISO 4217 code of the money; amounts of two are never added up"
)
COST = _counter(
    "cost",
    (*GROUP, CURRENCY),
    "Money spent on allocated GPU time, by currency.",
    "GPU time times the price of the rate card, or the price that the job declares",
)
DEADLINES = _counter(
    "job_deadlines", (*GROUP, DEADLINE), "Jobs that had a deadline, by whether it was met.",
    "ends of jobs and the deadline that they declare",
)  # fmt: skip
PREEMPTIONS = _counter("preemptions", GROUP, "Attempts that were preempted.", "ends of attempts")
PREEMPTION_LOST = _counter(
    "preemption_lost_gpu_seconds",
    GROUP,
    "GPU-seconds from the last durable checkpoint, or a later start, to a preemption.",
    "checkpoints and preemptions",
    for_users="what preemptions cost a queue",
)
REQUEUES = _counter(
    "requeues", (*GROUP, REQUEUED_AFTER), "Requeues of jobs, by cause.",
    "starts of a job after its end",
)  # fmt: skip
RESUMES = _counter(
    "resumes",
    (*GROUP, labels.RESTORE_OUTCOME),
    "Attempts that resumed from a checkpoint, by how the restore ended.",
    "resumes",
    for_users="how well resumes go, by queue",
)
CHECKPOINTS = _counter(
    "checkpoints",
    (*GROUP, labels.OUTCOME),
    "Checkpoints of jobs by whether they became durable.",
    "checkpoints",
)
AMENDABLE = tuple(each for each in vars().values() if isinstance(each, Metric))
FAMILY = Label(
    name="family",
    help="counter that holds too much",
    values=tuple(metric.name for metric in AMENDABLE),
)
AMENDED = _counter(
    "amended",
    (*GROUP, FAMILY),
    "What a counter holds too much after late events; the counter minus this is exact.",
    "events that came late",
)
JOB_DURATION = _declare_ledger(
    "lockstep_ledger_job_duration_seconds",
    "Wall time of settled jobs from their first start to their last end.",
    "starts and ends of jobs",
    GROUP,
    buckets=_DURATION_BUCKETS,
)
QUEUE_WAIT = _declare_ledger(
    "lockstep_ledger_job_queue_wait_seconds",
    "Time from the submission of a job to its first start.",
    "submissions and starts of jobs",
    GROUP,
    buckets=_WAIT_BUCKETS,
)
JOBS = _declare_ledger(
    "lockstep_ledger_jobs",
    "Jobs whose outcome is not settled, by status.",
    "the store",
    (labels.CLUSTER, JOB_STATUS),
)
SLO_EVENTS = _declare_ledger(
    "lockstep_ledger_slo_events",
    "Exact number of events of an objective in a window; of goodput and ettr in GPU-seconds.",
    "the store, as of the time of the counts per window",
    (labels.CLUSTER, JOB_CLASS, SLO, WINDOW, SLO_EVENT),
)
JOB_DEADLINE = _declare_ledger(
    "lockstep_ledger_job_deadline_timestamp_seconds",
    "Wall clock by which a running job has to be done; of jobs that declare it and their tokens.",
    "the store, as of the time of the counts per window",
    (labels.CLUSTER, labels.JOB_ID),
)
JOB_TOKENS = _declare_ledger(
    "lockstep_ledger_job_declared_tokens",
    "Tokens that a running job with a deadline declares to train on.",
    "the store, as of the time of the counts per window",
    (labels.CLUSTER, labels.JOB_ID),
)
MAX_TARGETS = 200
"""Running jobs with a deadline that are served, the newest first; as many that ended."""
JOB_ENDED = _declare_ledger(
    "lockstep_ledger_job_ended_timestamp_seconds",
    "Wall clock at which a job ended that did so within a day, with what became of it.",
    "the store, as of the time of the counts per window",
    (labels.CLUSTER, labels.JOB_ID, JOB_OUTCOME, FAILURE_CLASS),
)

COUNTED = tuple(
    each for each in vars().values() if isinstance(each, Metric) and each.kind is not Kind.GAUGE
)
"""The families that are counted with the events, in the same transaction."""

# Metrics of the ledger's own work: events, refusals, commits, requests.

INGEST = Label(
    name="ingest",
    help="what became of a received event; a duplicate was stored before",
    values=("stored", "duplicate", "refused"),
)
REFUSALS = (
    "json", "version", "missing", "type", "value", "future", "finished", "size", "token",
    "owner", "scope", "implausible",
)  # fmt: skip
REFUSAL = Label(name="refusal", help="why it was refused", values=REFUSALS)
HTTP_STATUS = Label(
    name="http_status", help="class of the answer", values=("2xx", "3xx", "4xx", "5xx")
)
STORE = Label(name="store", help="kind of database", values=("sqlite", "postgresql"))

LEDGER_INFO = _declare_ledger(
    "lockstep_ledger_info",
    "Identity of the ledger, always 1.",
    "options of the ledger",
    (labels.VERSION, STORE),
)
EVENTS = _declare_ledger(
    "lockstep_ledger_events_total",
    "Events that were received since the ledger started.",
    "the writer",
    (INGEST,),
)
REFUSED = _declare_ledger(
    "lockstep_ledger_refusals_total",
    "Events and requests that were refused since the ledger started.",
    "the check of requests",
    (REFUSAL,),
)
DEAD_LETTERS = _declare_ledger(
    "lockstep_ledger_dead_letters",
    "Refused events and requests that the store holds.",
    "the store, as of the time of the counts per window",
)
JOBS_ASIDE = _declare_ledger(
    "lockstep_ledger_jobs_aside",
    "Jobs whose stored record could not be settled and is left aside.",
    "the store, as of the time of the counts per window",
)
LEADS = _declare_ledger(
    "lockstep_ledger_leads",
    "1 on the leader of the ledgers that share a store, which serves their counters, else 0.",
    "the lock of the store",
)
INBOX = _declare_ledger(
    "lockstep_ledger_inbox_deliveries",
    "Deliveries that other ledgers took and the leader has not stored yet.",
    "the store, a moment ago",
)
EVENTS_STORED = _declare_ledger(
    "lockstep_ledger_events_stored",
    "Sequence number of the newest event in the store.",
    "the writer",
)
COMMIT_DURATION = _declare_ledger(
    "lockstep_ledger_commit_duration_seconds",
    "Duration of the transactions that store events.",
    "the writer",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
REQUESTS = _declare_ledger(
    "lockstep_ledger_http_requests_total",
    "HTTP requests by class of answer since the ledger started.",
    "the access log",
    (HTTP_STATUS,),
)
REFRESHED = _declare_ledger(
    "lockstep_ledger_windows_timestamp_seconds",
    "Wall clock at which the counts per window were last taken from the store.",
    "the reader of windows",
)
