"""Windows of time that follow from the time between two scrapes."""

from dataclasses import dataclass

MIN_SCRAPES = 4
"""Scrapes that a window holds at least: one may fail, and a rate still has three."""
MAX_SCRAPE_SECONDS = 60
"""Longest time between scrapes: beyond, Prometheus forgets a gauge after a few lost scrapes."""
_MIN_LIVE_SECONDS = 20
_MIN_LONG_SECONDS = 300


@dataclass(frozen=True, slots=True)
class ScrapeWindows:
    """What the time between two scrapes, 1 to 60 s, decides: how far a rule looks, how often."""

    scrape_seconds: int

    def __post_init__(self) -> None:
        if not 1 <= self.scrape_seconds <= MAX_SCRAPE_SECONDS:
            raise ValueError(
                f"a scrape interval of {self.scrape_seconds}s cannot be served; "
                f"choose 1s to {spelled(MAX_SCRAPE_SECONDS)}"
            )

    def cover(self, seconds: int) -> str:
        """A window for PromQL: this long, and four scrapes at least."""
        return spelled(max(seconds, MIN_SCRAPES * self.scrape_seconds))

    @property
    def live_seconds(self) -> int:
        """Length of the shortest window of a mean, so that a page follows a fault soon."""
        return max(_MIN_LIVE_SECONDS, MIN_SCRAPES * self.scrape_seconds)

    @property
    def live(self) -> str:
        """The shortest window of a mean, for PromQL."""
        return spelled(self.live_seconds)

    @property
    def long(self) -> str:
        """The window of a mean where few steps end in the live window, for PromQL."""
        return self.cover(_MIN_LONG_SECONDS)

    @property
    def evaluation_seconds(self) -> int:
        """Time between two evaluations of the rules: between scrapes nothing changes."""
        return self.scrape_seconds


def spelled(seconds: int) -> str:
    """A duration as Prometheus and the programs read it, such as ``105s`` or ``5m``."""
    return f"{seconds // 60}m" if seconds and seconds % 60 == 0 else f"{seconds}s"
