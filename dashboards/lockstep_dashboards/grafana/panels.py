"""Panels and their queries as grafanalib writes them, with what it cannot say in ``extraJson``."""

from typing import Any

from grafanalib import core

from lockstep_dashboards.grafana.views import parts_of_view
from lockstep_dashboards.links import column_links, series_links
from lockstep_dashboards.packing import GridPosition
from lockstep_dashboards.panel import SUMMARY, Panel, Query, View

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panel_json(panel: Panel, position: GridPosition, number: int) -> dict[str, Any]:
    """A panel in Grafana's JSON."""
    view = parts_of_view(panel)
    options = {"options": view.options} if view.options else {}
    rendered: Any = view.grafanalib_class(
        id=number,
        title=panel.title,
        description=panel.description,
        gridPos=grid(position),
        maxDataPoints=panel.max_points or None,
        dataSource=SOURCE,
        targets=[
            _target(panel, query, ref_id)
            for query, ref_id in zip(panel.queries, _ref_ids(panel), strict=True)
        ],
        transformations=_columns(panel) if panel.view is View.TABLE else [],
        thresholds=_thresholds(panel),
        extraJson={"type": panel.view.value, "fieldConfig": _field_config(panel)} | options,
        **view.arguments,
    )
    written: dict[str, Any] = rendered.to_json_data()
    return written


def grid(position: GridPosition) -> core.GridPos:
    """A position in grafanalib's words."""
    return core.GridPos(x=position.x, y=position.y, w=position.width, h=position.height)


def _target(panel: Panel, query: Query, ref_id: str) -> dict[str, Any]:
    """One query of a panel."""
    target = core.Target(
        refId=ref_id,
        datasource=SOURCE,
        expr=query.expression,
        format=_format(panel),
        instant=panel.is_instant,
        legendFormat=query.legend or "__auto",
        intervalFactor=1,  # grafanalib's own 2 would ask for half of the points
    )
    written: dict[str, Any] = target.to_json_data()
    return written | {
        "editorMode": "code",
        "range": not panel.is_instant,
        # A slow step's exemplar leads to its trace; only buckets have some.
        "exemplar": panel.view is View.TIME_SERIES and "_bucket{" in query.expression,
    }


def _format(panel: Panel) -> str:
    # As heatmap Grafana takes the differences of neighbouring series: right for buckets only.
    if panel.has_buckets:
        return "heatmap"
    return "table" if panel.view is View.TABLE else "time_series"


def _ref_ids(panel: Panel) -> list[str]:
    """The letters of the panel's queries."""
    return [chr(ord("A") + number) for number in range(len(panel.queries))]


def _thresholds(panel: Panel) -> list[dict[str, Any]]:
    steps = [{"color": each.color, "value": each.at} for each in panel.thresholds]
    return steps or [{"color": "text", "value": None}]


def _field_config(panel: Panel) -> dict[str, Any]:
    """What grafanalib's classes cannot say of the series, or each says in its own way."""
    defaults = {
        "unit": panel.unit,
        "color": {"mode": parts_of_view(panel).color_mode},
        "custom": parts_of_view(panel).custom,
        "links": series_links(panel),
        "mappings": [] if panel.texts_of else _mappings(panel),
        "decimals": panel.decimals,
        "noValue": panel.no_value or None,
        "min": panel.minimum,
        "max": panel.maximum,
    }
    return {"defaults": defaults, "overrides": _overrides(panel)}


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
    texts = [_override(panel.texts_of, "mappings", _mappings(panel))] if panel.texts_of else []
    if panel.view is View.TABLE:
        means = {name: {"index": n, "text": x} for n, (name, x) in enumerate(panel.summaries)}
        if means:
            texts.append(_override(SUMMARY, "mappings", [{"type": "value", "options": means}]))
        # The sentence is for a table without rows, and not for a cell without a value.
        empty = [_override(name, "noValue", "") for name in panel.value_names if panel.no_value]
        texts += links + empty
    return [*colors, *texts, *units]


def _columns(panel: Panel) -> list[dict[str, Any]]:
    """Labels in their order, then the values under their headings."""
    order = {label.name: index for index, label in enumerate(panel.columns)}
    several = len(panel.queries) > 1
    # Of one query Grafana calls the value Value, of several, joined by their labels, Value #A.
    values = [f"Value #{letter}" if several else "Value" for letter in _ref_ids(panel)]
    ones = (value for value, is_one in zip(values, panel.ones, strict=True) if is_one)
    excluded = [*panel.hidden, *ones]
    organize = {
        "excludeByName": {name: True for name in excluded if name not in order},
        "includeByName": {},
        "indexByName": order | {value: len(order) + n for n, value in enumerate(values)},
        "renameByName": dict(zip(values, panel.value_names, strict=True)),
    }
    merged = [{"id": "merge", "options": {}}] if several else []
    return [*merged, {"id": "organize", "options": organize}]
