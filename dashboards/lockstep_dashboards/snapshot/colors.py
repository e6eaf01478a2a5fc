"""Colours of a page: those of its series, and CSS for the names that dashboards have."""

import re
from itertools import cycle

from lockstep_catalogue.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SERIES, VERMILION
from lockstep_dashboards.panel import Panel

DASHES = ("solid", "dash", "dot")
_NAMED = {
    "red": VERMILION, "green": GREEN, "yellow": ORANGE, "orange": ORANGE, "blue": BLUE,
    "purple": PURPLE, "gray": GREY, "grey": GREY,
}  # fmt: skip
_HEX = re.compile(r"#[0-9a-fA-F]{3,8}")
INK = "var(--ink)"


def css_color(name: str, default: str = INK) -> str:
    """A colour by Grafana's name, such as ``dark-red``, or as hexadecimal; never free text."""
    return name if _HEX.fullmatch(name) else _NAMED.get(name.rpartition("-")[2], default)


def color_of(panel: Panel, value: float, default: str) -> str:
    """The CSS colour of a value by the thresholds; the default where they set none."""
    colors = [x.color for x in panel.thresholds if x.at is None or value >= x.at]
    return css_color(colors[-1]) if colors else default


def series_styles(count: int) -> list[tuple[str, str]]:
    """A colour and a dash for each series; the dash changes when the colours are used up."""
    styles = [(color, dash) for dash in DASHES for color in SERIES]
    return [style for style, _ in zip(cycle(styles), range(count), strict=False)]
