"""Options and drawing of each view, as Grafana 10.3 to 13 read them."""

from typing import Any

from lockstep_dashboards.panel import Panel, View

Parts = tuple[dict[str, Any], dict[str, Any], str]
"""The custom fields of a view's series, its options, and the mode of its colours."""

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
_LEGEND = {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True}
_LAST_VALUE = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def view_parts(panel: Panel) -> Parts:
    """What the panel's view adds to its JSON."""
    return {
        View.STAT: _stat,
        View.TIME_SERIES: _time_series,
        View.HEAT_MAP: _heat_map,
        View.TABLE: _table,
        View.BAR_GAUGE: _bar_gauge,
        View.STATE_TIMELINE: _state_timeline,
        View.TEXT: _text,
    }[panel.view](panel)


def _stat(panel: Panel) -> Parts:
    options = {
        "colorMode": "value" if panel.thresholds or panel.texts else "none",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": _LAST_VALUE,
        "textMode": "auto",
    }
    return {}, options, "thresholds"


def _time_series(panel: Panel) -> Parts:
    stacking = {"group": "A", "mode": "normal" if panel.stacked else "none"}
    limits = {"mode": "dashed" if panel.thresholds else "off"}
    custom = {
        **_LINES,
        "fillOpacity": 60 if panel.stacked else 5,
        "stacking": stacking,
        "thresholdsStyle": limits,
    }
    options = {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}}
    return custom, options, "palette-classic"


def _heat_map(panel: Panel) -> Parts:
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


def _table(panel: Panel) -> Parts:
    custom = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}
    options = {
        "cellHeight": "sm",
        "footer": {"countRows": False, "fields": "", "reducer": ["sum"], "show": False},
        "showHeader": True,
        "sortBy": [{"desc": True, "displayName": panel.queries[0].heading or panel.title}],
    }
    return custom, options, "thresholds"


def _bar_gauge(panel: Panel) -> Parts:
    del panel
    options = {
        "displayMode": "basic",
        "minVizHeight": 10,
        "minVizWidth": 0,
        "namePlacement": "auto",
        "orientation": "horizontal",
        "reduceOptions": _LAST_VALUE,
        "showUnfilled": True,
        "valueMode": "color",
    }
    return {}, options, "thresholds"


def _state_timeline(panel: Panel) -> Parts:
    del panel
    options = {
        "alignValue": "left",
        "legend": _LEGEND,
        "mergeValues": True,
        "rowHeight": 0.9,
        "showValue": "never",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return {"fillOpacity": 80, "lineWidth": 0, "spanNulls": False}, options, "thresholds"


def _text(panel: Panel) -> Parts:
    options = {
        "code": {"language": "plaintext", "showLineNumbers": False, "showMiniMap": False},
        "content": panel.content,
        "mode": "markdown",
    }
    return {}, options, "thresholds"
