"""Writes the scrape interval of slos.yaml into the catalogue, where every program reads it."""

import sys
from pathlib import Path

from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

_TEXT = '''"""The scrape interval that alerts/slos.yaml declares; written by ``make generate``."""

from lockstep_catalogue.windows import ScrapeWindows

DECLARED = ScrapeWindows(scrape_seconds={seconds})
'''


def render(scrape_seconds: int) -> str:
    """The text of the module."""
    return _TEXT.format(seconds=scrape_seconds)


if __name__ == "__main__":
    declared = read_spec(spec_path()).windows.scrape_seconds
    Path(sys.argv[1]).write_text(render(declared), encoding="utf-8")
