"""What a condition is: its limits, its PromQL, and the cases that prove it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from lockstep_alerts.conditions.synthetic import Samples, Timing
from lockstep_catalogue.windows import ScrapeWindows

LIVE_WINDOW = "live window"


@dataclass(frozen=True, slots=True)
class Case:
    """Series that are fed in, and what fires at one moment.

    Attributes:
        name: what happens, in a few words.
        series: input of promtool, from time 0.
        fires: labels of the alert that fires then, beyond name and severity; None for silence.
        at_seconds: when the alert is evaluated; None for the moment by which it has to fire.
    """

    name: str
    series: list[Samples]
    fires: Mapping[str, str] | None = None
    at_seconds: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """When an alert fires, and the cases that prove it.

    A condition is a dataclass whose annotated fields are its limits, as an entry of the spec gives
    them (``quantities.py``). Its kind is its name in lower case; its area is its folder.

    Attributes:
        DETECTED_AFTER: how long a fault must last in the samples for the expression to hold:
            seconds, ``LIVE_WINDOW``, or the name of a field that is a duration.
    """

    DETECTED_AFTER: ClassVar[int | str] = 0

    def expression(self, windows: ScrapeWindows) -> str:
        """PromQL that yields one series for each alert.

        Args:
            windows: give every range of time; ``windows.cover(60)`` is a minute, and four
                scrapes at least.
        """
        raise NotImplementedError

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """How long a fault must last in the samples for the expression to hold."""
        after = self.DETECTED_AFTER
        if isinstance(after, int):
            return after
        return windows.live_seconds if after == LIVE_WINDOW else getattr(self, after).seconds

    def evidence(self) -> str:
        """A Prometheus template that the description ends with; empty where the labels say all."""
        return ""

    def cases(self, timing: Timing) -> list[Case]:
        raise NotImplementedError
