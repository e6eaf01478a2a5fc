"""What a condition is: its limits, its PromQL, and the cases that prove it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from lockstep_alerts.entry import Entry
from lockstep_alerts.synthetic import Samples
from lockstep_catalogue.windows import ScrapeWindows


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """When things happen in a case.

    Attributes:
        windows: what the scrape interval decides.
        fires_within_seconds: from the fault on, the alert fires by then at the latest.
    """

    windows: ScrapeWindows
    fires_within_seconds: int

    @property
    def onset_seconds(self) -> int:
        """When the fault begins: the live windows are full, and a scrape has just gone by."""
        # A second after a scrape is the worst moment: the next one comes latest.
        scrape_seconds = self.windows.scrape_seconds
        return math.ceil(self.windows.live_seconds / scrape_seconds + 1) * scrape_seconds + 1

    @property
    def fires_by_seconds(self) -> int:
        """The moment at which a firing case is evaluated."""
        return self.onset_seconds + self.fires_within_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Series that are fed in, and what fires at one moment.

    Attributes:
        name: what happens, in a few words.
        series: input of promtool, from time 0.
        at_seconds: when the alert is evaluated.
        fires: labels of the alert that fires then, beyond name and severity; None for silence.
    """

    name: str
    series: list[Samples]
    at_seconds: int
    fires: Mapping[str, str] | None = None


class Condition(Protocol):
    """When an alert fires, and the cases that prove it."""

    def expression(self, windows: ScrapeWindows) -> str:
        """PromQL that yields one series for each alert.

        Args:
            windows: give every range of time; ``windows.at_least(60)`` is a minute, and four
                scrapes at least.
        """
        ...

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """How long a fault must last in the samples for the expression to hold."""
        ...

    def evidence(self) -> str:
        """A Prometheus template that the description ends with; empty where the labels say all."""
        ...

    def cases(self, timing: Timing) -> list[Case]:
        """Cases for promtool, firing ones first; at least one of each."""
        ...


class ConditionKind(Condition, Protocol):
    """A condition that an entry of the spec names by its kind.

    Attributes:
        FIELDS: names of the fields in the spec, all of them required.
    """

    FIELDS: ClassVar[tuple[str, ...]]

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """The limits of an entry.

        Raises:
            SpecError: a field is missing or outside of its bounds.
        """
        ...
