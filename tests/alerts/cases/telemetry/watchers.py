from lockstep_alerts.conditions.telemetry.watchers import FeedBehind, LedgerStale, RulesSlow
from lockstep_catalogue import feeds, foreign, ledger

from ..case import Case, proves
from ..synthetic import (
    Course,
    Samples,
    Stretch,
    Timing,
    growing,
    samples,
    steady,
)


@proves(LedgerStale)
def ledger_stale(condition: LedgerStale, timing: Timing) -> list[Case]:
    cluster = {"cluster": "c1"}
    onset, lasting = timing.onset_seconds, timing.fires_by_seconds
    stands = timing.grows(0, before=1)
    up = samples(foreign.UP, steady(1, lasting), instance="n1:9440", job="lockstep-agent")
    return [
        Case("its counts are old", _ledger(stands, lasting), cluster),
        Case("it is gone", [*_ledger(growing(Stretch(onset, 1)), onset), up], cluster),
        Case("its counts are fresh", _ledger(timing.counts(1), lasting)),
    ]


def _ledger(counted: Course, seconds: int) -> list[Samples]:
    """A ledger with the time of its counts."""
    running = {"instance": "ledger:9450", "cluster": "c1", "job_status": "running"}
    return [
        samples(ledger.JOBS, steady(3, seconds), **running),
        samples(ledger.REFRESHED, counted, instance="ledger:9450"),
    ]


@proves(FeedBehind)
def feed_behind(condition: FeedBehind, timing: Timing) -> list[Case]:
    """A scheduler no longer answers, of each kind of feed; it does."""
    stands, goes_on = timing.grows(0, before=1), timing.counts(1)
    cases = []
    for feed in feeds.FEED.values:
        labels = {"cluster": "c1", "feed": feed}
        stale, fresh = (samples(feeds.ASKED, each, **labels) for each in (stands, goes_on))
        cases += [Case(f"{feed} has no answer", [stale], labels)]
        cases += [Case(f"{feed} is fresh", [fresh])]
    return cases


@proves(RulesSlow)
def rules_slow(condition: RulesSlow, timing: Timing) -> list[Case]:
    group = {"rule_group": "a.yaml;x"}
    fails = timing.grows(0.1)
    slows = timing.steps_up(10 * condition.above_ratio + 1, start=0.1)
    late = samples(foreign.GROUP_DURATION, slows, **group)
    failures = samples(foreign.RULE_FAILURES, fails, **group)
    interval = samples(foreign.GROUP_INTERVAL, timing.steady(10), **group)
    in_time = samples(foreign.GROUP_DURATION, timing.steady(0.1), **group)
    return [
        Case("it is late", [interval, late], group),
        Case("a rule fails", [interval, in_time, failures], group),
        Case("it is in time", [interval, in_time]),
    ]
