"""Renders boards as Grafana's JSON; grafanalib's names of what Grafana knows are bound here.

Fields that Grafana fills in itself are left out, so that a diff of a board shows what changed.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from grafanalib import core

from lockstep_catalogue.palette import VERMILION
from lockstep_dashboards.links import PAGE_ADDRESSES, column_links, page_variables, series_links
from lockstep_dashboards.panel import (
    HIDDEN,
    SUMMARY,
    Annotation,
    Board,
    GridPosition,
    Panel,
    Query,
    Row,
    Variable,
    View,
    pack,
)

Json = dict[str, Any]

SOURCE = {"type": core.PLUGIN_ID_PROMETHEUS, "uid": "${datasource}"}
_DASHES = {"fill": "dash", "dash": [10, 10]}


def panel_json(panel: Panel, position: GridPosition, number: int) -> Json:
    """A panel in Grafana's JSON."""
    targets = [
        _target(panel, query, ref_id)
        for query, ref_id in zip(panel.queries, _ref_ids(panel), strict=True)
    ]
    return {
        "type": panel.view.value,
        "title": panel.title,
        "description": panel.description,
        "id": number,
        "gridPos": grid(position),
        "datasource": SOURCE,
        **({"maxDataPoints": panel.max_points} if panel.max_points else {}),
        "targets": targets,
        **({"transformations": _columns(panel)} if panel.view is View.TABLE else {}),
        "options": _options(panel),
        "fieldConfig": {"defaults": _field_defaults(panel), "overrides": _overrides(panel)},
    }


def grid(position: GridPosition) -> Json:
    """A position as Grafana writes it."""
    written: Json = core.GridPos(
        x=position.x, y=position.y, w=position.width, h=position.height
    ).to_json_data()
    return written


def _target(panel: Panel, query: Query, ref_id: str) -> Json:
    target: Json = {"refId": ref_id, "expr": query.expression}
    if panel.is_instant:
        target["instant"] = True
    if panel.view is View.TABLE:
        return target | {"format": core.TABLE_TARGET_FORMAT}
    if panel.has_buckets:
        # As heatmap Grafana takes the differences of neighbouring series: right for buckets only.
        target["format"] = "heatmap"
    # A slow step's exemplar leads to its trace; only buckets have some.
    if panel.view is View.TIME_SERIES and "_bucket{" in query.expression:
        target["exemplar"] = True
    return target | {"legendFormat": query.legend or "__auto"}


def _ref_ids(panel: Panel) -> list[str]:
    return [chr(ord("A") + number) for number in range(len(panel.queries))]


def _options(panel: Panel) -> Json:
    by = core.TableSortByField(panel.sorted_by, desc=not panel.ascending)
    stat_color = "value" if panel.thresholds or panel.texts else "none"
    last = {"legend": {"calcs": ["last"]}}
    options: dict[View, Json] = {
        View.STAT: {"colorMode": stat_color, "graphMode": "none"},
        View.BAR_GAUGE: {
            "displayMode": core.GAUGE_DISPLAY_MODE_BASIC,
            "orientation": core.ORIENTATION_HORIZONTAL,
        },
        View.TABLE: {"sortBy": [by.to_json_data()]},
        View.STATE_TIMELINE: {**last, "showValue": "never"},
        View.TIME_SERIES: {**last, "tooltip": {"mode": "multi", "sort": "desc"}},
        View.HEAT_MAP: _heat_map_options(panel),
    }
    return options[panel.view]


def _heat_map_options(panel: Panel) -> Json:
    ends = {"min": panel.minimum, "max": panel.maximum}
    return {
        "color": {
            "mode": "opacity",  # schemes turn round on a dark ground, and mean the contrary there
            "fill": VERMILION,
            "scale": "exponential",
            "exponent": 0.5,
            **_drop_nulls(ends),
        },
        "showValue": "never",
        "yAxis": {"axisPlacement": "left", "unit": panel.unit},
    }


def _field_defaults(panel: Panel) -> Json:
    custom: Json = {}
    if panel.view is View.TIME_SERIES:
        custom["fillOpacity"] = 60 if panel.stacked else 5
        if panel.stacked:
            custom["stacking"] = {"group": "A", "mode": "normal"}
        if panel.thresholds:
            custom["thresholdsStyle"] = {"mode": "dashed"}
    if panel.view is View.STATE_TIMELINE:
        custom["fillOpacity"] = 80
    defaults = {
        "unit": panel.unit,
        "min": panel.minimum,
        "max": panel.maximum,
        "decimals": panel.decimals,
        "noValue": panel.no_value or None,
        "color": {"mode": "thresholds"} if panel.view is View.STATE_TIMELINE else None,
        "thresholds": _thresholds(panel),
        "mappings": None if panel.texts_of else _mappings(panel) or None,
        "links": series_links(panel) or None,
        "custom": custom or None,
    }
    return _drop_nulls(defaults)


def _drop_nulls(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _thresholds(panel: Panel) -> Json | None:
    """The limits; without any a bar has the colour of text, and not Grafana's green and red."""
    steps = [{"color": each.color, "value": each.at} for each in panel.thresholds]
    if not steps and panel.view not in {View.BAR_GAUGE, View.STATE_TIMELINE}:
        return None
    return {"mode": "absolute", "steps": steps or [{"color": "text", "value": None}]}


def _mappings(panel: Panel) -> list[Json]:
    if not panel.texts:
        return []
    options = {
        f"{each.value:g}": {"color": each.color, "index": index, "text": each.text}
        for index, each in enumerate(panel.texts)
    }
    return [{"type": "value", "options": options}]


def _override(name: str, field: str, value: Any) -> Json:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": field, "value": value}],
    }


def _overrides(panel: Panel) -> list[Json]:
    colors = [
        _override(name, "color", {"fixedColor": color, "mode": "fixed"})
        for name, color in panel.colors
    ]
    dashes = [_override(name, "custom.lineStyle", _DASHES) for name in panel.dashed]
    links = [_override(name, "links", value) for name, value in column_links(panel).items()]
    units = [
        _override(query.heading, "unit", query.unit)
        for query in panel.queries
        if query.heading and query.unit
    ]
    texts = [_override(panel.texts_of, "mappings", _mappings(panel))] if panel.texts_of else []
    if panel.view is View.TABLE:
        means = {name: {"index": n, "text": x} for n, (name, x) in enumerate(panel.summaries)}
        if means:
            texts.append(_override(SUMMARY, "mappings", [{"type": "value", "options": means}]))
        # The sentence is for a table without rows, and not for a cell without a value.
        empty = [_override(name, "noValue", "") for name in panel.value_names if panel.no_value]
        texts += links + empty
    return [*colors, *dashes, *texts, *units]


def _columns(panel: Panel) -> list[Json]:
    order = {label.name: index for index, label in enumerate(panel.columns)}
    several = len(panel.queries) > 1
    # Of one query Grafana calls the value Value, of several, joined by their labels, Value #A.
    values = [f"Value #{letter}" if several else "Value" for letter in _ref_ids(panel)]
    ones = (value for value, is_one in zip(values, panel.ones, strict=True) if is_one)
    excluded = [*HIDDEN, *ones]
    organize = {
        "excludeByName": {name: True for name in excluded if name not in order},
        "indexByName": order | {value: len(order) + n for n, value in enumerate(values)},
        "renameByName": dict(zip(values, panel.value_names, strict=True)),
    }
    merged = [{"id": "merge", "options": {}}] if several else []
    return [*merged, {"id": "organize", "options": organize}]


SCHEMA_VERSION = 39  # the classic schema that Grafana 10.3 reads and 13 still converts
GENERATED_NOTE = "Generated by `lockstep dashboards generate`; change the layout, not this file."
_TAG = "lockstep"
_LINE_WIDTH = 100


def board_json(board: Board) -> str:
    """The text of a board's file; the same board always gives the same text."""
    return _write(render(board)) + "\n"


def _write(value: Any, indent: str = "") -> str:
    line = json.dumps(value)
    if not isinstance(value, dict | list) or len(indent) + len(line) <= _LINE_WIDTH:
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {_write(each, inner)}" for name, each in value.items()]
    else:
        parts = [_write(each, inner) for each in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}{end}"


def render(board: Board) -> Json:
    """A board in the classic JSON that Grafana 10.3 to 13 load."""
    link = core.DashboardLink(
        title="Lockstep", tags=[_TAG], asDropdown=True, includeVars=True, keepTime=True
    )
    return {
        # First, so that whoever opens the file reads that it is generated.
        "description": f"{GENERATED_NOTE} {board.description}",
        "title": board.title,
        "uid": board.uid,
        "tags": [_TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "graphTooltip": core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        "refresh": board.refresh,
        "time": core.Time(f"now-{board.range}", "now").to_json_data(),
        "timezone": "browser",
        "links": [link.to_json_data()],
        "templating": {"list": _variables(board)},
        "annotations": {"list": list(map(_annotation, board.annotations))},
        "panels": _panels(board),
    }


def _panels(board: Board) -> list[Json]:
    items: list[Json] = []
    inside = items
    # Ids rise with the position: links to a panel survive a change of another panel's query.
    for number, (item, position) in enumerate(pack(board.rows, all_open=False), start=1):
        if not isinstance(item, Row):
            inside.append(panel_json(item, position, number))
            continue
        heading = {
            "type": core.ROW_TYPE,
            "title": item.title,
            "id": number,
            "gridPos": grid(position),
            "collapsed": item.collapsed,
            "panels": list[Json](),
        }
        items.append(heading)
        inside = heading["panels"] if item.collapsed else items
    return items


def _variables(board: Board) -> list[Json]:
    source = {
        "name": "datasource",  # the Prometheus that is Grafana's default, until one is chosen
        "label": "Data Source",
        "type": "datasource",
        "query": core.PLUGIN_ID_PROMETHEUS,
    }
    # Restricts every query to labels of the reader's choice.
    filters = {"name": "filters", "label": "Filters", "type": "adhoc", "datasource": SOURCE}
    chosen = [source, *map(_label_variable, board.variables), filters]
    return [*chosen, *map(_address_variable, page_variables(board.panels))]


def _address_variable(name: str) -> Json:
    title, address = PAGE_ADDRESSES[name]
    return {"name": name, "label": title, "type": "textbox", "query": address}


def _label_variable(variable: Variable) -> Json:
    definition = f"label_values({variable.source}, {variable.label.name})"
    everything = {
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }
    return {
        "name": variable.name,
        "label": variable.title,
        "type": "query",
        "datasource": SOURCE,
        "definition": definition,
        "query": {"query": definition, "refId": variable.name},
        # A job that ended is still found in its window.
        "refresh": core.REFRESH_ON_TIME_RANGE_CHANGE,
        "sort": core.SORT_ALPHA_ASC,
        **(everything if variable.several else {}),
    }


def _annotation(definition: Annotation) -> Json:
    return {
        "name": definition.title,
        "datasource": SOURCE,
        "enable": True,
        "expr": definition.expression,  # read by Grafana 10; later ones read the target
        "iconColor": definition.color,
        "target": {
            "datasource": SOURCE,
            "expr": definition.expression,
            "refId": "Anno",
            "legendFormat": definition.heading,
        },
        "titleFormat": definition.heading,
    }


_FOLDER = "Lockstep"
_LABEL, _LABEL_VALUE = "grafana_dashboard", "1"
_FOLDER_ANNOTATION = "grafana_folder"
MAX_CONFIGMAP_BYTES = 1 << 20
"""What etcd takes as one object."""
_BOARDS_FOLDER = "/etc/grafana/provisioning/dashboards/lockstep"
_PROVIDER = f"""# {GENERATED_NOTE}
# Copy this folder to /etc/grafana/provisioning; the data source is chosen on the boards.
apiVersion: 1
providers:
  - name: lockstep
    folder: {_FOLDER}
    folderUid: lockstep
    type: file
    allowUiUpdates: false
    updateIntervalSeconds: 60
    options:
      path: {_BOARDS_FOLDER}
"""
_SOURCE = f"""# {GENERATED_NOTE}
apiVersion: 1
datasources:
  - name: Prometheus
    uid: lockstep-prometheus
    type: prometheus
    access: proxy
    url: http://localhost:9090
    isDefault: true
    jsonData:
      httpMethod: POST
      timeInterval: 15s
"""

Boards = Mapping[str, Board]


def as_json(boards: Boards) -> dict[str, str]:
    """One file a board."""
    return {name: board_json(board) for name, board in boards.items()}


def as_configmaps(boards: Boards) -> dict[str, str]:
    """One ConfigMap a board, and a kustomization that names them.

    They are JSON, which YAML contains, so that no quoting can change a board.
    """
    texts = {f"{board.uid}.yaml": _configmap(name, board) for name, board in boards.items()}
    resources = "".join(f"  - {name}\n" for name in texts)
    kustomization = (
        f"# {GENERATED_NOTE}\n"
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources:\n{resources}"
    )
    return texts | {"kustomization.yaml": kustomization}


def _configmap(name: str, board: Board) -> str:
    content = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": board.uid,
            "labels": {_LABEL: _LABEL_VALUE, "app.kubernetes.io/part-of": "lockstep"},
            "annotations": {_FOLDER_ANNOTATION: _FOLDER},
        },
        "data": {name: board_json(board)},
    }
    text = json.dumps(content, indent=2) + "\n"
    assert len(text.encode()) < MAX_CONFIGMAP_BYTES, board.uid
    return text


def as_provisioning(boards: Boards) -> dict[str, str]:
    """The folder that Grafana reads at start: a provider, a data source, the boards."""
    files = {f"dashboards/lockstep/{name}": board_json(board) for name, board in boards.items()}
    return {"dashboards/lockstep.yaml": _PROVIDER, "datasources/lockstep.yaml": _SOURCE} | files


FORMATS: Mapping[str, Callable[[Boards], dict[str, str]]] = {
    "json": as_json,
    "configmap": as_configmaps,
    "provisioning": as_provisioning,
}
