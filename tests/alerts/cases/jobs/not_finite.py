from lockstep_alerts.conditions.jobs.not_finite import NotFinite
from lockstep_catalogue import training

from ..case import Case, proves
from ..synthetic import (
    JOB,
    Course,
    Samples,
    Stretch,
    Timing,
    growing,
    samples,
)


@proves(NotFinite)
def not_finite(condition: NotFinite, timing: Timing) -> list[Case]:
    onset, after = timing.onset_seconds, timing.fires_within_seconds
    begin = condition.least_scrapes * timing.windows.scrape_seconds // 2
    node = {"instance": "n1:9400", **JOB, "node": "n1"}
    steps = samples(training.STEPS, timing.counts(1), **node, rank="0")

    def lost(course: Course) -> list[Samples]:
        return [samples(training.NONFINITE_STEPS, course, **node), steps]

    brief = growing(Stretch(onset, 0), Stretch(begin, 1), Stretch(after, 0))
    return [
        Case("every step is lost", lost(timing.grows(1)), JOB),
        Case("loss scaling finds its scale", lost(brief)),
        Case("loss scaling overflows now and then", lost(timing.counts(1 / 2000))),
        Case("it stays at zero", lost(timing.steady(0))),
    ]
