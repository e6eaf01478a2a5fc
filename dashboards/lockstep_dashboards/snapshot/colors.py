"""Colours that stay apart with any colour vision, on white and on black."""

import re
from itertools import cycle

from lockstep_records.shared.palette import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

# Without black and yellow: neither is readable on both themes.
SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, "#8c8c8c")
DASHES = ("solid", "dash", "dot", "dashdot")
# Lightness changes evenly in each, so that they also read in grey. Descriptions of panels speak of
# pale and dark, so the colours of Oranges are not turned round on a dark ground, as Grafana does.
# Source: <https://colorbrewer2.org/#type=sequential&scheme=Oranges&n=9>
_HEAT = {
    "Viridis": (
        "#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70",
        "#7ad151", "#bddf26", "#fde725",
    ),
    "Oranges": (
        "#fff5eb", "#fee6ce", "#fdd0a2", "#fdae6b", "#fd8d3c", "#f16913", "#d94801", "#a63603",
        "#7f2704",
    ),
}  # fmt: skip
_NAMED = {
    "red": VERMILION, "green": GREEN, "yellow": "#e0b400", "orange": ORANGE,
    "blue": BLUE, "purple": PURPLE, "gray": "#8c8c8c", "grey": "#8c8c8c",
}  # fmt: skip
_HEX = re.compile(r"#[0-9a-fA-F]{3,8}")
_RGB = re.compile(r"rgba?\([0-9., %]{5,40}\)")
INK = "var(--ink)"


def css_color(name: str, default: str = INK) -> str:
    """A colour by Grafana's name, such as ``dark-red``, or as hexadecimal; never free text."""
    if _HEX.fullmatch(name) or _RGB.fullmatch(name):
        return name
    return _NAMED.get(name.rpartition("-")[2], default)


# Lighter tints of the same: what follows in a stack, where a dash cannot tell areas apart.
_TINTS = ("#7fb8d8", "#f2cf7f", "#7fcebb", "#eaae7f", "#e5bbd3", "#aad9f4", "#c5c5c5")


def area_colors(count: int) -> list[str]:
    """A colour for each area of a stack."""
    return [color for color, _ in zip(cycle((*SERIES, *_TINTS)), range(count), strict=False)]


def series_styles(count: int) -> list[tuple[str, str]]:
    """A colour and a dash for each series; the dash changes when the colours are used up."""
    styles = [(color, dash) for dash in DASHES for color in SERIES]
    return [style for style, _ in zip(cycle(styles), range(count), strict=False)]


def heat_scale(scheme: str, exponent: float = 1.0) -> list[tuple[float, str]]:
    """Stops of a colour scale; an exponent below 1 gives small values more of the colours.

    A scheme of Grafana's that is none of the two becomes Viridis.
    """
    colors = _HEAT.get(scheme, _HEAT["Viridis"])
    last = len(colors) - 1
    return [((index / last) ** (1 / exponent), color) for index, color in enumerate(colors)]
