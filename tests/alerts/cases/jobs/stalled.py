from lockstep_alerts.conditions.jobs.stalled import _JUDGED_EVERY_SECONDS, Stalled
from lockstep_catalogue import training
from lockstep_catalogue.metric import Metric
from lockstep_outcomes.progress.hangs import HANG_TIMEOUT_SECONDS

from ..case import Case, proves
from ..synthetic import (
    JOB,
    TWO_NODES,
    Course,
    Samples,
    Stretch,
    Timing,
    moving,
    present,
    samples,
    steady,
)


@proves(Stalled)
def stalled(condition: Stalled, timing: Timing) -> list[Case]:
    def job(state: str, **first_by_node: str) -> list[Samples]:
        return _job(timing, first_by_node, state)

    return [
        Case("a rank hangs in its backward", job("training", n1="sync", n2="backward"), JOB),
        Case("a rank hangs in a checkpoint", job("checkpoint", n2="checkpoint"), JOB),
        Case("all wait, and none pauses", job("training", n1="sync", n2="sync"), JOB),
        Case("ranks wait for a checkpoint elsewhere", job("checkpoint", n1="sync")),
        Case("a checkpoint is written", job("checkpoint")),
        Case("it moves", job("training")),
    ]


def _job(timing: Timing, first_by_node: dict[str, str], state: str) -> list[Samples]:
    """A job of two nodes; of each given node a rank hangs in a phase from the onset on."""
    judged_seconds = timing.onset_seconds + round(HANG_TIMEOUT_SECONDS) + _JUDGED_EVERY_SECONDS
    lasting = Stretch(timing.fires_by_seconds, 1)
    age = Course(HANG_TIMEOUT_SECONDS, (lasting,), judged_seconds)
    series = [*present(timing.fires_by_seconds, state, TWO_NODES), *moving(lasting)]
    for node, phase in first_by_node.items():
        rank = str([placement.node for placement in TWO_NODES].index(node))
        series.append(_hung(training.HANG_FIRST, age, node, rank, phase))
        if phase != "sync":
            present_now = steady(1, timing.fires_by_seconds, judged_seconds)
            series.append(_hung(training.HANG_MISSING, present_now, node, rank, phase))
    return series


def _hung(metric: Metric, course: Course, node: str, rank: str, phase: str) -> Samples:
    labels = {**JOB, "node": node, "rank": rank, "hang_phase": phase}
    return samples(metric, course, instance=f"{node}:9400", **labels)
