"""Each view: grafanalib's class, the arguments that it takes, and the options that it lacks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grafanalib import core

from lockstep_catalogue.palette import VERMILION
from lockstep_dashboards.panel import Panel, View


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewParts:
    """How a view is written.

    Attributes:
        grafanalib_class: the class; the generic panel where the view's own writes the fields of a
            Grafana before 8.
        custom: custom fields of the series that the class lacks.
        options: of the panel that the class lacks.
    """

    grafanalib_class: type[core.Panel] = core.Panel
    arguments: dict[str, Any] = field(default_factory=dict)
    custom: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    color_mode: str = "thresholds"


class _GenericPanel(core.Panel):  # type: ignore[misc]  # grafanalib has no types
    """The generic panel, which grafanalib leaves to its subclasses to write."""

    def to_json_data(self) -> Any:
        return self.panel_json({})


_LEGEND = {
    "calcs": ["last"],
    "displayMode": "list",
    "placement": "bottom",
    "showLegend": True,
}
_LAST_VALUE = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_BAR_GAUGE = ViewParts(
    grafanalib_class=_GenericPanel,
    options={
        "displayMode": "basic",
        "minVizHeight": 10,
        "minVizWidth": 0,
        "namePlacement": "auto",
        "orientation": "horizontal",
        "reduceOptions": _LAST_VALUE,
        "showUnfilled": True,
        "valueMode": "color",
    },
)
_STATE_TIMELINE = ViewParts(
    grafanalib_class=core.StateTimeline,
    arguments={"fillOpacity": 80, "showValue": "never"},
    custom={"spanNulls": False},
    options={"legend": _LEGEND, "tooltip": {"sort": "none"}},
)


def parts_of_view(panel: Panel) -> ViewParts:
    """How the panel's view is written."""
    writers: Mapping[View, Callable[[Panel], ViewParts]] = {
        View.STAT: _write_stat,
        View.TIME_SERIES: _write_time_series,
        View.HEAT_MAP: _write_heat_map,
        View.TABLE: _write_table,
        View.BAR_GAUGE: lambda _: _BAR_GAUGE,
        View.STATE_TIMELINE: lambda _: _STATE_TIMELINE,
        View.TEXT: lambda text: ViewParts(
            grafanalib_class=core.Text, arguments={"content": text.content}
        ),
    }
    return writers[panel.view](panel)


def _write_stat(panel: Panel) -> ViewParts:
    return ViewParts(
        grafanalib_class=core.Stat,
        arguments={
            "colorMode": "value" if panel.thresholds or panel.texts else "none",
            "graphMode": "none",
            "reduceCalc": "lastNotNull",
            "noValue": panel.no_value or None,
        },
    )


def _write_time_series(panel: Panel) -> ViewParts:
    return ViewParts(
        grafanalib_class=core.TimeSeries,
        arguments={
            "pointSize": 4,
            "fillOpacity": 60 if panel.stacked else 5,
            "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
            "thresholdsStyleMode": "dashed" if panel.thresholds else "off",
            "tooltipMode": "multi",
            "tooltipSort": "desc",
        },
        options={"legend": _LEGEND},
        color_mode="palette-classic",
    )


def _write_table(panel: Panel) -> ViewParts:
    return ViewParts(
        grafanalib_class=core.Table,
        arguments={"sortBy": [core.TableSortByField(panel.sorted_by, desc=not panel.ascending)]},
        custom={"cellOptions": {"type": "auto"}, "inspect": False},
        options={
            "cellHeight": "sm",
            "footer": {"countRows": False, "fields": "", "reducer": ["sum"], "show": False},
        },
    )


def _write_heat_map(panel: Panel) -> ViewParts:
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "exponent": 0.5,
            "fill": VERMILION,
            "max": panel.maximum,
            "min": panel.minimum,
            "mode": "opacity",  # schemes turn round on a dark ground, and mean the contrary there
            "scale": "exponential",
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
    return ViewParts(
        grafanalib_class=_GenericPanel,
        custom={"scaleDistribution": {"type": "linear"}},
        options=options,
        color_mode="palette-classic",
    )
