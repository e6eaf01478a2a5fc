"""The boards of Lockstep by file: those of the layouts, and one of what no layout shows."""

import re
from collections.abc import Mapping

from lockstep_catalogue import METRICS, Kind, Label, Metric
from lockstep_catalogue.labels import CLUSTER
from lockstep_dashboards.layout import FOLDER, read_board
from lockstep_dashboards.panel import Annotation, Board, Panel, Query, Row, Variable, View

NAMES = ("executive", "on-call", "job", "node", "fabric", "monitor")
_METRIC = Label(name="metric", help="name of a metric")
_WORD = re.compile(r"\w+")
_SUBJECTS = {
    "train": "Training jobs", "gpu": "GPUs", "nvlink": "NVLink", "pcie": "PCIe",
    "fabric": "Fabric and storage", "host": "Hosts", "agent": "Agents", "ledger": "The ledger",
}  # fmt: skip


def explorer(
    boards: Mapping[str, Board],
    variables: tuple[Variable, ...],
    annotations: tuple[Annotation, ...],
) -> Board:
    """The board of the metrics that no other reads; its rows ask nothing until they are opened."""
    texts = [x.expression for board in boards.values() for y in board.panels for x in y.queries]
    drawn = frozenset(_WORD.findall(" ".join(texts)))
    left: dict[str, list[Metric]] = {}
    for metric in METRICS:
        if not drawn.intersection(metric.sample_names):
            left.setdefault(metric.name.split("_")[1], []).append(metric)
    return Board(
        uid="lockstep-explorer",
        title="Lockstep: explorer",
        description="Metrics that no other board shows, from the catalogue.",
        variables=variables,
        annotations=annotations,
        rows=tuple(
            Row(title=title, panels=(_table(title, left[subject]),), collapsed=True)
            for subject, title in _SUBJECTS.items()
            if subject in left
        ),
    )


def _table(title: str, metrics: list[Metric]) -> Panel:
    """A line a metric: the number of its series, the least, the mean and the largest value."""
    names = "|".join(
        f"{metric.name}_count" if metric.kind is Kind.HISTOGRAM else metric.name
        for metric in metrics
    )
    selector = f'{{__name__=~"{names}", {CLUSTER.name}=~"${CLUSTER.name}"}}'
    named = 'label_replace({0} by (__name__) ({1}), "metric", "$1", "__name__", "(.+)")'
    queries = tuple(
        Query(
            expression=f"sum by (metric) ({named.format(aggregation, selector)})",
            heading=heading,
            unit="short",
        )
        for aggregation, heading in (
            ("count", "series"), ("min", "least"), ("avg", "mean"), ("max", "largest"),
        )
    )  # fmt: skip
    return Panel(
        view=View.TABLE,
        title=f"{title}: what no board shows",
        description=(
            "Values now, in the units of docs/metrics.md; of a histogram its counts. Good: as on"
            " comparable nodes and in comparable jobs. Otherwise: docs/metrics.md says where a"
            f" value comes from. Series: {metrics[0].name}."
        ),
        unit="short",
        queries=queries,
        width=24,
        height=12,
        columns=(_METRIC,),
        sort=_METRIC.name,
        ascending=True,
        may_be_empty="what nothing reports has no series",
    )


def _boards() -> dict[str, Board]:
    boards = {f"{name}.json": read_board(FOLDER / f"{name}.yaml") for name in NAMES}
    monitor = boards["monitor.json"]
    rest = explorer(boards, monitor.variables, monitor.annotations)
    return {**boards, "explorer.json": rest}


BOARDS = _boards()
