"""The thresholds of the verdicts."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """From which value and duration on a sign counts.

    Attributes:
        busy_ratio: utilization from which on a GPU is under load; an idle link may sleep.
        link_hold_seconds: how long a link must be slow to be reported, and well to be cleared.
        throttle_hold_seconds: the same for clocks that are held back.
    """

    busy_ratio: float = 0.5
    link_hold_seconds: float = 30.0
    throttle_hold_seconds: float = 60.0
