"""The JSON of panels, variables and annotations, as Grafana 10.3 to 13 read it."""

from typing import Any

from lockstep_dashboards.panel import Annotation, Panel, Query, Variable, View

SOURCE = {"type": "prometheus", "uid": "${datasource}"}

_FORMATS = {View.TABLE: "table", View.HEAT_MAP: "heatmap"}
_HIDDEN_COLUMNS = ("Time", "cluster", "job_id")
_THRESHOLDS = {"mode": "absolute", "steps": [{"color": "text"}]}
_LINES = {
    "axisPlacement": "auto",
    "drawStyle": "line",
    "gradientMode": "none",
    "lineInterpolation": "linear",
    "lineWidth": 1,
    "pointSize": 4,
    "scaleDistribution": {"type": "linear"},
    "showPoints": "auto",
    "spanNulls": False,  # a gap in the scrapes stays a gap
}


def target(panel: Panel, query: Query, ref_id: str) -> dict[str, Any]:
    """One query of a panel."""
    is_instant = panel.view is View.TABLE
    return {
        "refId": ref_id,
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "format": _FORMATS.get(panel.view, "time_series"),
        "instant": is_instant,
        "range": not is_instant,
        "legendFormat": query.legend or "__auto",
    }


def panel_fields(panel: Panel) -> dict[str, Any]:
    """Type, field configuration, options and transformations of a panel."""
    custom, options, color = {
        View.STAT: _stat,
        View.TIME_SERIES: _time_series,
        View.HEAT_MAP: _heat_map,
        View.TABLE: _table,
    }[panel.view](panel)
    defaults = {
        "unit": panel.unit,
        "color": {"mode": color},
        "custom": custom,
        "thresholds": _THRESHOLDS,
    }
    return {
        "type": panel.view.value,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "transformations": _columns(panel) if panel.view is View.TABLE else [],
    }


_Parts = tuple[dict[str, Any], dict[str, Any], str]


def _stat(panel: Panel) -> _Parts:
    del panel
    options = {
        "colorMode": "none",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    }
    return {}, options, "thresholds"


def _time_series(panel: Panel) -> _Parts:
    stacking = {"group": "A", "mode": "normal" if panel.stacked else "none"}
    custom = {**_LINES, "fillOpacity": 60 if panel.stacked else 5, "stacking": stacking}
    options = {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return custom, options, "palette-classic"


def _heat_map(panel: Panel) -> _Parts:
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "exponent": 0.5,
            "fill": "dark-orange",
            "mode": "scheme",
            "reverse": False,
            "scale": "exponential",
            "scheme": "Oranges",
            "steps": 64,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": panel.unit},
    }
    return {"scaleDistribution": {"type": "linear"}}, options, "palette-classic"


def _table(panel: Panel) -> _Parts:
    custom = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}
    options = {
        "cellHeight": "sm",
        "footer": {"countRows": False, "fields": "", "reducer": ["sum"], "show": False},
        "showHeader": True,
        "sortBy": [{"desc": True, "displayName": panel.title}],
    }
    return custom, options, "thresholds"


def _columns(panel: Panel) -> list[dict[str, Any]]:
    """Labels in their order, then the value under the panel's title."""
    order = {label.name: index for index, label in enumerate(panel.columns)}
    organize = {
        "excludeByName": dict.fromkeys(_HIDDEN_COLUMNS, True),
        "includeByName": {},
        "indexByName": {**order, "Value": len(order)},
        "renameByName": {"Value": panel.title},
    }
    return [{"id": "organize", "options": organize}]


def source_variable() -> dict[str, Any]:
    """The variable that chooses a Prometheus data source."""
    return {
        "name": "datasource",
        "label": "Data Source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
    }


def label_variable(variable: Variable) -> dict[str, Any]:
    """The variable that chooses among the values of a label; the newest job ids come first."""
    everything = {"selected": True, "text": ["All"], "value": ["$__all"]}
    definition = f"label_values({variable.source}, {variable.label.name})"
    fields = {
        "name": variable.label.name,
        "label": variable.title,
        "type": "query",
        "datasource": SOURCE,
        "definition": definition,
        "query": {"query": definition, "refId": variable.label.name},
        "current": everything if variable.several else {},
        "hide": 0,
        "includeAll": variable.several,
        "multi": variable.several,
        "options": [],
        "refresh": 2,  # with the time range: a job that ended is still found in its window
        "regex": "",
        "skipUrlSync": False,
        "sort": 2,
    }
    return fields | {"allValue": ".*"} if variable.several else fields


def annotation(definition: Annotation) -> dict[str, Any]:
    """An annotation that is drawn while its expression has a value."""
    return {
        "name": definition.title,
        "datasource": SOURCE,
        "enable": True,
        "expr": definition.expression,
        "iconColor": definition.color,
        "step": "15s",
        "titleFormat": definition.heading,
    }
