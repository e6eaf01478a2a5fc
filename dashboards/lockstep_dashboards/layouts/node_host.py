"""Rows about the host of a node, the jobs on it, and its agent."""

from lockstep_catalogue import Unit, events, health, host
from lockstep_catalogue.fabric_labels import MEMORY_EVENT, PRESSURE, RESOURCE
from lockstep_catalogue.labels import COLLECTOR, JOB_ID, LANE, REASON, VERSION
from lockstep_dashboards.layouts.node_state import OF_NODE
from lockstep_dashboards.panel import Query, Row
from lockstep_dashboards.selection import above_zero
from lockstep_dashboards.series_panels import column, stat, table, time_series

_NO_JOB = "a node without a job has none"
_NO_CGROUP = "a job without a cgroup or a limit of its own has none"

HOST = Row(
    title="Host",
    panels=(
        time_series(
            host.MEMORY_AVAILABLE,
            OF_NODE.gauge("min", host.MEMORY_AVAILABLE, legend="available"),
            OF_NODE.gauge("min", host.MEMORY_TOTAL, legend="total"),
            title="Memory of the host",
            good="a tenth or more is available.",
            otherwise="the kernel will kill: lower the number of loader workers.",
        ),
        time_series(
            host.JOB_MEMORY,
            OF_NODE.gauge("max", host.JOB_MEMORY, JOB_ID, legend="{{job_id}}"),
            OF_NODE.gauge("max", host.JOB_MEMORY_LIMIT, JOB_ID, legend="limit of {{job_id}}"),
            title="Memory of the jobs",
            good="well below the limit; page cache counts and is given back.",
            otherwise="growth without end is a leak in the loaders.",
            may_be_empty=_NO_CGROUP,
        ),
    ),
)
JOBS_ON_HOST = Row(
    title="Jobs on the host",
    collapsed=True,
    panels=(
        time_series(
            host.STEAL_SECONDS,
            OF_NODE.rates("sum", host.STEAL_SECONDS, legend="processors"),
            title="Processors taken by the hypervisor",
            note="Processors' worth, over all of them.",
            good="0.",
            otherwise="another machine competes: ask for a dedicated one.",
            unit=Unit.NONE,
            width=8,
        ),
        time_series(
            host.JOB_PRESSURE_SECONDS,
            OF_NODE.rates("sum", host.JOB_PRESSURE_SECONDS, JOB_ID, RESOURCE, PRESSURE),
            title="Pressure of the jobs",
            note="Share of the time in which tasks of the job waited.",
            good="below 10 %.",
            otherwise="cpu: more processors or fewer loaders; io: storage.",
            unit=Unit.RATIO,
            may_be_empty=_NO_JOB,
        ),
        time_series(
            host.JOB_THROTTLED_SECONDS,
            OF_NODE.rates("sum", host.JOB_THROTTLED_SECONDS, JOB_ID),
            title="Held back by the limit on processor time",
            good="0.",
            otherwise="raise the job's limit on processors.",
            unit=Unit.RATIO,
            may_be_empty=_NO_CGROUP,
        ),
        table(
            host.JOB_MEMORY_EVENTS,
            above_zero(
                OF_NODE.by("sum", OF_NODE.increase(host.JOB_MEMORY_EVENTS), JOB_ID, MEMORY_EVENT)
            ),
            title="Events at the limit on memory",
            note="Within the range.",
            good="empty.",
            otherwise="oom_kill: a process of the job is dead; raise the limit.",
            columns=(JOB_ID, MEMORY_EVENT),
            width=8,
            may_be_empty="a job that never reached its limit has none",
        ),
        time_series(
            host.JOB_TCP_RETRANSMITS,
            Query(
                expression=f"{OF_NODE.by('sum', OF_NODE.rate(host.JOB_TCP_RETRANSMITS), JOB_ID)}"
                f" / {OF_NODE.by('sum', OF_NODE.rate(host.JOB_TCP_SEGMENTS), JOB_ID)}",
                legend="{{job_id}}",
            ),
            title="Retransmitted share of TCP segments",
            good="below 0.1 %.",
            otherwise="packets are lost: errors of interfaces are on the fabric's board.",
            unit=Unit.RATIO,
            width=16,
            may_be_empty=_NO_JOB,
        ),
    ),
)
AGENT = Row(
    title="The agent itself",
    collapsed=True,
    panels=(
        stat(
            health.AGENT_TICK,
            OF_NODE.age(health.AGENT_TICK),
            title="Age of the last tick",
            good="a few seconds.",
            otherwise="the agent hangs: `lockstep doctor`.",
            unit=Unit.SECONDS,
        ),
        stat(
            health.AGENT_SERIES,
            OF_NODE.gauge("max", health.AGENT_SERIES, legend="series"),
            title="Series",
            good="below 2,000.",
            otherwise="detail is left out from there on.",
        ),
        stat(
            health.EVENTS_PENDING,
            OF_NODE.gauge("max", health.EVENTS_PENDING, legend="events"),
            good="near 0.",
            otherwise="the ledger cannot be reached, or refuses.",
        ),
        stat(
            health.EVENTS_SPOOL_RATIO,
            OF_NODE.gauge("max", health.EVENTS_SPOOL_RATIO, legend="full"),
            title="Spool in use",
            good="below a tenth.",
            otherwise="at 100 % events are dropped: mend the ledger first.",
        ),
        stat(
            health.DRIVER_RELEASED,
            OF_NODE.gauge("max", health.DRIVER_RELEASED, legend="released"),
            title="Driver released",
            good="0.",
            otherwise="somebody maintains the driver; take it again after that.",
        ),
        table(
            health.AGENT_INFO,
            OF_NODE.gauge("max", health.AGENT_INFO, VERSION),
            title="Agent",
            good="the version of the other nodes.",
            otherwise="finish the upgrade.",
            columns=(VERSION,),
            width=4,
            height=4,
        ),
        time_series(
            health.AGENT_CPU,
            OF_NODE.rates("sum", health.AGENT_CPU, legend="processors"),
            title="Processors used by the agent",
            good="below 0.05.",
            otherwise="the collectors beside it say which one is slow.",
            unit=Unit.NONE,
            width=8,
        ),
        time_series(
            health.AGENT_MEMORY,
            OF_NODE.gauge("max", health.AGENT_MEMORY, legend="resident"),
            title="Memory of the agent",
            good="below 150 MB.",
            otherwise="report it; a restart loses nothing.",
            width=8,
        ),
        time_series(
            health.EVENTS,
            OF_NODE.rates("sum", health.EVENTS, health.DELIVERY),
            title="Events delivered",
            per_second=True,
            good="all delivered.",
            otherwise="refused or dropped: the ledger's row of the executive board says why.",
            width=8,
        ),
        table(
            health.COLLECTOR_SUCCESS,
            column(
                health.COLLECTOR_SUCCESS,
                OF_NODE.gauge("min", health.COLLECTOR_SUCCESS, COLLECTOR),
                "works",
            ),
            column(
                health.COLLECTOR_DURATION,
                OF_NODE.gauge("max", health.COLLECTOR_DURATION, COLLECTOR),
                "duration",
            ),
            column(
                health.COLLECTOR_FAILURES,
                OF_NODE.grown(health.COLLECTOR_FAILURES, COLLECTOR),
                "failures in the range",
            ),
            title="Collectors",
            good="all work.",
            otherwise="the agent's log names the error once.",
            columns=(COLLECTOR,),
            may_be_empty="durations and failures appear on request, and with the first failure",
        ),
        table(
            health.LANE_STALLED,
            column(health.LANE_STALLED, OF_NODE.gauge("max", health.LANE_STALLED, LANE), "stalled"),
            column(health.LANE_AGE, OF_NODE.gauge("max", health.LANE_AGE, LANE), "age"),
            title="Worker threads",
            good="none stalled.",
            otherwise="a call into the driver hangs: its GPU does too.",
            columns=(LANE,),
            may_be_empty="ages are served on request",
        ),
        table(
            health.PAGES_UNREADABLE,
            OF_NODE.gauge("max", health.PAGES_UNREADABLE, REASON),
            title="Rank pages that cannot be read",
            good="0 for each reason.",
            otherwise="version: upgrade agent and library together.",
            columns=(REASON,),
            width=6,
        ),
        table(
            health.AGENT_SERIES_LEFT_OUT,
            OF_NODE.gauge("max", health.AGENT_SERIES_LEFT_OUT, health.LEFT_OUT),
            title="Series left out",
            good="zeros of rare faults only.",
            otherwise="fewer jobs a node, or --max-series higher.",
            columns=(health.LEFT_OUT,),
            width=6,
        ),
        table(
            events.LOG_READ,
            column(events.LOG_READ, OF_NODE.grown(events.LOG_READ, events.LOG), "read"),
            column(events.LOG_LOST, OF_NODE.grown(events.LOG_LOST, events.LOG), "lost"),
            title="Messages of logs",
            note="Within the range.",
            good="none lost.",
            otherwise="the kernel's log buffer is too small: log_buf_len.",
            columns=(events.LOG,),
            width=6,
        ),
        table(
            health.ARCHIVED_FILES,
            OF_NODE.grown(health.ARCHIVED_FILES, health.ARCHIVED),
            title="Files archived",
            note="Within the range.",
            good="none failed.",
            otherwise="the archive is full or away.",
            columns=(health.ARCHIVED,),
            width=6,
        ),
    ),
)
