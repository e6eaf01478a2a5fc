"""The scrape interval that alerts/slos.yaml declares; written by ``make generate``."""

from lockstep_catalogue.windows import ScrapeWindows

DECLARED = ScrapeWindows(scrape_seconds=15)
