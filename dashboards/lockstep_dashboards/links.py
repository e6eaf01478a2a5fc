"""Links from a job, node, GPU, port or alert to what answers: a board, a runbook, the ledger."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from lockstep_catalogue import Label
from lockstep_catalogue.foreign import ALERT_NAME
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
# Other pages that a label leads to: the variable with their address, and the rest of the address.
_PAGES = {ALERT_NAME: ("runbooks", "/{}.md"), JOB_ID: ("ledger", "/jobs/{}")}
PAGE_ADDRESSES = {
    "runbooks": ("Runbooks", "http://localhost:9095/runbooks"),
    "ledger": ("Ledger", "http://localhost:9450"),
}
"""Title and default address of each such variable."""
# What every link to a board carries: the time range, the data source and the chosen clusters.
_KEPT = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"


def column_links(panel: Panel) -> dict[str, list[dict[str, Any]]]:
    """The links of a table's columns, by the column's label."""
    links = {label.name: list(_links_of(label, panel)) for label in panel.columns}
    return {name: found for name, found in links.items() if found}


def page_variables(panels: Iterable[Panel]) -> list[str]:
    """The variables with addresses of other pages that columns of some panels lead to."""
    columns = {label for panel in panels for label in panel.columns}
    return [_PAGES[label][0] for label in _PAGES if label in columns]


def _links_of(label: Label, panel: Panel) -> Iterator[dict[str, Any]]:
    if _can_lead(label, panel.columns):
        yield _link(label, {each: _read_from_row(each) for each in panel.columns})
    if label in _PAGES:
        name, rest = _PAGES[label]
        url = f"${{{name}}}{rest.format(_read_from_row(label))}"
        yield {"title": f"Open its page in the {name}", "url": url, "targetBlank": True}


def series_links(panel: Panel) -> list[dict[str, Any]]:
    """The links of a graph's series, by the labels that its legend names."""
    if panel.view in {View.TABLE, View.HEAT_MAP}:
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


def cell_links(
    label: Label, row: Mapping[str, object], panel: Panel, scope: Scope, bases: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Name and address of each page that a cell leads to, where its base is known."""
    found = []
    if "boards" in bases and (address := _board_address(label, row, panel, scope)):
        found.append(("board", bases["boards"] + address))
    name, rest = _PAGES.get(label, ("", ""))
    if name in bases:
        value = quote(str(row.get(label.name, "")), safe="")
        found.append((name.removesuffix("s"), bases[name] + rest.format(value)))
    return found


def _board_address(label: Label, row: Mapping[str, object], panel: Panel, scope: Scope) -> str:
    if not _can_lead(label, panel.columns):
        return ""
    board, others = _BOARDS[label]
    window = {"from": f"{scope.start * 1000:.0f}", "to": f"{scope.end * 1000:.0f}"}
    carried = [(f"var-{name}", value) for name, x in scope.chosen.items() for value in x]
    clusters = [pair for pair in carried if pair[0] == f"var-{CLUSTER.name}"]
    chosen = [f"var-{x.name}={quote(str(row.get(x.name, '')), safe='')}" for x in (*others, label)]
    return "&".join([f"/d/{board}?{urlencode([*window.items(), *clusters])}", *chosen])
