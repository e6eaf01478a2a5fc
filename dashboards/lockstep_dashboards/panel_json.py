"""The JSON of panels and their queries, as Grafana 10.3 to 13 read it."""

from typing import Any

from lockstep_dashboards.links import column_links, series_links
from lockstep_dashboards.panel import Panel, Query, View
from lockstep_dashboards.view_json import view_parts

SOURCE = {"type": "prometheus", "uid": "${datasource}"}

_HIDDEN_COLUMNS = ("Time", "cluster", "job_id")


def target(panel: Panel, query: Query, ref_id: str) -> dict[str, Any]:
    """One query of a panel."""
    return {
        "refId": ref_id,
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "format": _format(panel),
        "instant": panel.is_instant,
        "range": not panel.is_instant,
        "legendFormat": query.legend or "__auto",
        # A slow step's exemplar leads to its trace; only buckets have some.
        "exemplar": panel.view is View.TIME_SERIES and "_bucket{" in query.expression,
    }


def _format(panel: Panel) -> str:
    # As heatmap Grafana takes the differences of neighbouring series: right for buckets only.
    if panel.has_buckets:
        return "heatmap"
    return "table" if panel.view is View.TABLE else "time_series"


def ref_ids(panel: Panel) -> list[str]:
    """The letters of the panel's queries."""
    return [chr(ord("A") + number) for number in range(len(panel.queries))]


def panel_fields(panel: Panel) -> dict[str, Any]:
    """Type, field configuration, options and transformations of a panel."""
    custom, options, color_mode = view_parts(panel)
    defaults = {
        "unit": panel.unit,
        "color": {"mode": color_mode},
        "custom": custom,
        "links": series_links(panel),
        "mappings": _mappings(panel),
        "min": panel.minimum,
        "max": panel.maximum,
        "thresholds": _thresholds(panel),
    }
    return {
        "type": panel.view.value,
        "fieldConfig": {"defaults": defaults, "overrides": _overrides(panel)},
        "options": options,
        "transformations": _columns(panel) if panel.view is View.TABLE else [],
    }


def _thresholds(panel: Panel) -> dict[str, Any]:
    if not panel.thresholds:
        return {"mode": "absolute", "steps": [{"color": "text"}]}
    # Grafana writes the limit of the lowest step as null, and reads it as well when it is absent.
    steps = [
        {"color": each.color} if each.at is None else {"color": each.color, "value": each.at}
        for each in panel.thresholds
    ]
    return {"mode": "absolute", "steps": steps}


def _mappings(panel: Panel) -> list[dict[str, Any]]:
    if not panel.texts:
        return []
    options = {
        f"{each.value:g}": {"color": each.color, "index": index, "text": each.text}
        for index, each in enumerate(panel.texts)
    }
    return [{"type": "value", "options": options}]


def _override(name: str, field: str, value: Any) -> dict[str, Any]:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": field, "value": value}],
    }


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """Colours of single series, links of a table's labels, units of its values."""
    colors = [
        _override(name, "color", {"fixedColor": color, "mode": "fixed"})
        for name, color in panel.colors
    ]
    links = [_override(name, "links", value) for name, value in column_links(panel).items()]
    units = [
        _override(query.heading, "unit", query.unit)
        for query in panel.queries
        if query.heading and query.unit
    ]
    return [*colors, *(links if panel.view is View.TABLE else []), *units]


def _columns(panel: Panel) -> list[dict[str, Any]]:
    """Labels in their order, then the values under their headings."""
    order = {label.name: index for index, label in enumerate(panel.columns)}
    several = len(panel.queries) > 1
    # Of one query Grafana calls the value Value, of several, joined by their labels, Value #A.
    values = [f"Value #{letter}" if several else "Value" for letter in ref_ids(panel)]
    headings = [query.heading or panel.title for query in panel.queries]
    organize = {
        "excludeByName": {name: True for name in _HIDDEN_COLUMNS if name not in order},
        "includeByName": {},
        "indexByName": order | {value: len(order) + n for n, value in enumerate(values)},
        "renameByName": dict(zip(values, headings, strict=True)),
    }
    merged = [{"id": "merge", "options": {}}] if several else []
    return [*merged, {"id": "organize", "options": organize}]
