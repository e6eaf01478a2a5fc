from collections.abc import Mapping

from lockstep_alerts.conditions.jobs.unobserved import Unobserved

from ..case import Case, proves
from ..synthetic import (
    HEALTHY,
    JOB,
    NUM_RANKS,
    Regime,
    Samples,
    Timing,
    training_job,
)


@proves(Unobserved)
def unobserved(condition: Unobserved, timing: Timing) -> list[Case]:
    seconds = timing.fires_by_seconds

    def job(phases: Mapping[str, float]) -> list[Samples]:
        return training_job(Regime(seconds, (phases,) * NUM_RANKS))

    return [
        Case("no rank waits", job({**HEALTHY, "sync": 0.0}), {**JOB, "phase": "sync"}),
        Case(
            "most time is in no phase",
            job({**HEALTHY, "other": sum(HEALTHY.values())}),
            {**JOB, "phase": "other"},
        ),
        Case("a healthy job", job(HEALTHY)),
    ]
