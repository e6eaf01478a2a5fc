"""A Grafana dashboard as its classic JSON describes it: variables, sections, panels, queries."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 8 << 20
COLUMNS = 24
_MAX_PANELS = 500
_MAX_GRID_HEIGHT = 200


class BoardError(ValueError):
    """A file is not a dashboard; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One query of a panel; ``form`` is ``time_series``, ``table`` or ``heatmap``."""

    ref_id: str
    expression: str
    legend: str
    is_instant: bool
    form: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GrafanaPanel:
    """One panel.

    Attributes:
        kind: Grafana's name of the view, such as ``timeseries``.
        x, y, width, height: position in the grid of 24 columns; a row of it is 30 pixels high.
        defaults: settings of all fields: unit, thresholds, mappings and what the view draws.
        overrides: settings of single fields.
    """

    number: int
    title: str
    kind: str
    description: str
    x: int
    y: int
    width: int
    height: int
    targets: tuple[Target, ...]
    defaults: dict[str, Any]
    overrides: tuple[dict[str, Any], ...]
    options: dict[str, Any]
    transformations: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """The panels under one heading; those of a collapsed row are drawn when it is opened."""

    title: str
    is_collapsed: bool
    panels: tuple[GrafanaPanel, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GrafanaBoard:
    """A dashboard; ``range_begin`` is when its window begins at first, such as ``now-1h``."""

    uid: str
    title: str
    description: str
    range_begin: str
    variables: tuple[dict[str, Any], ...]
    annotations: tuple[dict[str, Any], ...]
    sections: tuple[Section, ...]

    @property
    def panels(self) -> Iterator[GrafanaPanel]:
        """All panels, from top to bottom."""
        return (panel for section in self.sections for panel in section.panels)


def read_board_file(path: Path) -> GrafanaBoard:
    """The dashboard of a JSON file.

    Raises:
        BoardError: it cannot be read, or is not a dashboard.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BoardError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise BoardError(
            f"{path} is larger than {MAX_FILE_BYTES:,} bytes, so it is not a dashboard"
        )
    try:
        return read_board(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise BoardError(f"{path} is not a Grafana dashboard: {error}") from error


def read_board(document: Any) -> GrafanaBoard:
    """A dashboard from its parsed JSON.

    Raises:
        BoardError: a field that must be there is missing or of another type.
    """
    try:
        board = GrafanaBoard(
            uid=str(document["uid"]),
            title=str(document["title"]),
            description=str(document.get("description", "")),
            range_begin=str(document.get("time", {}).get("from", "now-1h")),
            variables=tuple(document.get("templating", {}).get("list", ())),
            annotations=tuple(document.get("annotations", {}).get("list", ())),
            sections=tuple(_sections(document["panels"])),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BoardError(
            f"the field {error} is missing or wrong; export it as classic JSON"
        ) from error
    if sum(1 for _ in board.panels) > _MAX_PANELS:
        raise BoardError(f"it has more than {_MAX_PANELS} panels; split it")
    return board


def _sections(panels: list[dict[str, Any]]) -> Iterator[Section]:
    """Panels by the heading above them; what stands above the first heading has none."""
    ordered = sorted(panels, key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
    title, is_collapsed, members = "", False, list[GrafanaPanel]()
    for panel in ordered:
        if panel["type"] != "row":
            members.append(_panel(panel))
            continue
        if members or title:
            yield Section(title=title, is_collapsed=is_collapsed, panels=tuple(members))
        title, is_collapsed = str(panel.get("title", "")), bool(panel.get("collapsed", False))
        members = [_panel(member) for member in panel.get("panels") or ()]
    if members or title:
        yield Section(title=title, is_collapsed=is_collapsed, panels=tuple(members))


def _panel(fields: dict[str, Any]) -> GrafanaPanel:
    grid, config = fields["gridPos"], fields.get("fieldConfig", {})
    x = min(max(int(grid["x"]), 0), COLUMNS - 1)
    return GrafanaPanel(
        number=int(fields["id"]),
        title=str(fields.get("title", "")),
        kind=str(fields["type"]),
        description=str(fields.get("description", "")),
        x=x,
        y=max(int(grid["y"]), 0),
        width=min(max(int(grid["w"]), 1), COLUMNS - x),
        height=min(max(int(grid["h"]), 1), _MAX_GRID_HEIGHT),
        targets=tuple(_targets(fields.get("targets", ()))),
        defaults=dict(config.get("defaults", {})),
        overrides=tuple(config.get("overrides", ())),
        options=dict(fields.get("options", {})),
        transformations=tuple(fields.get("transformations", ())),
    )


def _targets(targets: list[dict[str, Any]]) -> Iterator[Target]:
    for number, fields in enumerate(targets):
        if fields.get("hide"):
            continue
        legend = str(fields.get("legendFormat", ""))
        yield Target(
            ref_id=str(fields.get("refId") or chr(ord("A") + number)),
            expression=str(fields["expr"]),
            legend="" if legend == "__auto" else legend,
            is_instant=bool(fields.get("instant")) and not fields.get("range"),
            form=str(fields.get("format", "time_series")),
        )
