"""Colours that stay apart with any colour vision: the palette of Okabe and Ito.

Source: M. Okabe and K. Ito, Color Universal Design (2008), https://jfly.uni-koeln.de/color/.
"""

BLUE, SKY, GREEN = "#0072b2", "#56b4e9", "#009e73"
YELLOW, ORANGE, VERMILION, PURPLE = "#f0e442", "#e69f00", "#d55e00", "#cc79a7"
