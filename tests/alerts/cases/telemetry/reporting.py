from lockstep_alerts.conditions.telemetry.reporting import AgentImpaired, TelemetryMissing
from lockstep_catalogue import agent, ledger, training

from ..case import Case, proves
from ..synthetic import (
    JOB,
    Samples,
    Stretch,
    Timing,
    growing,
    sample_node,
    samples,
    trains,
)


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
    cuts = sample_node(agent.JOBS_CUT, timing.steps_up(1), bound="jobs")
    skips = sample_node(agent.JOBS_SKIPPED, growing(Stretch(lasting, 0.1)), collector="ranks")
    well = sample_node(agent.COLLECTOR_SUCCESS, timing.steady(1), collector="nvml")
    thins = sample_node(agent.JOBS_CUT, timing.steady(1), bound="series")
    return [
        Case("a collector fails", [fails], machine),
        Case("a thread hangs", [hangs], machine),
        Case("events wait", [fills], machine),
        Case("a user has too many jobs", [cuts], machine),
        Case("a job cannot be used", [skips], machine),
        Case("it is well", [well, thins]),
    ]
