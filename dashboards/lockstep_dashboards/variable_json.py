"""The JSON of variables and annotations, as Grafana 10.3 to 13 read it."""

from typing import Any

from lockstep_dashboards.panel import Annotation, Variable
from lockstep_dashboards.panel_json import SOURCE


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
        "name": variable.name,
        "label": variable.title,
        "type": "query",
        "datasource": SOURCE,
        "definition": definition,
        "query": {"query": definition, "refId": variable.name},
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
