"""Reads what the lint needs from a dashboard's JSON, of closed rows too."""

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


def panels_of(dashboard: Json) -> Iterator[Json]:
    """Every panel, without the headings."""
    for panel in dashboard.get("panels", []):
        if panel.get("type") == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def targets_of(dashboard: Json) -> Iterator[tuple[Json, Json]]:
    """Every panel with each of its queries."""
    for panel in panels_of(dashboard):
        for target in panel.get("targets", []):
            yield panel, target


def variables_of(dashboard: Json) -> list[Json]:
    """The variables."""
    return list(dashboard.get("templating", {}).get("list", []))
