"""Panels about the ledger: whether what it counts can be believed."""

from lockstep_catalogue import Label, Metric, Unit, ledger, ledger_service
from lockstep_catalogue.labels import VERSION
from lockstep_catalogue.promql import LE, by, rate, select
from lockstep_dashboards.panel import Panel, Query
from lockstep_dashboards.selection import one_value
from lockstep_dashboards.series_panels import stat, table, time_series
from lockstep_dashboards.variables import THIS_CLUSTER


def _rates(metric: Metric, label: Label) -> Query:
    return Query(
        expression=by("sum", rate(metric, "$__rate_interval"), label),
        legend=f"{{{{{label.name}}}}}",
    )


COUNTS_AGE: Panel = stat(
    ledger_service.REFRESHED,
    one_value(f"time() - max ({select(ledger_service.REFRESHED)})", "age"),
    title="Age of the ledger's counts",
    good="under a minute.",
    otherwise="the ledger is down, or its store is slow: objectives are then blind.",
    unit=Unit.SECONDS,
)
LEDGER_PANELS: tuple[Panel, ...] = (
    COUNTS_AGE,
    stat(
        ledger_service.DEAD_LETTERS,
        one_value(f"max ({select(ledger_service.DEAD_LETTERS)})", "refused"),
        good="0.",
        otherwise="`lockstep ledger dead-letters` says what was refused, and why.",
    ),
    stat(
        ledger_service.EVENTS_STORED,
        one_value(f"max ({select(ledger_service.EVENTS_STORED)})", "events"),
        good="rising while jobs run.",
        otherwise="the agents' spools say what waits: row of agents of the node board.",
    ),
    table(
        ledger_service.LEDGER_INFO,
        one_value(by("max", select(ledger_service.LEDGER_INFO), VERSION, ledger_service.STORE), ""),
        title="Ledgers",
        good="one version.",
        otherwise="finish the upgrade.",
        columns=(VERSION, ledger_service.STORE),
        height=4,
    ),
    time_series(
        ledger_service.EVENTS,
        _rates(ledger_service.EVENTS, ledger_service.INGEST),
        title="Events received",
        per_second=True,
        good="a few a second and node that runs jobs.",
        otherwise="none at all: the token, or the address that the agents send to.",
        width=8,
    ),
    time_series(
        ledger_service.REFUSED,
        _rates(ledger_service.REFUSED, ledger_service.REFUSAL),
        title="Refusals",
        per_second=True,
        good="none.",
        otherwise="the reason names the mistake; docs/event-delivery.md lists them.",
        width=8,
    ),
    time_series(
        ledger_service.REQUESTS,
        _rates(ledger_service.REQUESTS, ledger_service.HTTP_STATUS),
        title="Requests by class of answer",
        per_second=True,
        good="2xx.",
        otherwise="5xx: read the ledger's log.",
        width=8,
    ),
    time_series(
        ledger_service.COMMIT_DURATION,
        *(
            Query(
                expression=f"histogram_quantile({quantile}, "
                f"{by('sum', rate(ledger_service.COMMIT_DURATION, '$__rate_interval'), LE)})",
                legend=f"p{quantile * 100:g}",
            )
            for quantile in (0.5, 0.99)
        ),
        title="Duration of commits",
        good="p99 under 100 ms.",
        otherwise="the store's disk is slow or shared.",
    ),
    time_series(
        ledger.JOBS,
        Query(
            expression=by("sum", select(ledger.JOBS, THIS_CLUSTER), ledger.JOB_STATUS),
            legend="{{job_status}}",
        ),
        title="Jobs that are not settled",
        good="ended ones settle within minutes.",
        otherwise="an ended job that does not settle waits for events of its last nodes.",
        stacked=True,
    ),
)
