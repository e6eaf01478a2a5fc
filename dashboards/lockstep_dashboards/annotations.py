"""What is drawn on every time axis: alerts, restarts, and events of jobs."""

from lockstep_catalogue import training
from lockstep_catalogue.job_state import OUT_OF_MEMORY
from lockstep_catalogue.job_watch import HUNG_RANKS
from lockstep_catalogue.labels import ATTEMPT, CLUSTER, JOB_ID, NODE, OUTCOME
from lockstep_catalogue.promql import by, eq
from lockstep_dashboards.colors import BAD, GOOD, WARNING
from lockstep_dashboards.panel import Annotation
from lockstep_dashboards.selection import Selection

_JOB = (CLUSTER, JOB_ID)
_WINDOW = "1m"


def annotations(chosen: Selection) -> tuple[Annotation, ...]:
    """Alerts that fire, attempts that begin, and what happens to jobs, of what is chosen."""
    matchers = ", ".join(
        f'{each.label.name}{each.operator}"{each.value}"'
        for each in chosen.matchers
        if each.label in {*_JOB, NODE}
    )
    return (
        Annotation(
            title="Alerts",
            expression=f'ALERTS{{alertstate="firing", {matchers}}}',
            heading="{{alertname}}",
            color=BAD,
        ),
        Annotation(
            title="Restarts",
            expression=_restarts(chosen),
            heading="attempt {{attempt}} of {{job_id}}",
            color=GOOD,
        ),
        Annotation(
            title="Job events",
            expression=_events(chosen),
            heading="{{event}}: {{job_id}}",
            color=WARNING,
        ),
    )


def _restarts(chosen: Selection) -> str:
    """A value in the first minute of each attempt."""
    attempts = chosen.of(training.RANK_INFO)
    now = by("group", attempts, *_JOB, ATTEMPT)
    before = by("group", f"{attempts} offset {_WINDOW}", *_JOB, ATTEMPT)
    return f"{now} unless {before}"


def _events(chosen: Selection) -> str:
    failed = chosen.increase(training.CHECKPOINTS, eq(OUTCOME, "failed"), window=_WINDOW)
    out_of_memory = chosen.increase(OUT_OF_MEMORY, window=_WINDOW)
    hung = chosen.of(HUNG_RANKS)
    events = {
        "checkpoint failed": by("sum", failed, *_JOB),
        "out of memory": by("sum", out_of_memory, *_JOB),
        "hang": by("sum", hung, *_JOB),
    }
    return " or ".join(
        f'label_replace({expression} > 0, "event", "{event}", "", "")'
        for event, expression in events.items()
    )
