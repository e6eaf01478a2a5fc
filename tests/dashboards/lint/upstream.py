"""The 17 rules of Grafana's dashboard-linter 0.2.0, by their names, over a dashboard's JSON.

Source: https://github.com/grafana/dashboard-linter/tree/main/docs/rules. Written anew, so that a
test needs no program in Go. A rule yields what is wrong; ``EXCLUDED`` says why some do not hold.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from .dashboard_json import Json, panels_of, targets_of, variables_of
from .promql_text import counters_without_rate, is_balanced, rate_windows

_WITH_TARGETS = {"stat", "timeseries", "heatmap", "table", "bargauge", "state-timeline", "graph"}
_SOURCE_UIDS = {"$datasource", "${datasource}"}
_LABEL_VALUES = re.compile(r"label_values\((?:(?P<selector>.+),\s*)?(?P<label>[a-zA-Z_]\w*)\)")
_ON_TIME_CHANGE = 2
_RATE_INTERVAL = "$__rate_interval"

EXCLUDED: Mapping[str, str] = {
    "template-job-rule": "series are chosen by cluster and job_id: job is Prometheus' target",
    "template-instance-rule": "series are chosen by node: instance is an address",
    "target-job-rule": "a cluster may name its scrape jobs as it likes",
    "target-instance-rule": "series are chosen by node: instance is an address",
}
"""Rules that hold for no board of ours, as for none of the Kubernetes mixin, and why."""


def _template_datasource(dashboard: Json) -> Iterator[str]:
    sources = [each for each in variables_of(dashboard) if each.get("type") == "datasource"]
    if len(sources) != 1:
        yield f"has {len(sources)} variables for a data source instead of one"
        return
    [source] = sources
    if source.get("name") != "datasource" or source.get("label") != "Data Source":
        yield "the data source's variable is not datasource with the label Data Source"
    if source.get("query") not in {"prometheus", "loki"}:
        yield "the data source's variable chooses among no known kind"


def _template(name: str) -> Callable[[Json], Iterator[str]]:
    def rule(dashboard: Json) -> Iterator[str]:
        if name not in {each.get("name") for each in variables_of(dashboard)}:
            yield f"has no variable {name}"

    return rule


def _template_promql(dashboard: Json) -> Iterator[str]:
    for each in _query_variables(dashboard):
        found = _LABEL_VALUES.fullmatch(each.get("definition", ""))
        if found is None or not is_balanced(found["selector"] or ""):
            yield f"the variable {each.get('name')} asks for no values of a label"


def _template_reload(dashboard: Json) -> Iterator[str]:
    for each in _query_variables(dashboard):
        if each.get("refresh") != _ON_TIME_CHANGE:
            yield f"the variable {each.get('name')} is not reloaded with the range of time"


def _query_variables(dashboard: Json) -> list[Json]:
    return [each for each in variables_of(dashboard) if each.get("type") == "query"]


def _panel_datasource(dashboard: Json) -> Iterator[str]:
    for panel in panels_of(dashboard):
        if (
            panel.get("type") in _WITH_TARGETS
            and panel.get("datasource", {}).get("uid") not in _SOURCE_UIDS
        ):
            yield f"{panel.get('title')}: does not ask the chosen data source"


def _panel_description(dashboard: Json) -> Iterator[str]:
    for panel in panels_of(dashboard):
        if not panel.get("title") or not panel.get("description"):
            yield f"{panel.get('title') or panel.get('id')}: has no title or no description"


def _panel_units(dashboard: Json) -> Iterator[str]:
    for panel in panels_of(dashboard):
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit")
        if panel.get("type") in _WITH_TARGETS and not unit:
            yield f"{panel.get('title')}: has no unit"


def _panel_targets(dashboard: Json) -> Iterator[str]:
    for panel in panels_of(dashboard):
        if panel.get("type") in _WITH_TARGETS and not panel.get("targets"):
            yield f"{panel.get('title')}: has no query"


def _target_promql(dashboard: Json) -> Iterator[str]:
    for panel, target in targets_of(dashboard):
        if not target.get("expr") or not is_balanced(target["expr"]):
            yield f"{panel.get('title')}: a query is not PromQL"


def _target_rate_interval(dashboard: Json) -> Iterator[str]:
    for panel, target in targets_of(dashboard):
        for function, window in rate_windows(target.get("expr", "")):
            if function != "increase" and window != _RATE_INTERVAL:
                yield f"{panel.get('title')}: {function} over {window}, not {_RATE_INTERVAL}"


def _target_matcher(name: str) -> Callable[[Json], Iterator[str]]:
    def rule(dashboard: Json) -> Iterator[str]:
        for panel, target in targets_of(dashboard):
            if f'{name}=~"${name}"' not in target.get("expr", ""):
                yield f"{panel.get('title')}: no query is restricted to {name}"

    return rule


def _target_counters(dashboard: Json) -> Iterator[str]:
    for panel, target in targets_of(dashboard):
        for counter in counters_without_rate(target.get("expr", "")):
            yield f"{panel.get('title')}: {counter} is a counter and has no rate or increase"


def _target_logql(dashboard: Json) -> Iterator[str]:
    for panel, target in targets_of(dashboard):
        if target.get("datasource", {}).get("type") == "loki" and not is_balanced(
            target.get("expr", "")
        ):
            yield f"{panel.get('title')}: a query is not LogQL"


def _target_logql_auto(dashboard: Json) -> Iterator[str]:
    for panel, target in targets_of(dashboard):
        is_loki = target.get("datasource", {}).get("type") == "loki"
        if is_loki and re.search(r"\[(?!\$__auto\])", target.get("expr", "")):
            yield f"{panel.get('title')}: a query over logs has a fixed interval"


def _uneditable(dashboard: Json) -> Iterator[str]:
    if dashboard.get("editable") is not False:
        yield "can be edited where it is shown, and the change is lost"


RULES: Mapping[str, Callable[[Json], Iterator[str]]] = {
    "template-datasource-rule": _template_datasource,
    "template-job-rule": _template("job"),
    "template-instance-rule": _template("instance"),
    "template-label-promql-rule": _template_promql,
    "template-on-time-change-reload-rule": _template_reload,
    "panel-datasource-rule": _panel_datasource,
    "panel-title-description-rule": _panel_description,
    "panel-units-rule": _panel_units,
    "panel-no-targets-rule": _panel_targets,
    "target-promql-rule": _target_promql,
    "target-rate-interval-rule": _target_rate_interval,
    "target-job-rule": _target_matcher("job"),
    "target-instance-rule": _target_matcher("instance"),
    "target-counter-agg-rule": _target_counters,
    "target-logql-rule": _target_logql,
    "target-logql-auto-rule": _target_logql_auto,
    "uneditable-dashboard-rule": _uneditable,
}
