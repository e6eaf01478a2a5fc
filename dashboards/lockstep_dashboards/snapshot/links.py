"""Links from a cell to another board: the address that Grafana would open, on this server."""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from lockstep_dashboards.snapshot.variables import ALL, Choice
from lockstep_dashboards.snapshot.views.drawing import Scene

_REFERENCE = re.compile(r"\$\{([^}]+)\}")


def link_target(links: Iterable[Mapping[str, Any]], row: Mapping[str, Any], scene: Scene) -> str:
    """The address of the first link to a board of this server; empty where there is none."""
    for link in links:
        url = str(link.get("url", ""))
        if url.startswith("/d/"):
            return _REFERENCE.sub(lambda match: _value(match[1], row, scene), url)
    return ""


def _value(name: str, row: Mapping[str, Any], scene: Scene) -> str:
    """What Grafana puts in place of a reference within a link."""
    if name == "__url_time_range":
        return urlencode(time_range(scene))
    prefix, _, label = name.rpartition(".")
    if prefix in {"__data.fields", "__field.labels"}:
        return quote(str(row.get(label, "")), safe="")
    variable, _, form = name.partition(":")
    for choice in scene.choices:
        if choice.name == variable:
            return variable_query(choice) if form == "queryparam" else quote(choice.text, safe="")
    return ""


def time_range(scene: Scene) -> dict[str, str]:
    """The window as parameters of an address, in milliseconds."""
    window = scene.window
    return {"from": f"{window.begin * 1000:.0f}", "to": f"{window.end * 1000:.0f}"}


def variable_query(choice: Choice) -> str:
    """A variable as parameters of an address."""
    values = choice.values or (ALL,)
    return urlencode([(f"var-{choice.name}", value) for value in values])
