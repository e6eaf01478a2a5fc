"""Metrics of the agent itself."""

from lockstep_catalogue.labels import CLUSTER, COLLECTOR, NODE, REASON, VERSION, WORKER
from lockstep_catalogue.metric import Label, Metric, Stability


def _unlabelled(name: str, help_text: str, source: str) -> Metric:
    return Metric(name=name, labels=(), help=help_text, source=source)


DELIVERY = Label(
    name="delivery",
    help="how an event left the spool; dropped where there were too many",
    values=("delivered", "refused", "dropped"),
)
ARCHIVED = Label(
    name="archived", help="whether the file is in the archive", values=("copied", "failed")
)

RAS_OUTCOME = Label(
    name="ras_answer",
    help="what came of asking NCCL's status socket",
    values=("answered", "silent", "unreadable", "too_long"),
)
BOUND = Label(
    name="bound",
    help="what a user has more of than the agent reads or serves of one",
    values=("jobs", "files", "pages", "series"),
)
LISTING_BOUNDS = BOUND.values[:3]

AGENT_INFO = Metric(
    name="lockstep_agent_info",
    labels=(CLUSTER, NODE, VERSION),
    help="Identity of the agent, always 1.",
    source="options of the agent",
    stability=Stability.STABLE,
)
COLLECTOR_SUCCESS = Metric(
    name="lockstep_agent_collector_success",
    labels=(COLLECTOR,),
    help="1 when the last run of the collector ended without an error, else 0.",
    source="the guard around each collector",
    stability=Stability.STABLE,
)
COLLECTOR_DURATION = Metric(
    name="lockstep_agent_collector_duration_seconds",
    labels=(COLLECTOR,),
    help="Duration of the last run of the collector.",
    source="the guard around each collector",
)
COLLECTOR_FAILURES = Metric(
    name="lockstep_agent_collector_failures_total",
    labels=(COLLECTOR,),
    help="Runs of the collector that ended in an error.",
    source="the guard around each collector",
)
WORKER_STALLED = Metric(
    name="lockstep_agent_worker_stalled",
    labels=(WORKER,),
    help="1 while a call hangs in the worker thread and its series are withheld, else 0.",
    source="the watchdog of the worker thread",
    stability=Stability.STABLE,
)
RAS_QUESTIONS = Metric(
    name="lockstep_agent_ras_questions_total",
    labels=(RAS_OUTCOME,),
    help="Times that NCCL's status socket of a user was asked, by what came of it.",
    source="the watch of status sockets",
    for_users="whether jobs without rank pages can be seen on this node at all",
)
DRIVER_RELEASED = _unlabelled(
    "lockstep_agent_driver_released",
    "1 while the agent has released the GPU driver on request, else 0.",
    "SIGUSR1 and SIGUSR2",
)
AGENT_SERIES = _unlabelled(
    "lockstep_agent_series", "Number of series in this exposition.", "the exposition"
)
LEFT_OUT = Label(
    name="left_out",
    help="why series are left out: zeros of rare faults, without --detail, a group over budget, "
    "or beyond the share of the jobs",
    values=(
        "zero",
        "detail",
        "bus",
        "job_host",
        "checkpoints",
        "collectives",
        "limits",
        "storage",
        "packets",
        "windows",
        "port_errors",
        "share",
    ),
)
AGENT_SERIES_LEFT_OUT = Metric(
    name="lockstep_agent_series_left_out",
    labels=(LEFT_OUT,),
    help="Number of series that are known and not served, by reason.",
    source="the exposition",
)
AGENT_TICK = _unlabelled(
    "lockstep_agent_last_tick_timestamp_seconds",
    "Wall clock at which the exposition was rendered.",
    "the sampler",
)
AGENT_MEMORY = _unlabelled(
    "lockstep_agent_resident_memory_bytes", "Resident memory of the agent.", "/proc/self/statm"
)
AGENT_CPU = _unlabelled(
    "lockstep_agent_cpu_seconds_total", "Processor time that the agent has used.", "os.times"
)
PAGES_UNREADABLE = Metric(
    name="lockstep_agent_pages_unreadable",
    labels=(REASON,),
    help="Rank pages on the node that cannot be read now, by reason.",
    source="the page reader",
)
JOBS_SKIPPED = Metric(
    name="lockstep_agent_jobs_skipped_total",
    labels=(COLLECTOR,),
    help="Times that a collector left out a job, or a reading of it, that cannot be used.",
    source="the guard around each job",
)
JOBS_CUT = Metric(
    name="lockstep_agent_jobs_cut",
    labels=(BOUND,),
    help="Jobs left out or read in part, because their user exceeds the limit for one user.",
    source="the list of jobs and the exposition",
)
EVENTS_PENDING = _unlabelled(
    "lockstep_agent_events_pending",
    "Events of jobs on the node that wait for delivery to the ledger.",
    "the spool",
)
EVENTS_SPOOL_RATIO = _unlabelled(
    "lockstep_agent_events_spool_ratio",
    "Share of the spool that waiting events fill; at 1 events are dropped.",
    "the spool",
)
EVENTS = Metric(
    name="lockstep_agent_events_total",
    labels=(DELIVERY,),
    help="Events of jobs that left the spool since the agent started.",
    source="the spool",
)
ARCHIVED_FILES = Metric(
    name="lockstep_agent_archived_files_total",
    labels=(ARCHIVED,),
    help="Pages and event files copied to the archive by the child process, by outcome.",
    source="reports of the archive's child process",
)
