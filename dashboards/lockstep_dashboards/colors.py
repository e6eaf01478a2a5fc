"""What the colours of the boards mean."""

from lockstep_catalogue.vocabulary import GOODPUT_STATES
from lockstep_records.shared import palette

# Boards hold colours in capitals.
BLUE, SKY, GREEN = palette.BLUE.upper(), palette.SKY.upper(), palette.GREEN.upper()
YELLOW, ORANGE = palette.YELLOW.upper(), palette.ORANGE.upper()
VERMILION, PURPLE = palette.VERMILION.upper(), palette.PURPLE.upper()
GREY = "#999999"

# Good is blue and bad is vermilion: red against green is what most colour-blind people confuse.
GOOD, WARNING, BAD, NEUTRAL = BLUE, ORANGE, VERMILION, GREY

NAMED = {"good": GOOD, "warning": WARNING, "bad": BAD, "neutral": NEUTRAL}
"""Colours by the names that layouts use."""

_OF_STATES = {
    "productive": BLUE,
    "startup": SKY,
    "data_wait": YELLOW,
    "host_bound": "#8C6D31",
    "communication": GREEN,
    "straggler_wait": VERMILION,
    "checkpoint": PURPLE,
    "evaluation": "#44AA99",
    "restore": "#AA4499",
    "rework": ORANGE,
    "hang": "#882255",
    "recovery": "#DDCC77",
    "idle": "#BBBBBB",
    "other": "#777777",
    "unknown": "#444444",
}
GOODPUT_COLORS = tuple((state, _OF_STATES.get(state, GREY)) for state in GOODPUT_STATES)
"""One colour for each goodput state, the same on all boards."""
