"""One palette: each goodput state has a colour of its own, which boards and reports both show."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

from lockstep_catalogue import palette
from lockstep_catalogue.palette import STATE_COLOURS
from lockstep_catalogue.vocabulary import GOODPUT_STATES
from lockstep_dashboards.layout import NAMED_COLORS

BOARDS = Path(__file__).parents[2] / "dashboards" / "generated"


def test_every_goodput_state_has_a_colour_of_its_own() -> None:
    assert list(STATE_COLOURS) == list(GOODPUT_STATES)
    assert all(a != b for a, b in combinations(STATE_COLOURS.values(), 2))


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_has_a_contrast_of_3_to_1_in_both_themes() -> None:
    named = [x for x in vars(palette).values() if isinstance(x, str) and x.startswith("#")]
    for color in (*STATE_COLOURS.values(), *named, *palette.SERIES, *NAMED_COLORS.values()):
        # The grounds of panels: light, dark, and Grafana's dark.
        for ground in ("#ffffff", "#1a1e24", "#181b1f"):
            assert contrast(color, ground) >= 3, (color, ground)


def test_boards_draw_each_goodput_state_in_its_colour() -> None:
    drawn = {
        override["matcher"]["options"]: property_["value"]["fixedColor"].lower()
        for path in BOARDS.glob("*.json")
        for override in overrides(json.loads(path.read_text(encoding="utf-8")))
        for property_ in override["properties"]
        if property_["id"] == "color" and override["matcher"]["options"] in STATE_COLOURS
    }
    assert drawn == STATE_COLOURS


def overrides(node: Any) -> list[Any]:
    """All overrides of the panels below a node of a board."""
    if isinstance(node, list):
        return [found for each in node for found in overrides(each)]
    if not isinstance(node, dict):
        return []
    return [*node.get("overrides", []), *overrides(list(node.values()))]
