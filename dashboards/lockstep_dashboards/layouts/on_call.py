"""The board of whoever is paged: what fires, which jobs suffer, and on which nodes."""

from dataclasses import replace

from lockstep_catalogue import (
    Unit,
    health,
    ledger,
)
from lockstep_catalogue.labels import (
    CLUSTER,
    JOB_ID,
    NODE,
    QUEUE,
    VERDICT,
)
from lockstep_catalogue.ledger import SLO
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import by, one_of
from lockstep_catalogue.recorded_objectives import CURRENT_BURN_RATE
from lockstep_dashboards.annotations import annotations
from lockstep_dashboards.colors import BAD, GOOD, WARNING
from lockstep_dashboards.layouts.jobs_tables import deadlines_table, job_states, jobs_table
from lockstep_dashboards.layouts.ledger_panels import COUNTS_AGE
from lockstep_dashboards.layouts.on_call_faults import FAILURES, TROUBLED_NODES
from lockstep_dashboards.links import ON_CALL_BOARD
from lockstep_dashboards.panel import Board, Panel, Query, Row, Threshold, View
from lockstep_dashboards.selection import MOST_ROWS, Selection, one_value
from lockstep_dashboards.series_panels import bar_gauge, stat, time_series
from lockstep_dashboards.variables import CLASSES_OF_JOBS, THIS_CLUSTER, cluster_variable

_ALL = Selection((THIS_CLUSTER,), ())
_NODES = Selection((THIS_CLUSTER,), (CLUSTER, NODE))
_JOBS = Selection((THIS_CLUSTER,), (CLUSTER, JOB_ID))
_ALERT = Label(name="alertname", help="name of the alert")
_SEVERITY = Label(name="severity", help="critical wakes somebody, warning makes a ticket")
_FIRING = 'ALERTS{alertstate="firing", cluster=~"$cluster"}'
_FRESH_SECONDS = 60
_NO_TROUBLE = "a cluster without trouble has none"
_BAD = one_of(VERDICT, "degraded", "failed")


def _alerts_table() -> Panel:
    alerts = by("sum", _FIRING, _SEVERITY, _ALERT, JOB_ID, NODE)
    return Panel(
        view=View.TABLE,
        title="Firing alerts",
        description="Alerts that fire now, with their job and node. Good: none."
        " Otherwise: the page links the runbook of the alert; take the critical ones first."
        " Series: ALERTS, Prometheus' own.",
        unit="short",
        queries=(Query(expression=f"topk({MOST_ROWS}, {alerts})", heading="alerts"),),
        columns=(_SEVERITY, _ALERT, JOB_ID, NODE),
        width=24,
        height=8,
        may_be_empty=_NO_TROUBLE,
    )


def _num_alerts() -> Panel:
    return Panel(
        view=View.STAT,
        title="Alerts by severity",
        description="Good: none, and no critical one for a week."
        " Otherwise: the table beside it names them. Series: ALERTS, Prometheus' own.",
        unit="short",
        queries=(Query(expression=by("count", _FIRING, _SEVERITY), legend="{{severity}}"),),
        width=4,
        height=8,
        may_be_empty=_NO_TROUBLE,
        thresholds=(Threshold(color=GOOD), Threshold(color=BAD, at=1)),
    )


_FRESH = f"count (time() - {_ALL.of(health.AGENT_TICK)} < {_FRESH_SECONDS})"
_NOW = Row(
    title="Now",
    panels=(
        _num_alerts(),
        stat(
            health.AGENT_TICK,
            one_value(f"{_FRESH} / count ({_ALL.over_range('last', health.AGENT_INFO)})", "nodes"),
            title="Nodes that are watched",
            note="Agents that rendered in the last minute, of all that were seen in the range.",
            good="100 %.",
            otherwise="the row of nodes lists the silent ones; a node that is gone is a fault too.",
            unit=Unit.RATIO,
            thresholds=(Threshold(color=BAD), Threshold(color=GOOD, at=0.99)),
            height=8,
        ),
        replace(COUNTS_AGE, height=8),
        bar_gauge(
            CURRENT_BURN_RATE,
            Query(expression=_ALL.by("max", _ALL.of(CURRENT_BURN_RATE), SLO), legend="{{slo}}"),
            title="Burn rate now",
            unit=Unit.NONE,
            good="below 1: the budget lasts its period.",
            otherwise="at 10 the 28 days' budget is gone in three; the runbook of the objective"
            " lists what to do.",
            thresholds=(
                Threshold(color=GOOD),
                Threshold(color=WARNING, at=1),
                Threshold(color=BAD, at=6),
            ),
            minimum=0,
            width=12,
            height=8,
            shows_windows=True,
        ),
        _alerts_table(),
    ),
)
_JOB_ROW = Row(title="Jobs", panels=(jobs_table(), job_states(), deadlines_table()))
_QUEUE_ROW = Row(
    title="Queue",
    collapsed=True,
    panels=(
        time_series(
            ledger.JOBS,
            Query(
                expression=by("sum", _ALL.of(ledger.JOBS), ledger.JOB_STATUS),
                legend="{{job_status}}",
            ),
            title="Jobs by status",
            good="few pending for hours.",
            otherwise="pending grows while GPUs are idle: the scheduler, or drained nodes.",
            stacked=True,
            width=8,
        ),
        time_series(
            ledger.REQUEUES,
            Query(
                expression=by(
                    "sum", _ALL.increase(ledger.REQUEUES, window="1h"), ledger.REQUEUED_AFTER
                ),
                legend="{{requeued_after}}",
            ),
            title="Requeues an hour",
            good="near none.",
            otherwise="infra: look at the row of nodes.",
            unit=Unit.NONE,
            width=8,
        ),
        time_series(
            ledger.PREEMPTIONS,
            Query(
                expression=by("sum", _ALL.increase(ledger.PREEMPTIONS, window="1h"), QUEUE),
                legend="{{queue}}",
            ),
            title="Preemptions an hour",
            good="only in queues that are meant to be preempted.",
            otherwise="ask who raised a priority.",
            unit=Unit.NONE,
            width=8,
        ),
    ),
)

ON_CALL = Board(
    uid=ON_CALL_BOARD,
    title="Lockstep: on call",
    description="What fires, which jobs suffer, and on which nodes.",
    variables=(cluster_variable(health.AGENT_INFO), CLASSES_OF_JOBS),
    rows=(_NOW, _JOB_ROW, FAILURES, TROUBLED_NODES, _QUEUE_ROW),
    annotations=annotations(_ALL),
    range="6h",
)
