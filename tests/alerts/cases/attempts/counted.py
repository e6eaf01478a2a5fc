from lockstep_alerts.conditions.attempts.counted import _Counted, _Counter
from lockstep_catalogue import agent
from lockstep_catalogue.labels import NODE, RANK

from ..case import Case, proves
from ..synthetic import (
    JOB,
    JOB_NODE,
    Course,
    Samples,
    Timing,
    sample_node,
    samples,
    steady,
)


@proves(_Counted)
def counted(condition: _Counted, timing: Timing) -> list[Case]:
    later = condition.window.seconds + timing.fires_by_seconds
    first = condition.COUNTERS[0]
    born = steady(1, timing.fires_within_seconds, condition.window.seconds + timing.onset_seconds)
    of_rank = {RANK.name: "2"} if RANK in condition.LABELS else {}
    fires_as = {**(JOB_NODE if NODE in condition.LABELS else JOB), **of_rank}
    watched = sample_node(agent.AGENT_INFO, steady(1, later), version="1")

    def counted(counter: _Counter, course: Course) -> Samples:
        metric, matcher = counter
        value = {} if matcher is None else {matcher.label.name: matcher.value.split("|")[0]}
        return samples(metric, course, instance="n1:9400", **JOB_NODE, **of_rank, **value)

    return [
        *(
            Case(f"{each[0].name} grows", [counted(each, timing.steps_up())], fires_as)
            for each in condition.COUNTERS
        ),
        Case("it stays at zero", [counted(first, timing.steady(0))]),
        Case("it is born above zero", [watched, counted(first, born)], fires_as, later),
        Case("a fresh Prometheus sees it", [counted(first, born)], None, later),
    ]
