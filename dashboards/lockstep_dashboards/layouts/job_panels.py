"""Kinds of panels that the closed rows of the job board repeat."""

from typing import Unpack

from lockstep_catalogue import Label, Metric, Unit
from lockstep_catalogue.job_ranks import PART_OF_MODEL
from lockstep_catalogue.labels import NODE
from lockstep_dashboards.layouts.job_queries import CHOSEN
from lockstep_dashboards.panel import Panel, Query
from lockstep_dashboards.selection import MOST_ROWS, above_zero, largest
from lockstep_dashboards.series_panels import PanelFields, table, time_series

NO_TROUBLE = "a job without such trouble has none"


class GraphFields(PanelFields, total=False):
    """Fields of a graph that are passed on as they are."""

    title: str
    note: str
    unit: Unit | str | None
    per_second: bool


def graph(
    metric: Metric, query: Query, good: str, otherwise: str, **fields: Unpack[GraphFields]
) -> Panel:
    """A graph of a third of the width."""
    return time_series(metric, query, good=good, otherwise=otherwise, width=8, **fields)


def counted_by_node(metric: Metric, *labels: Label, title: str, otherwise: str) -> Panel:
    """Counts of trouble by node, within the range."""
    return table(
        metric,
        above_zero(CHOSEN.by("sum", CHOSEN.increase(metric), NODE, *labels)),
        title=title,
        note="Within the range.",
        good="empty.",
        otherwise=otherwise,
        columns=(NODE, *labels),
        width=8,
        may_be_empty=NO_TROUBLE,
    )


def present(metric: Metric, *labels: Label, title: str, otherwise: str) -> Panel:
    """What is not zero now, by node."""
    return table(
        metric,
        above_zero(CHOSEN.by("max", CHOSEN.of(metric), NODE, *labels)),
        title=title,
        good="empty.",
        otherwise=otherwise,
        columns=(NODE, *labels),
        width=8,
        may_be_empty=NO_TROUBLE,
    )


def each_part(metric: Metric) -> Query:
    """A gauge of the parts of the model on each node."""
    return largest(CHOSEN.by("max", CHOSEN.of(metric), NODE, PART_OF_MODEL), MOST_ROWS)
