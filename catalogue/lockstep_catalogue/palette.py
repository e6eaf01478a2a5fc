"""Colours that stay apart with any colour vision, with a contrast of 3:1 on white and on dark.

After M. Okabe and K. Ito, Color Universal Design (2008), https://jfly.uni-koeln.de/color/;
sky, yellow, orange and purple are darker than theirs, which do not show on white.
"""

from lockstep_catalogue.vocabulary import GoodputState

BLUE, SKY, GREEN, VERMILION = "#0072b2", "#3d8fc0", "#009e73", "#d55e00"
YELLOW, ORANGE, PURPLE, GREY = "#8f8a00", "#b87a00", "#b3668f", "#8c8c8c"
BROWN, PLUM = "#8c6d31", "#aa4499"
SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY, BROWN, PLUM)

STATE_COLOURS: dict[GoodputState, str] = {
    "productive": BLUE,
    "startup": SKY,
    "data_wait": YELLOW,
    "communication": GREEN,
    "straggler_wait": VERMILION,
    "host_bound": BROWN,
    "checkpoint": PURPLE,
    "evaluation": "#2f9c8c",
    "restore": PLUM,
    "rework": ORANGE,
    "hang": "#c03a78",
    "recovery": "#8074c8",
    "idle": "#949494",
    "held_after_end": "#8a8a3c",
    "other": "#7f8b99",
    "unknown": "#6b6b6b",
}
"""One colour for each goodput state, the same on boards and in reports."""
