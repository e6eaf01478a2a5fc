"""Goodput of a job as recording rules compute it: by state, with the waiting for stragglers.

One rank's waiting is another one's work, maybe on another node: no page and no agent can tell it.
"""

from lockstep_catalogue.job_state import GOODPUT_SECONDS
from lockstep_catalogue.labels import CLUSTER, GOODPUT, JOB_ID, PP
from lockstep_catalogue.metric import Recorded, Unit
from lockstep_catalogue.promql import by, eq, names, rate, select
from lockstep_catalogue.recorded import LATENESS_RATIO
from lockstep_catalogue.windows import ScrapeWindows

_JOB = (CLUSTER, JOB_ID)
_GROUP = (*_JOB, PP)
_ON_JOB = f"on ({names(*_JOB)})"


def _goodput(windows: ScrapeWindows) -> str:
    spent = by("sum", rate(GOODPUT_SECONDS, windows.long), *_JOB)
    good = by("sum", rate(GOODPUT_SECONDS, windows.long, eq(GOODPUT, "productive")), *_JOB)
    return f"{good} / ({spent} > 0)"


GOODPUT_RATIO = Recorded(
    name="cluster_job_id:lockstep_train_goodput:ratio",
    unit=Unit.RATIO,
    labels=_JOB,
    help="Share of the ranks' wall clock spent in forward, backward and optimizer.",
    expression=_goodput,
)


def _straggler_wait(_: ScrapeWindows) -> str:
    # The last rank of a group is waited for by all others, for what it is late beyond the median.
    # Steps follow each other without a gap, so that a share of the step is a share of the time.
    late, on_group = select(LATENESS_RATIO), f"on ({names(*_GROUP)})"
    waiting = f"({by('count', late, *_GROUP)} - 1)"
    return by("sum", f"{by('max', late, *_GROUP)} * {on_group} {waiting}", *_JOB)


STRAGGLER_WAIT = Recorded(
    name="cluster_job_id:lockstep_train_straggler_wait_seconds:rate",
    unit=Unit.NONE,
    labels=_JOB,
    help="Seconds a second, summed over the ranks, in which ranks wait for the latest of their "
    "group beyond what its median rank makes them wait.",
    expression=_straggler_wait,
)


def _goodput_by_state(windows: ScrapeWindows) -> str:
    spent = by("sum", rate(GOODPUT_SECONDS, windows.long), *_JOB, GOODPUT)
    waited = by("sum", rate(GOODPUT_SECONDS, windows.long, eq(GOODPUT, "communication")), *_JOB)
    latest = f"avg_over_time({select(STRAGGLER_WAIT)}[{windows.long}])"
    # Waiting for a straggler is a part of what the pages call communication, never more than it.
    straggler = f"({latest} <= {_ON_JOB} {waited} or {_ON_JOB} {waited} < {_ON_JOB} {latest})"
    rest = f"{waited} - {_ON_JOB} {straggler}"
    return (
        "\nor\n".join(
            f'label_replace({expression}, "{GOODPUT.name}", "{state}", "", "")'
            for expression, state in ((straggler, "straggler_wait"), (rest, "communication"))
        )
        + f"\nor\n{spent}"
    )


GOODPUT_BY_STATE = Recorded(
    name="cluster_job_id_goodput:lockstep_train_goodput_seconds:rate",
    unit=Unit.NONE,
    labels=(*_JOB, GOODPUT),
    help="Seconds a second, summed over the ranks, by goodput state; waiting for stragglers, which "
    "no page can tell, is taken out of communication.",
    expression=_goodput_by_state,
)

RECORDED = (GOODPUT_RATIO, STRAGGLER_WAIT, GOODPUT_BY_STATE)
