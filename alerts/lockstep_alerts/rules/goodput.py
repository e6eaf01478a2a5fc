"""PromQL of the goodput of a job: by state, with the waiting for stragglers.

One rank's waiting is another one's work, maybe on another node: no page and no agent can tell it.
"""

from lockstep_alerts.rules.parameters import Expressions, Parameters
from lockstep_catalogue.labels import CLUSTER, GOODPUT, JOB_ID, PP
from lockstep_catalogue.promql import by, eq, names, rate, select
from lockstep_catalogue.recorded import (
    GOODPUT_BY_STATE,
    LATENESS_RATIO,
    STRAGGLER_WAIT,
)
from lockstep_catalogue.training import GOODPUT_SECONDS

_JOB = (CLUSTER, JOB_ID)
_GROUP = (*_JOB, PP)
_JOB_JOIN = f"on ({names(*_JOB)})"


def _straggler_wait(_: Parameters) -> str:
    # The last rank of a group is waited for by all others, for what it is late beyond the median.
    # Steps follow each other without a gap, so that a share of the step is a share of the time.
    late, on_group = select(LATENESS_RATIO), f"on ({names(*_GROUP)})"
    waiting = f"({by('count', late, *_GROUP)} - 1)"
    return by("sum", f"{by('max', late, *_GROUP)} * {on_group} {waiting}", *_JOB)


def _goodput_by_state(rules: Parameters) -> str:
    long, waiting = rules.windows.long, eq(GOODPUT, "communication")
    spent = by("sum", rate(GOODPUT_SECONDS, long), *_JOB, GOODPUT)
    waited = by("sum", rate(GOODPUT_SECONDS, long, waiting), *_JOB)
    latest = f"avg_over_time({select(STRAGGLER_WAIT)}[{long}])"
    # Waiting for a straggler is a part of what the pages call communication, never more than it.
    straggler = f"({latest} <= {_JOB_JOIN} {waited} or {_JOB_JOIN} {waited} < {_JOB_JOIN} {latest})"
    rest = f"{waited} - {_JOB_JOIN} {straggler}"
    return (
        "\nor\n".join(
            f'label_replace({expression}, "{GOODPUT.name}", "{state}", "", "")'
            for expression, state in ((straggler, "straggler_wait"), (rest, "communication"))
        )
        + f"\nor\n{spent}"
    )


EXPRESSIONS: Expressions = {
    STRAGGLER_WAIT: _straggler_wait,
    GOODPUT_BY_STATE: _goodput_by_state,
}
