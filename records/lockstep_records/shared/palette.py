"""Colours that stay apart with any colour vision: the palette of Okabe and Ito.

Source: M. Okabe and K. Ito, Color Universal Design (2008), https://jfly.uni-koeln.de/color/.
"""

from lockstep_catalogue.vocabulary import GoodputState

BLUE, SKY, GREEN = "#0072b2", "#56b4e9", "#009e73"
YELLOW, ORANGE, VERMILION, PURPLE = "#f0e442", "#e69f00", "#d55e00", "#cc79a7"

STATE_COLOURS: dict[GoodputState, str] = {
    "productive": BLUE,
    "startup": SKY,
    "data_wait": YELLOW,
    "communication": GREEN,
    "straggler_wait": VERMILION,
    "host_bound": "#8c6d31",
    "checkpoint": PURPLE,
    "evaluation": "#44aa99",
    "restore": "#aa4499",
    "rework": ORANGE,
    "hang": "#882255",
    "recovery": "#ddcc77",
    "idle": "#bbbbbb",
    "other": "#777777",
    "unknown": "#444444",
}
"""One colour for each goodput state, the same on boards and in reports."""
