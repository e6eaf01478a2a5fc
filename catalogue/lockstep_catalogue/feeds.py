"""Metrics of the feeds of schedulers: what each tells of its own work with its deliveries."""

from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.metric import Endpoint, Label, Metric

FEED = Label(name="feed", help="what a feed follows", values=("slurm", "kubernetes"))
OBJECT_KIND = Label(name="object_kind", help="kind of objects as PLURAL.GROUP, such as jobs.batch")
FOLLOWING = Label(
    name="following",
    help="whether the feed sees the kind: refused by the account's rights, away without an answer",
    values=("listing", "followed", "refused", "away", "absent"),
)
LEDGER_ANSWER = Label(
    name="ledger_answer", help="what the ledger answered", values=("delivered", "refused")
)


def _metric(name: str, labels: tuple[Label, ...], help_text: str) -> Metric:
    return Metric(
        name=f"lockstep_ledger_feed_{name}",
        labels=(CLUSTER, FEED, *labels),
        help=help_text,
        source="the feeds' deliveries",
        endpoint=Endpoint.LEDGER,
    )


ASKED = _metric(
    "asked_timestamp_seconds", (),
    "Wall clock up to which a feed has delivered what its scheduler knows.",
)  # fmt: skip
LEFT_OUT = _metric(
    "left_out_total", (), "Rows or objects that a feed could not read; each is logged."
)
WORKLOADS_LEFT_OUT = _metric(
    "workloads_left_out_total", (),
    "Workloads that were left out: they ask for no accelerator and carry no label.",
)  # fmt: skip
EVENTS = _metric("events_total", (LEDGER_ANSWER,), "Events that the ledger has answered.")
WAITING = _metric("events_waiting", (), "Events that the ledger has not answered yet.")
KINDS = _metric("kinds", (FOLLOWING,), "Kinds of objects by whether the feed sees them.")
CONTACT = _metric(
    "contact_timestamp_seconds", (OBJECT_KIND,),
    "Wall clock of the server's last answer or change of a kind, also where nothing changed.",
)  # fmt: skip
