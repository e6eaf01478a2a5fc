"""One palette: each goodput state has a colour of its own, which boards and reports both show."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

from lockstep_catalogue.vocabulary import GOODPUT_STATES
from lockstep_records.shared.palette import STATE_COLOURS

BOARDS = Path(__file__).parents[3] / "dashboards" / "generated"


def test_every_goodput_state_has_a_colour_of_its_own() -> None:
    assert list(STATE_COLOURS) == list(GOODPUT_STATES)
    assert all(a != b for a, b in combinations(STATE_COLOURS.values(), 2))


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
