"""Cases of conditions on the monitoring itself."""

from collections.abc import Mapping

from lockstep_alerts.conditions.telemetry import (
    AgentDown,
    AgentImpaired,
    AlwaysFiring,
    Blind,
    CanarySeen,
    CanarySilent,
    ClockOff,
    FeedBehind,
    LedgerImpaired,
    LedgerStale,
    RulesSlow,
    TelemetryMissing,
    Unobserved,
)
from lockstep_catalogue import agent, feeds, foreign, ledger, recorded, training

from .case import Case, proves
from .synthetic import (
    JOB,
    Course,
    Samples,
    Stretch,
    Timing,
    growing,
    sample_node,
    samples,
    steady,
    trains,
)


@proves(AgentDown)
def agent_down(condition: AgentDown, timing: Timing) -> list[Case]:
    named = {"cluster": "c1", "node": "n0"}
    drained = samples(foreign.KUBE_CORDONED, timing.steady(1), **named)
    never = {"cluster": "c1", "instance": "n7:9440", "job": "lockstep-agent"}
    return [
        Case("an agent is silent", _agents(timing, 4, 1), named),
        Case("an agent stands", _agents(timing, 4, 1, is_stuck=True), named),
        Case(
            "an agent never answered",
            [samples(foreign.UP, timing.steady(0), **never)],
            {"cluster": "c1", "instance": "n7:9440"},
        ),
        Case(
            "no agent serves a node of Kubernetes",
            [*_agents(timing, 4, 0), *_of_kubernetes(timing, "n9")],
            {"cluster": "c1", "node": "n9"},
        ),
        Case("its target has no cluster", _agents(timing, 4, 1, target={}), named),
        Case("a target has no cluster, and its agent answers", _agents(timing, 4, 0, target={})),
        Case("the node is drained", [*_agents(timing, 4, 1), drained]),
        Case("all answer", _agents(timing, 4, 0)),
    ]


@proves(Blind)
def blind(condition: Blind, timing: Timing) -> list[Case]:
    num_agents = 20 + 10 * condition.least_agents
    num_silent = int(num_agents * condition.above_ratio) + 1

    def agents(num_silent: int, num_jobs: int = 1) -> list[Samples]:
        status = {"instance": "ledger:9450", "cluster": "c1", "job_status": "running"}
        running = samples(ledger.JOBS, timing.steady(num_jobs), **status)
        fresh = samples(ledger.REFRESHED, timing.counts(1), instance="ledger:9450")
        return [*_agents(timing, num_agents, num_silent), running, fresh, trains(timing, 8, "n99")]

    named = {"cluster": "c1", "cause": "agents"}
    unseen = {"cluster": "c1", "cause": "jobs"}
    return [
        Case("agents are silent", agents(num_silent), named),
        Case("two of three jobs are in nobody's sight", agents(0, 3), unseen),
        Case("fewer agents are silent", agents(num_silent - 1)),
        Case("nothing runs", agents(num_silent, 0)),
    ]


def _of_kubernetes(timing: Timing, *nodes: str) -> list[Samples]:
    return [samples(foreign.KUBE_NODE, timing.steady(1), cluster="c1", node=n) for n in nodes]


def _agents(
    timing: Timing,
    num_agents: int,
    num_silent: int,
    is_stuck: bool = False,
    target: Mapping[str, str] | None = None,
) -> list[Samples]:
    """Agents of a cluster, of which some fall silent or stand at the onset."""
    onset, lasting = timing.onset_seconds, timing.fires_by_seconds
    series = []
    for number in range(num_agents):
        fails = number < num_silent
        seconds = onset if fails and not is_stuck else lasting
        moving = (Stretch(onset, 1), Stretch(seconds - onset, 0 if fails else 1))
        node = f"n{number}"
        up = timing.steps_up(0 if fails and not is_stuck else 1, 1)
        series.append(sample_node(agent.AGENT_INFO, steady(1, seconds), node, version="1"))
        series.append(sample_node(agent.AGENT_TICK, growing(*moving), node))
        labels = {"cluster": "c1", "node": node} if target is None else target
        address = {"instance": f"{node}:9400", "job": "lockstep-agent"}
        series.append(samples(foreign.UP, up, **address, **labels))
    return series


@proves(ClockOff)
def clock_off(condition: ClockOff, timing: Timing) -> list[Case]:
    lasting = timing.fires_by_seconds

    def clocks(*offsets: float) -> list[Samples]:
        return [
            sample_node(agent.AGENT_TICK, growing(Stretch(lasting, 1), start=offset), f"n{number}")
            for number, offset in enumerate(offsets)
        ]

    off = 3.0 * condition.above.seconds + 120
    return [
        Case("a clock is off", clocks(off, 0, 0), {"cluster": "c1", "node": "n0"}),
        Case("Prometheus' is off", clocks(off, off, off), {"cluster": "c1"}),
        Case("they agree", clocks(0, 0.1, 0)),
    ]


@proves(LedgerStale)
def ledger_stale(condition: LedgerStale, timing: Timing) -> list[Case]:
    cluster = {"cluster": "c1"}
    onset, lasting = timing.onset_seconds, timing.fires_by_seconds
    stands = timing.grows(0, before=1)
    up = samples(foreign.UP, steady(1, lasting), instance="n1:9440", job="lockstep-agent")
    target = {"instance": "ledger:9450", "job": "lockstep-ledger"}
    down = samples(foreign.UP, timing.steps_up(0, 1), **target)
    return [
        Case("its counts are old", _ledger(stands, lasting), cluster),
        Case("it is gone", [*_ledger(growing(Stretch(onset, 1)), onset), up], cluster),
        Case(
            "its target has no cluster",
            [*_ledger(growing(Stretch(onset, 1)), onset), down],
            cluster,
        ),
        Case("one that never answered has no cluster", [down], {}),
        Case(
            "what answers with errors says so itself",
            [*_ledger(growing(Stretch(onset, 1)), onset), up, _errors(timing)],
        ),
        Case("its counts are fresh", _ledger(timing.counts(1), lasting)),
    ]


def _ledger(counted: Course, seconds: int) -> list[Samples]:
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
    group = {"rule_group": "a.yaml;lockstep-jobs"}
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
        Case(
            "a rule of somebody else fails",
            [samples(foreign.RULE_FAILURES, fails, rule_group="b.yaml;x")],
        ),
    ]


@proves(Unobserved)
def unobserved(condition: Unobserved, timing: Timing) -> list[Case]:
    hidden = samples(recorded.UNOBSERVED, timing.steady(0.5), **JOB, phase="sync")
    return [
        Case("no rank waits", [hidden, trains(timing)], {**JOB, "phase": "sync"}),
        Case("a healthy job", [trains(timing)]),
    ]


@proves(TelemetryMissing)
def telemetry_missing(condition: TelemetryMissing, timing: Timing) -> list[Case]:

    def job(size: int) -> list[Samples]:
        return [
            sample_node(training.WORLD_RANKS, timing.steady(size), job_id="j1"),
            trains(timing, 8),
        ]

    def jobs_running(number: int) -> Samples:
        status = {"instance": "ledger:9450", "cluster": "c1", "job_status": "running"}
        return samples(ledger.JOBS, timing.steady(number), **status)

    cluster = {"cluster": "c1"}
    return [
        Case("half of its ranks are silent", job(16), JOB),
        Case("a job runs that nobody sees", [*job(8), jobs_running(2)], cluster),
        Case("nobody sees any job", [jobs_running(1)], cluster),
        Case("all are seen", [*job(8), jobs_running(1)]),
    ]


@proves(AgentImpaired)
def agent_impaired(condition: AgentImpaired, timing: Timing) -> list[Case]:
    machine = {"cluster": "c1", "node": "n1"}
    lasting = timing.fires_by_seconds
    fails = sample_node(agent.COLLECTOR_SUCCESS, timing.steps_up(0, 1), collector="nvml")
    hangs = sample_node(agent.WORKER_STALLED, timing.steps_up(1), worker="driver")
    fills = sample_node(agent.EVENTS_SPOOL_RATIO, timing.steps_up((1 + condition.spool_ratio) / 2))
    waits = sample_node(agent.EVENTS_PENDING, timing.steps_up(3))
    leave = sample_node(agent.EVENTS, timing.counts(1), delivery="delivered")
    away = samples(foreign.UP, timing.steady(0), instance="ledger:9450", job="lockstep-ledger")
    cuts = sample_node(agent.JOBS_CUT, timing.steps_up(1), bound="jobs")
    skips = sample_node(agent.JOBS_SKIPPED, growing(Stretch(lasting, 0.1)), collector="ranks")
    well = sample_node(agent.COLLECTOR_SUCCESS, timing.steady(1), collector="nvml")
    thins = sample_node(agent.JOBS_CUT, timing.steady(1), bound="series")
    return [
        Case("a collector fails", [fails], machine),
        Case("a thread hangs", [hangs], machine),
        Case("events wait", [fills], machine),
        Case("events do not leave", [waits], machine),
        Case("events leave", [waits, leave]),
        Case("the ledger is away", [waits, away]),
        Case("a user has too many jobs", [cuts], machine),
        Case("a job cannot be used", [skips], machine),
        Case("it is well", [well, thins]),
    ]


_LEDGER = {"instance": "ledger:9450"}


@proves(LedgerImpaired)
def ledger_impaired(condition: LedgerImpaired, timing: Timing) -> list[Case]:
    def refuses(reason: str) -> list[Samples]:
        return [samples(ledger.REFUSED, timing.steps_up(3), **_LEDGER, refusal=reason)]

    aside = samples(ledger.JOBS_ASIDE, timing.steps_up(1), **_LEDGER)
    return [
        Case("it refuses events", refuses("value"), _LEDGER),
        Case("it has errors", [_errors(timing)], _LEDGER),
        Case("it leaves a job aside", [aside], _LEDGER),
        Case("it is slow", _commits(timing, is_slow=True), _LEDGER),
        Case("an event comes after its job", refuses("finished")),
        Case("it is quick", _commits(timing, is_slow=False)),
    ]


def _errors(timing: Timing) -> Samples:
    """A ledger that answers with errors, ever more of them."""
    return samples(ledger.REQUESTS, timing.counts(1), **_LEDGER, http_status="5xx")


def _commits(timing: Timing, *, is_slow: bool) -> list[Samples]:
    """Ten commits a second, all in the first bucket or all in the last."""
    bounds = [*(f"{bound:g}" for bound in ledger.COMMIT_DURATION.buckets), "+Inf"]
    return [
        samples(
            ledger.COMMIT_DURATION,
            timing.steady(0) if is_slow and bound != "+Inf" else timing.counts(10),
            "_bucket",
            **_LEDGER,
            le=bound,
        )
        for bound in bounds
    ]


@proves(AlwaysFiring)
def always_firing(condition: AlwaysFiring, timing: Timing) -> list[Case]:
    return [
        Case("nothing is scraped", [], {}),
        Case("Prometheus has just started", [], at_seconds=0),
    ]


@proves(CanarySeen)
def canary_seen(condition: CanarySeen, timing: Timing) -> list[Case]:
    nans = sample_node(training.NONFINITE_STEPS, timing.appears(), job_id="j1")
    job = {job_class: _job_of_class(timing, job_class) for job_class in ("synthetic", "production")}
    return [
        Case("its loss came through", [nans, job["synthetic"]], JOB),
        Case("a job that is meant", [nans, job["production"]]),
    ]


def _job_of_class(timing: Timing, job_class: str) -> Samples:
    return samples(training.JOB_INFO, timing.steady(1), **JOB, **{"class": job_class})


@proves(CanarySilent)
def canary_silent(condition: CanarySilent, timing: Timing) -> list[Case]:
    fires = {"alertname": "TrainCanary", "alertstate": "firing", "cluster": "c1"}
    ran = _job_of_class(timing, "synthetic")
    once = steady(1, timing.onset_seconds)
    return [
        Case(
            "it has come before", [ran, samples(foreign.ALERTS, once, **fires)], {"cluster": "c1"}
        ),
        Case("it comes", [ran, samples(foreign.ALERTS, timing.steady(1), **fires)]),
        Case("there is none", [_job_of_class(timing, "production")]),
    ]
