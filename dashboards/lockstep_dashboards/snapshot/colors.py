"""Colours that stay apart with any colour vision, with a contrast of 3:1 on white and on dark."""

import re
from itertools import cycle

from lockstep_records.shared.palette import BLUE, GREEN, VERMILION

# Sky, orange and purple are darker than those of Okabe and Ito, which do not show on white.
OCHRE, STEEL, MAUVE, GREY = "#b87a00", "#3d8fc0", "#b3668f", "#8c8c8c"
BROWN, PLUM = "#8c6d31", "#aa4499"
SERIES = (BLUE, OCHRE, GREEN, VERMILION, MAUVE, STEEL, GREY, BROWN, PLUM)
DASHES = ("solid", "dash", "dot")
_NAMED = {
    "red": VERMILION, "green": GREEN, "yellow": OCHRE, "orange": OCHRE, "blue": BLUE,
    "purple": MAUVE, "gray": GREY, "grey": GREY,
}  # fmt: skip
_HEX = re.compile(r"#[0-9a-fA-F]{3,8}")
INK = "var(--ink)"


def css_color(name: str, default: str = INK) -> str:
    """A colour by Grafana's name, such as ``dark-red``, or as hexadecimal; never free text."""
    return name if _HEX.fullmatch(name) else _NAMED.get(name.rpartition("-")[2], default)


def series_styles(count: int) -> list[tuple[str, str]]:
    """A colour and a dash for each series; the dash changes when the colours are used up."""
    styles = [(color, dash) for dash in DASHES for color in SERIES]
    return [style for style, _ in zip(cycle(styles), range(count), strict=False)]
