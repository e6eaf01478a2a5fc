"""Links between boards: from a job, node, GPU or port to its board, with time and variables."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from lockstep_catalogue import Label
from lockstep_catalogue.labels import CLUSTER, DEVICE, GPU, JOB_ID, NODE
from lockstep_dashboards.panel import Panel, View
from lockstep_dashboards.scope import Scope

JOB_BOARD, NODE_BOARD, FABRIC_BOARD = "lockstep-job", "lockstep-node", "lockstep-fabric"

# The board that a label leads to, and the labels that it needs besides.
_BOARDS: dict[Label, tuple[str, tuple[Label, ...]]] = {
    JOB_ID: (JOB_BOARD, ()),
    NODE: (NODE_BOARD, ()),
    GPU: (NODE_BOARD, (NODE,)),
    DEVICE: (FABRIC_BOARD, (NODE,)),
}
# What every link carries: the time range, the data source and the chosen clusters.
_KEPT = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"


def column_links(panel: Panel) -> dict[str, list[dict[str, Any]]]:
    """The links of a table's columns, by the column's label."""
    return {
        label.name: [_link(label, {each: _read_from_row(each) for each in panel.columns})]
        for label in panel.columns
        if _can_lead(label, panel.columns)
    }


def series_links(panel: Panel) -> list[dict[str, Any]]:
    """The links of a graph's series, by the labels that its legend names."""
    if panel.view in {View.TABLE, View.TEXT, View.HEAT_MAP}:
        return []
    named = set.intersection(
        *(set(re.findall(r"\{\{(\w+)\}\}", query.legend)) for query in panel.queries)
    )
    labels = tuple(label for label in _BOARDS if label.name in named)
    return [
        _link(label, {each: f"${{__field.labels.{each.name}}}" for each in labels})
        for label in labels
        if _can_lead(label, labels)
    ]


def _can_lead(label: Label, present: tuple[Label, ...]) -> bool:
    return label in _BOARDS and all(each in present for each in _BOARDS[label][1])


def _read_from_row(label: Label) -> str:
    return f"${{__data.fields.{label.name}}}"


def _link(label: Label, values: dict[Label, str]) -> dict[str, Any]:
    board, others = _BOARDS[label]
    chosen = [f"var-{each.name}={values[each]}" for each in (*others, label)]
    url = "&".join([f"/d/{board}?{_KEPT}", *chosen])
    return {"title": f"Open this {label.name.removesuffix('_id')}", "url": url}


def page_address(label: Label, row: Mapping[str, object], panel: Panel, scope: Scope) -> str:
    """The address that a cell leads to on a page; empty where its label leads nowhere."""
    if not _can_lead(label, panel.columns):
        return ""
    board, others = _BOARDS[label]
    window = {"from": f"{scope.start * 1000:.0f}", "to": f"{scope.end * 1000:.0f}"}
    carried = [(f"var-{name}", value) for name, x in scope.chosen.items() for value in x]
    clusters = [pair for pair in carried if pair[0] == f"var-{CLUSTER.name}"]
    chosen = [f"var-{x.name}={quote(str(row.get(x.name, '')), safe='')}" for x in (*others, label)]
    return "&".join([f"/d/{board}?{urlencode([*window.items(), *clusters])}", *chosen])
