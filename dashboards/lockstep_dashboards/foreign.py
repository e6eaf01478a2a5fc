"""Somebody else's dashboard, from Grafana's classic JSON; what cannot be drawn says why."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from lockstep_catalogue import Label
from lockstep_dashboards import panel
from lockstep_dashboards.scope import REFERENCE, referred_name

MAX_FILE_BYTES = 8 << 20
_MAX_PANELS = 500
_MAX_HEIGHT = 200
_VIEWS = {**{view.value: view for view in panel.View}, "gauge": panel.View.BAR_GAUGE}
_LABEL_VALUES = re.compile(
    r"label_values\(\s*(?:(?P<selector>.+),)?\s*(?P<label>\w+)\s*\)", re.DOTALL
)
_LAST = {"last", "lastNotNull"}
_TRANSFORMATIONS = {"merge", "organize"}
# Settings of single series that change what a value means.
_MEANINGS = {"unit", "min", "max", "mappings", "thresholds", "custom.axisPlacement"}

Json = dict[str, Any]


def read_board_file(path: Path) -> panel.Board:
    """The dashboard of a JSON file.

    Raises:
        ValueError: it cannot be read, or is not a dashboard.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(
            f"{path} is larger than {MAX_FILE_BYTES:,} bytes, so it is not a dashboard"
        )
    try:
        return read_dashboard(json.loads(content))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a Grafana dashboard: the field {error} is missing or wrong;"
            " export it as classic JSON"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a Grafana dashboard: {error}") from error


def read_dashboard(document: Json) -> panel.Board:
    """A dashboard from its parsed JSON; a field that is missing or wrong raises as it does."""
    listed = document.get("templating", {}).get("list", ())
    variables = tuple(filter(None, map(_variable, listed)))
    fixed = dict(filter(None, map(_fixed_variable, listed)))
    names = {variable.name for variable in variables}
    rows = tuple(_rows(_filled(document["panels"], fixed), names))
    board = panel.Board(
        uid=str(document["uid"]),
        title=str(document["title"]),
        description=str(document.get("description", "")),
        variables=variables,
        rows=rows,
        annotations=tuple(_annotations(document)),
        range=str(document.get("time", {}).get("from", "now-1h")).removeprefix("now-"),
    )
    if len(board.panels) > _MAX_PANELS:
        raise ValueError(f"it has more than {_MAX_PANELS} panels; split it")
    return board


def _variable(fields: Json) -> panel.Variable | None:
    """A variable that asks for the values of a label."""
    query = fields.get("query", "")
    text = str(query.get("query", "") if isinstance(query, dict) else query).strip()
    match = _LABEL_VALUES.fullmatch(text)
    if fields["type"] != "query" or match is None:
        return None
    return panel.Variable(
        label=Label(name=match["label"], help=""),
        title=str(fields.get("label") or fields["name"]),
        source=(match["selector"] or "").strip(),
        several=bool(fields.get("multi") or fields.get("includeAll")),
        variable=str(fields["name"]),
    )


def _fixed_variable(fields: Json) -> tuple[str, str] | None:
    """Name and value of a variable that asks no server."""
    value = fields.get("current", {}).get("value", fields.get("query"))
    if fields["type"] not in {"constant", "custom", "textbox", "interval"}:
        return None
    return (str(fields["name"]), value) if isinstance(value, str) else None


def _filled(value: Any, fixed: Mapping[str, str]) -> Any:
    """A part of the document in which variables of a fixed value are replaced by it."""
    if isinstance(value, dict):
        return {name: _filled(part, fixed) for name, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, fixed) for part in value]
    if not isinstance(value, str) or "$" not in value:
        return value
    return REFERENCE.sub(lambda found: fixed.get(referred_name(found), found[0]), value)


def _annotations(document: Json) -> Iterator[panel.Annotation]:
    for fields in document.get("annotations", {}).get("list", ()):
        expression = fields.get("expr") or (fields.get("target") or {}).get("expr")
        if expression and fields.get("enable", True):
            title = str(fields.get("name", ""))
            yield panel.Annotation(
                title=title,
                expression=str(expression),
                heading=str(fields.get("titleFormat") or title),
                color=str(fields.get("iconColor", "")),
            )


def _rows(panels: list[Json], names: set[str]) -> Iterator[panel.Row]:
    """Panels by the heading above them; what stands above the first heading has none."""
    title, is_collapsed, members = "", False, list[panel.Panel]()
    for fields in sorted(panels, key=lambda each: (each["gridPos"]["y"], each["gridPos"]["x"])):
        if fields["type"] != "row":
            members.append(_panel(fields, names))
            continue
        if members or title:
            yield panel.Row(title=title, panels=tuple(members), collapsed=is_collapsed)
        title, is_collapsed = str(fields.get("title", "")), bool(fields.get("collapsed"))
        members = [_panel(each, names) for each in fields.get("panels") or ()]
    if members or title:
        yield panel.Row(title=title, panels=tuple(members), collapsed=is_collapsed)


def _panel(fields: Json, names: set[str]) -> panel.Panel:
    grid, config = fields["gridPos"], fields.get("fieldConfig", {})
    defaults, options = config.get("defaults", {}), fields.get("options", {})
    view = _VIEWS.get(fields["type"], panel.View.TEXT)
    queries = tuple(_queries(fields))
    content = str(options.get("content", "")) if fields["type"] == panel.View.TEXT.value else ""
    refusal = "" if content else _refusal(fields, queries, names)
    sort: Json = next(iter(options.get("sortBy") or ()), {})
    return panel.Panel(
        view=view,
        title=str(fields.get("title", "")),
        description=str(fields.get("description", "")),
        unit=str(defaults.get("unit", "short")),
        queries=() if refusal else queries,
        width=min(max(int(grid["w"]), 1), panel.COLUMNS),
        height=min(max(int(grid["h"]), 1), _MAX_HEIGHT),
        stacked=_stacking(defaults) == "normal",
        thresholds=tuple(_thresholds(defaults)),
        texts=tuple(_texts(defaults)),
        minimum=defaults.get("min"),
        maximum=defaults.get("max"),
        decimals=defaults.get("decimals"),
        no_value=str(defaults.get("noValue", "")),
        sort=str(sort.get("displayName", "")),
        ascending=bool(sort) and not sort.get("desc"),
        hidden=("Time", *_organized(fields, "excludeByName")),
        content=content,
        refusal=refusal,
    )


def _queries(fields: Json) -> Iterator[panel.Query]:
    headings = dict(_organized(fields, "renameByName"))
    units = {
        entry["matcher"].get("options"): each["value"]
        for entry in fields.get("fieldConfig", {}).get("overrides", ())
        for each in entry.get("properties", ())
        if each["id"] == "unit"
    }
    for number, target in enumerate(fields.get("targets", ())):
        if not target.get("hide") and target.get("expr"):
            name = f"Value #{target.get('refId') or chr(ord('A') + number)}"
            heading = str(headings.get(name) or headings.get("Value") or "")
            legend = str(target.get("legendFormat", "")).replace("__auto", "")
            unit = str(units.get(heading, ""))
            yield panel.Query(expression=target["expr"], legend=legend, heading=heading, unit=unit)


def _organized(fields: Json, part: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for each in fields.get("transformations", ()):
        merged |= (each.get("options") or {}).get(part) or {}
    return {name: value for name, value in merged.items() if value}


def _stacking(defaults: Json) -> str:
    return str((defaults.get("custom", {}).get("stacking") or {}).get("mode", "none"))


def _thresholds(defaults: Json) -> Iterator[panel.Threshold]:
    for step in (defaults.get("thresholds") or {}).get("steps", ()):
        yield panel.Threshold(color=str(step.get("color", "")), at=step.get("value"))


def _texts(defaults: Json) -> Iterator[panel.ValueText]:
    for mapping in defaults.get("mappings", ()):
        for value, result in (mapping.get("options") or {}).items():
            if mapping.get("type") == "value" and re.fullmatch(r"-?[0-9.]+", value):
                text = str(result.get("text") or value)
                yield panel.ValueText(
                    value=float(value), text=text, color=str(result.get("color", ""))
                )


def _refusal(fields: Json, queries: tuple[panel.Query, ...], names: set[str]) -> str:
    """Why a panel cannot be drawn as Grafana draws it; empty where it can."""
    reasons = chain(
        _view_refusals(fields), _query_refusals(fields, queries, names), _field_refusals(fields)
    )
    return next(reasons, "")


def _query_refusals(
    fields: Json, queries: tuple[panel.Query, ...], names: set[str]
) -> Iterator[str]:
    for source in (fields, *fields.get("targets", ())):
        kind = (source.get("datasource") or {}).get("type", "prometheus")
        if kind != "prometheus":
            yield f"it asks the data source {kind!r}, and here is a Prometheus"
    if not queries:
        yield "it has no query"
    for query in queries:
        for name in map(referred_name, REFERENCE.finditer(query.expression)):
            if name not in names and not name.startswith("__"):
                yield f"it uses the variable {name!r}, of which no value is known"


def _view_refusals(fields: Json) -> Iterator[str]:
    if fields["type"] not in _VIEWS:
        yield f"only Grafana draws the view {fields['type']!r}"
    for each in fields.get("transformations", ()):
        if each.get("id") not in _TRANSFORMATIONS:
            yield f"it transforms its series by {each.get('id')!r}"
    for name in fields.get("options", {}).get("reduceOptions", {}).get("calcs") or ():
        if name not in _LAST:
            yield f"it reduces its series to {name!r}, and only the last value is drawn"


def _field_refusals(fields: Json) -> Iterator[str]:
    config = fields.get("fieldConfig", {})
    defaults = config.get("defaults", {})
    if _stacking(defaults) == "percent":
        yield "it stacks by per cent"
    if (defaults.get("thresholds") or {}).get("mode") == "percentage":
        yield "its thresholds are per cent of a range"
    for mapping in defaults.get("mappings", ()):
        if mapping.get("type") != "value":
            yield f"it maps values by {mapping.get('type')!r}"
    allowed = {"unit"} if fields["type"] == panel.View.TABLE.value else set()
    for entry in config.get("overrides", ()):
        for each in entry.get("properties", ()):
            if each["id"] in _MEANINGS - allowed:
                yield f"it overrides {each['id']!r} of single series"
