"""Metrics of the ledger's own work: events, refusals, commits, requests."""

from lockstep_catalogue.labels import VERSION
from lockstep_catalogue.metric import Endpoint, Label, Metric

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

LEDGER_INFO = Metric(
    name="lockstep_ledger_info",
    labels=(VERSION, STORE),
    help="Identity of the ledger, always 1.",
    source="options of the ledger",
    endpoint=Endpoint.LEDGER,
)
EVENTS = Metric(
    name="lockstep_ledger_events_total",
    labels=(INGEST,),
    help="Events that were received since the ledger started.",
    source="the writer",
    endpoint=Endpoint.LEDGER,
)
REFUSED = Metric(
    name="lockstep_ledger_refusals_total",
    labels=(REFUSAL,),
    help="Events and requests that were refused since the ledger started.",
    source="the check of requests",
    endpoint=Endpoint.LEDGER,
)
DEAD_LETTERS = Metric(
    name="lockstep_ledger_dead_letters",
    labels=(),
    help="Refused events and requests that the store holds.",
    source="the store, as of the time of the counts per window",
    endpoint=Endpoint.LEDGER,
)
JOBS_ASIDE = Metric(
    name="lockstep_ledger_jobs_aside",
    labels=(),
    help="Jobs whose stored record could not be settled and is left aside.",
    source="the store, as of the time of the counts per window",
    endpoint=Endpoint.LEDGER,
)
EVENTS_STORED = Metric(
    name="lockstep_ledger_events_stored",
    labels=(),
    help="Sequence number of the newest event in the store.",
    source="the writer",
    endpoint=Endpoint.LEDGER,
)
COMMIT_DURATION = Metric(
    name="lockstep_ledger_commit_duration_seconds",
    labels=(),
    help="Duration of the transactions that store events.",
    source="the writer",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
    endpoint=Endpoint.LEDGER,
)
REQUESTS = Metric(
    name="lockstep_ledger_http_requests_total",
    labels=(HTTP_STATUS,),
    help="HTTP requests by class of answer since the ledger started.",
    source="the access log",
    endpoint=Endpoint.LEDGER,
)
REFRESHED = Metric(
    name="lockstep_ledger_windows_timestamp_seconds",
    labels=(),
    help="Wall clock at which the counts per window were last taken from the store.",
    source="the reader of windows",
    endpoint=Endpoint.LEDGER,
)
